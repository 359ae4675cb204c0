"""What only real data can show; DATA names the folder that holds the sets."""

import json
import os
from pathlib import Path

import pytest

from captioning.prepare import prepare as prepare_captions
from captioning.score import score
from fairseq_plugins.subwords import load_subwords
from translation.prepare import prepare

pytestmark = pytest.mark.data


@pytest.fixture(scope="module")
def en_vi(tmp_path_factory):
    data, out = Path(os.environ["DATA"]) / "en_vi", tmp_path_factory.mktemp("en_vi")
    tests = [data / "tst2013", data / "news_test"]
    return data, out, prepare("en", "vi", data / "train", data / "tst2012", tests, 8000, out)


def test_nothing_of_the_corpus_is_lost(en_vi):
    _, _, manifest = en_vi
    lines = {name: facts["lines"] for name, facts in manifest["sets"].items()}
    assert lines == {"train": 137_438, "valid": 1_553, "test": 1_268, "test1": 1_255}
    assert manifest["vocab_actual"] == 8000


def test_subwords_give_the_text_back(en_vi):
    _, out, _ = en_vi
    for lang in ("en", "vi"):
        model = load_subwords(out, lang)
        lines = (out / "text" / f"train.{lang}").read_text().splitlines()
        assert model.decode(model.encode(lines)) == lines


def test_references_are_the_raw_text(en_vi):
    data, out, _ = en_vi
    raw = (data / "tst2013.vi").read_text().splitlines()
    kept = (out / "references" / "test.vi").read_text().splitlines()
    assert [" ".join(line.split()) for line in raw] == kept


def test_a12_karpathys_split_of_flickr8k(tmp_path):
    annotations = Path(os.environ["DATA"]) / "flickr8k" / "dataset_flickr8k.json"
    manifest = prepare_captions({"": annotations}, tmp_path, min_count=2)
    counts = {name: split["captions"] for name, split in manifest["splits"].items()}
    assert counts == {"train": 30_000, "valid": 5000, "test": 5000}
    assert manifest["rows"] == 4512


def test_people_score_as_the_coco_evaluation_scores_them(tmp_path):
    """Each image's first caption against its others, on COCO's val2017."""
    path = Path(os.environ["DATA"]) / "coco_val2017_captions" / "captions_val2017.json"
    content = json.loads(path.read_text())
    first: dict[int, str] = {}
    others = []
    for row in content["annotations"]:
        if first.setdefault(row["image_id"], row["caption"]) != row["caption"]:
            others.append({name: row[name] for name in ("image_id", "caption")})
    results = [{"image_id": image, "caption": caption} for image, caption in first.items()]
    (tmp_path / "results.json").write_text(json.dumps(results))
    (tmp_path / "refs.json").write_text(json.dumps(content | {"annotations": others}))
    scores = score(tmp_path / "results.json", tmp_path / "refs.json")["scores"]
    assert scores["CIDEr-D"] == pytest.approx(scores["CIDEr-D (fast)"], abs=1e-6)
    assert len(scores) == 8
