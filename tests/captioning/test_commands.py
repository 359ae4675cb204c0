"""fairseq's commands and ours on made-up pictures, as a user types them."""

import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from fairseq_plugins.tasks.captioning import CaptioningConfig, CaptioningTask
from tests.captioning.conftest import karpathy, write_store
from tests.helpers import USER_DIR, fairseq, share


def options(data, store, *more):
    given = [str(data), "--user-dir", USER_DIR, "--task", "captioning", "--cpu"]
    given += ["--features", str(store)] if store else []
    return [*given, "--required-batch-size-multiple", "1", *map(str, more)]


BACKBONE = ["--backbone", "test_vit", "--backbone-checkpoint", "random"]
SIZE = ["--backbone-image-size", "32", "--backbone-squash"]
TRAIN = ["--arch", "share_transformer_tiny", "--weight-source", "veps", "--factor-dim", "16"]
TRAIN += ["--cell-positions", "--optimizer", "adam", "--lr", "0.003", "--batch-size", "16"]
TRAIN += ["--log-format", "json", "--seed", "1", "--eval-ciderd", "--num-workers", "0"]
TRAIN += ["--best-checkpoint-metric", "ciderd", "--maximize-best-checkpoint-metric"]


@pytest.fixture(scope="module")
def trained(data, store, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    more = ["--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1"]
    more += ["--max-epoch", "24", "--validate-interval", "8", "--save-interval", "8"]
    result = fairseq("train", *options(data, store, *TRAIN, *more, "--save-dir", folder))
    assert '"valid_ciderd"' in result.stderr + result.stdout
    return folder


class TestFairseq:
    def test_validation_reports_ciderd_and_the_best_is_kept(self, trained):
        state = torch.load(trained / "checkpoint_best.pt", weights_only=True)
        assert state["extra_state"]["best"] > 300

    def test_generate_one_caption_a_picture(self, data, store, trained):
        both = f"{trained / 'checkpoint_best.pt'}:{trained / 'checkpoint8.pt'}"
        line = options(data, store, "--path", both, "--beam", "3", "--gen-subset", "test")
        out = fairseq("generate", *line).stdout
        assert out.count("\nH-") == 6
        line = options(data, store, "--path", trained / "checkpoint_best.pt", "--batch-size", "4")
        said = fairseq("validate", *line)
        assert "ciderd" in said.stdout + said.stderr

    def test_resume_and_self_critical_from_it_with_one_flag(self, data, store, trained, tmp_path):
        more = ["--criterion", "self_critical", "--max-epoch", "2", "--lr", "0.0005"]
        more += ["--finetune-from-model", trained / "checkpoint_best.pt", "--save-dir", tmp_path]
        out = fairseq("train", *options(data, store, *TRAIN, *more))
        rows = [json.loads(line[line.index("{") :]) for line in _logged(out, "train")]
        assert rows[0]["train_reward"] and rows[0]["train_lr"] == "0.0005"
        assert {"train_baseline", "train_advantage", "train_length", "train_no_end"} <= set(rows[0])
        more[3] = "3"
        out = fairseq("train", *options(data, store, *TRAIN, *more))
        epochs = [json.loads(line[line.index("{") :])["epoch"] for line in _logged(out, "train")]
        assert epochs == [3]

    def test_hydra(self, data, store, tmp_path):
        line = [f"common.user_dir={USER_DIR}", "common.cpu=true", "+task._name=captioning"]
        line += [f"+task.data={data}", f"+task.features={store}"]
        line += ["+model._name=share_transformer_tiny", "optimizer=adam", "+optimizer.lr=[0.003]"]
        line += ["criterion=cross_entropy", "dataset.batch_size=16", "optimization.max_update=2"]
        line += ["dataset.required_batch_size_multiple=1", "dataset.num_workers=0"]
        line += [f"checkpoint.save_dir={tmp_path / 'c'}", f"hydra.run.dir={tmp_path}"]
        fairseq("hydra_train", *line)
        assert (tmp_path / "c" / "checkpoint_last.pt").is_file()

    def test_averaged(self, trained, tmp_path):
        share("average", f"--inputs={trained}", "--last=2", f"--output={tmp_path / 'a.pt'}")
        sizes = json.loads(share("sizes", tmp_path / "a.pt", "--json").stdout)
        assert sizes["parameters"] > 0 and sizes["columns"]


def _logged(result, kind):
    lines = (result.stderr + result.stdout).splitlines()
    return [line for line in lines if f"| {kind} | {{" in line]


class TestOurs:
    def test_generate_score_and_attention(self, data, store, trained, tmp_path):
        results, attention = tmp_path / "r.json", tmp_path / "a.json"
        checkpoint = f"--checkpoint={trained / 'checkpoint_best.pt'}"
        share(
            "captioning", "generate", checkpoint, f"--output={results}", f"--attention={attention}"
        )
        rows = json.loads(results.read_text())
        assert sorted(row["image_id"] for row in rows) == [9, 19, 29, 39, 49, 59]
        assert all(set(row) == {"image_id", "caption"} for row in rows)
        content = json.loads(attention.read_text())
        one = content["images"]["9"]
        assert content["grid"] == [2, 3] and " ".join(one["words"]) == rows[0]["caption"]
        assert {len(m) for m in one["maps"]} == {6} and max(map(max, one["maps"])) == 255
        line = ["captioning", "score", f"--results={results}", "--json"]
        line += [f"--annotations={data / 'references' / 'test.json'}"]
        rows = json.loads(share(*line).stdout)["scores"]
        scores = {row["name"]: row["score"] for row in rows if row["signature"]}
        assert scores["CIDEr-D"] == pytest.approx(scores["CIDEr-D (fast)"])
        assert scores["CIDEr-D"] > 100

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"--split": "train2"}, "no such split"),
            ({"--data": "nowhere"}, "nowhere"),
            ({"--features": "nowhere"}, "no finished feature store"),
            ({"--checkpoint": "nowhere.pt"}, "no such checkpoint"),
        ],
    )
    def test_faults_are_one_line(self, change, message, trained, tmp_path):
        line = {"--checkpoint": trained / "checkpoint_best.pt", "--output": tmp_path / "r.json"}
        result = share(
            "captioning", "generate", *[f"{k}={v}" for k, v in (line | change).items()], check=False
        )
        assert result.returncode == 1 and "Traceback" not in result.stderr
        assert message in result.stderr.strip().splitlines()[-1]
        assert not (tmp_path / "r.json").exists()

    def test_a13_a_store_of_another_backbone(self, data, trained, tmp_path):
        other = write_store(tmp_path / "other", backbone="swin_tiny", weights_hash="77")
        result = fairseq(
            "generate",
            *options(data, other, "--path", trained / "checkpoint_best.pt"),
            check=False,
        )
        last = result.stderr.strip().splitlines()[-1]
        assert result.returncode == 1 and "made_up" in last and "swin_tiny" in last

    def test_pictures_missing_from_the_store(self, data, tmp_path):
        few = write_store(tmp_path / "few", pictures=50)
        result = fairseq("train", *options(data, few, *TRAIN, "--max-update", "1"), check=False)
        last = result.stderr.strip().splitlines()[-1]
        assert result.returncode == 1 and "pictures of" in last and "captioning features" in last


