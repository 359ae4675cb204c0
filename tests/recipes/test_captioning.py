"""The captioning recipes: drawn pictures, two trainings, scores, gallery, report."""

import json

import pytest
from PIL import Image

from recipes.demo_data import pictures
from tests.helpers import share

TINY = ["draw.train=24", "draw.valid=4", "draw.test=5", "train.max_update=2", "average=1"]
TINY += ["train.save_interval_updates=1", "train.validate_interval_updates=2"]
TINY += ["train.warmup_updates=1", "self_critical.max_update=1"]
TINY += ["self_critical.save_interval_updates=1", "decode.beam=2"]
TINY += ["self_critical.warmup_updates=0", "model.encoder_layers=2", "model.decoder_layers=2"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("recipe")


def run(folder, *more):
    line = ["recipe", "run", "captioning/demo", *TINY, "systems=[veps]", "device=cpu", *more]
    return json.loads(share(*line, "--json", cwd=folder).stdout)


class TestDemo:
    def test_a29_a30_two_trainings_and_their_scores(self, folder):
        results = run(folder, "out=out")
        assert [system["name"] for system in results["systems"]] == ["veps", "veps self-critical"]
        for system in results["systems"]:
            names = {row["name"] for row in system["scores"]["test"]}
            assert {"BLEU-4", "ROUGE-L", "CIDEr-D"} <= names
            assert (folder / "out" / system["folder"] / "gallery.html").is_file()
        assert "--finetune-from-model" in results["systems"][1]["line"]
        assert results["metric"] == "CIDEr-D"
        page = (folder / "out" / "report.html").read_text()
        assert "CIDEr-D in validation" in page
        assert 'href="veps/self_critical/gallery.html"' in page and "src=" not in page

        log = folder / "out" / "veps" / "train.log"
        before = log.stat().st_mtime_ns
        again = run(folder, "out=out", "self_critical.lr=0.0001")
        assert log.stat().st_mtime_ns == before  # only the second training is done again
        assert again["systems"][0]["scores"] == results["systems"][0]["scores"]
        assert "--lr 0.0001" in again["systems"][1]["line"]

    def test_through_the_backbone(self, folder):
        more = ["backbone.stored=false", "backbone.finetune_after=0", "self_critical=null"]
        (system,) = run(folder, "out=live", *more)["systems"]
        assert "--finetune-backbone-after 0" in system["line"]
        assert not (folder / "live" / "features").exists()


class TestPictures:
    def test_held_out_scenes_and_drawing_once(self, tmp_path):
        sizes = {"train": 200, "valid": 20, "test": 20, "size": 32, "seed": 1}
        path = pictures.draw(tmp_path / "p", **sizes)
        content = json.loads(path.read_text())
        captions: dict[str, set] = {"train": set(), "val": set(), "test": set()}
        for image in content["images"]:
            captions[image["split"]].add(image["sentences"][0]["raw"])
        assert not captions["train"] & (captions["test"] | captions["val"])
        with Image.open(tmp_path / "p" / content["images"][0]["filename"]) as image:
            assert image.size == (32, 32) and len(image.getcolors(1024)) > 2
        before = path.stat().st_mtime_ns
        assert pictures.draw(tmp_path / "p", **sizes).stat().st_mtime_ns == before
        pictures.draw(tmp_path / "p", **(sizes | {"seed": 2}))
        assert path.stat().st_mtime_ns != before

    def test_captions_say_the_scene(self):
        group = pictures.Group(2, "red", "star"), pictures.Group(1, "blue", "circle")
        scene = pictures.Scene(group[0], "above", group[1])
        assert scene.captions()[2] == "a blue circle below two red stars."
        alone = pictures.Scene(group[0], "in the middle")
        assert alone.captions()[1] == "There are two red stars in the middle."