def test_pictures_that_were_broken_are_left_out_and_named(data, tmp_path, capsys):
    few = write_store(tmp_path / "few", pictures=50)
    manifest = json.loads((few / "manifest.json").read_text())
    manifest["skipped"] = {str(image): "broken" for image in range(50, 60)}
    (few / "manifest.json").write_text(json.dumps(manifest))
    task = CaptioningTask(CaptioningConfig(data=str(data), features=str(few)))
    task.load_dataset("test")
    assert len(task.dataset("test")) == 5  # without 59
    assert "test is without 1 of its 6 pictures, such as image 59" in capsys.readouterr().err


class TestEndToEnd:
    """From picture files, through a backbone."""

    @pytest.fixture(scope="class")
    def images(self, tmp_path_factory):
        folder = tmp_path_factory.mktemp("images")
        rng = np.random.default_rng(1)
        for image in karpathy()["images"]:
            pixels = rng.integers(0, 255, (32, 40, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / image["filename"])
        return folder

    def test_train_fine_tune_and_caption_a_file(self, data, images, tmp_path):
        more = ["--images", images, *BACKBONE, *SIZE, "--max-update", "4"]
        more += ["--criterion", "cross_entropy", "--finetune-backbone-after", "2"]
        more += ["--save-interval-updates", "2", "--save-dir", tmp_path, "--disable-validation"]
        fairseq("train", *options(data, None, *TRAIN, *more))
        states = [
            torch.load(tmp_path / name, weights_only=True)["model"]
            for name in ("checkpoint_1_2.pt", "checkpoint_2_4.pt")
        ]
        name = next(k for k in states[0] if ".backbone." in k and k.endswith("qkv.weight"))
        assert not torch.equal(states[0][name], states[1][name])
        checkpoint = f"--checkpoint={tmp_path / 'checkpoint_last.pt'}"
        out = share("captioning", "caption", checkpoint, images / "0.png", images / "1.png").stdout
        assert [line.split("\t")[0] for line in out.splitlines()] == [
            str(images / "0.png"),
            str(images / "1.png"),
        ]

    def test_a13_stored_and_live_features_give_one_caption(self, data, images, tmp_path):
        store = tmp_path / "store"
        line = ["captioning", "features", f"--images={images}", f"--data={data}", *BACKBONE]
        line += ["--image-size=32", "--squash", "--dtype=float32", f"--output={store}"]
        assert "60 pictures" in share(*line, "--workers=0").stdout
        more = ["--criterion", "cross_entropy", "--max-update", "20", "--save-dir", tmp_path]
        fairseq("train", *options(data, store, *TRAIN, *more, "--disable-validation"))
        checkpoint = f"--checkpoint={tmp_path / 'checkpoint_last.pt'}"
        results = tmp_path / "r.json"
        share("captioning", "generate", checkpoint, f"--output={results}")
        store.rename(tmp_path / "moved")  # `caption` needs no store
        live = share("captioning", "caption", checkpoint, images / "9.png").stdout.strip()
        assert live == json.loads(results.read_text())[0]["caption"]

    def test_a_broken_picture_is_named_in_one_line(self, data, images, tmp_path):
        shutil.copytree(images, tmp_path / "images")
        (tmp_path / "images" / "7.png").write_bytes(b"no picture")
        more = ["--images", tmp_path / "images", *BACKBONE, *SIZE, *TRAIN, "--num-workers", "1"]
        more += ["--max-epoch", "1", "--save-dir", tmp_path]
        result = fairseq("train", *options(data, None, *more), check=False)
        last = result.stderr.strip().splitlines()[-1]
        assert result.returncode == 1 and "7.png: not a readable picture" in last
        assert "Traceback" not in result.stderr

    def test_missing_pictures_and_both_ways_at_once(self, data, store, tmp_path):
        more = ["--images", tmp_path, *BACKBONE, *TRAIN, "--max-update", "1"]
        result = fairseq("train", *options(data, None, *more), check=False)
        assert result.returncode == 1 and "no such picture" in result.stderr.splitlines()[-1]
        result = fairseq("train", *options(data, store, *more), check=False)
        assert result.returncode == 1 and "one of two ways" in result.stderr.splitlines()[-1]
