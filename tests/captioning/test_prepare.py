"""Annotations in, what training reads out."""

import json

import numpy as np
import pytest
from fairseq.data import Dictionary, data_utils

from captioning import prepare as module
from captioning.ciderd import CiderD
from captioning.prepare import pictures, prepare, read_splits
from captioning.tokens import NAMES, java, ptb_tokenize, simple_tokenize
from fairseq_plugins.errors import UserError
from tests.captioning.conftest import karpathy


def write(path, content):
    path.write_text(json.dumps(content))
    return path


def image(number, split, caption="A dog runs."):
    sentences = [{"sentid": number, "raw": caption}]
    return {"imgid": number, "filename": f"{number}.jpg", "split": split, "sentences": sentences}


def coco(*ids, **captions):
    rows = [
        {"id": 10 * i, "image_id": i, "caption": captions.get("caption", "A cat.")} for i in ids
    ]
    return {"images": [{"id": i, "file_name": f"{i}.jpg"} for i in ids], "annotations": rows}


SPLITS = ["train"] * 2 + ["restval"] * 3 + ["val", "test"]


def test_a12_restval_is_training_data(tmp_path):
    path = write(tmp_path / "d.json", {"images": [image(i, s) for i, s in enumerate(SPLITS)]})
    counts = {n: len(s.pictures) for n, s in read_splits({"": path}, "karpathy").items()}
    assert counts == {"train": 5, "valid": 1, "test": 1}
    bare = read_splits({"": path}, "karpathy-without-restval")
    assert len(bare["train"].pictures) == 2


def test_a12_an_image_in_two_splits_is_refused(tmp_path):
    twice = [image(i, s) for i, s in enumerate(SPLITS)] + [image(0, "test")]
    path = write(tmp_path / "d.json", {"images": twice})
    with pytest.raises(UserError, match="image 0 is in train and in test"):
        read_splits({"": path}, "karpathy")
    files = {"train": (1, 2), "valid": (3,), "test": (2,)}
    paths = {name: write(tmp_path / f"{name}.json", coco(*ids)) for name, ids in files.items()}
    with pytest.raises(UserError, match="image 2 is in train and in test"):
        read_splits(paths, "files")


def test_coco_files_and_karpathy_with_coco_ids(tmp_path):
    files = {"train": (1, 2), "valid": (3,), "test": (4,)}
    paths = {name: write(tmp_path / f"{name}.json", coco(*ids)) for name, ids in files.items()}
    manifest = prepare(paths, tmp_path / "out", split_rule="files", min_count=1)
    assert manifest["splits"]["train"] == {"images": 2, "captions": 2}
    found = pictures(tmp_path / "out", tmp_path)
    assert found == {i: tmp_path / f"{i}.jpg" for i in (1, 2, 3, 4)}

    images = [
        image(i, s) | {"cocoid": 100 + i, "filepath": "val2014"} for i, s in enumerate(SPLITS)
    ]
    path = write(tmp_path / "d.json", {"images": images})
    split = read_splits({"": path}, "karpathy")["train"]
    assert split.pictures[100] == "val2014/0.jpg"


@pytest.mark.parametrize(
    ("content", "rule", "message"),
    [
        ("[", "karpathy", "not JSON"),
        ('{"images": [{"id": 1}], "annotations": []}', "karpathy", "not annotations of the form"),
        ('{"images": [], "annotations": []}', "files", "name the splits"),
        ('{"images": []}', "karpathy", "no captions for train"),
        ("{}", "by-hand", "choose from karpathy"),
    ],
)
def test_faults_are_one_line(content, rule, message, tmp_path):
    (tmp_path / "d.json").write_text(content)
    with pytest.raises(UserError, match=message):
        prepare({"": tmp_path / "d.json"}, tmp_path / "out", split_rule=rule)
    assert not (tmp_path / "out").exists()


def test_folder_that_is_not_ours_is_left_alone(tmp_path, annotations):
    (tmp_path / "mine.txt").write_text("keep")
    with pytest.raises(UserError, match="files that are not ours"):
        prepare({"": annotations}, tmp_path)
    assert (tmp_path / "mine.txt").read_text() == "keep"


def test_what_is_written(data):
    words = Dictionary.load(str(data / "dict.txt"))
    texts = data_utils.load_indexed_dataset(str(data / "train"), words)
    ids = np.load(data / "train.image_ids.npy")
    raw = json.loads((data / "references" / "train.json").read_text())
    assert len(texts) == len(ids) == len(raw["annotations"]) == 48 * 3
    for i in (0, 1, 77):
        assert raw["annotations"][i]["image_id"] == ids[i]
        spoken = raw["annotations"][i]["caption"].lower().rstrip(".")
        assert words.string(texts[i]) == spoken
    assert CiderD.load(data / "ciderd" / "train.npz").end
    assert not CiderD.load(data / "ciderd" / "valid.npz").end
    manifest = json.loads((data / "manifest.json").read_text())
    assert manifest["tokenizer"] == NAMES[java() is not None]


def test_rare_words_are_unknown_and_a_second_run_does_nothing(tmp_path, monkeypatch):
    content = karpathy()
    content["images"][0]["sentences"][0]["raw"] = "a zebra"
    path = write(tmp_path / "d.json", content)
    manifest = prepare({"": path}, tmp_path / "out", min_count=2)
    assert manifest["unknown"]["train"] > 0
    assert "zebra" not in (tmp_path / "out" / "dict.txt").read_text()
    monkeypatch.setattr(module, "read_splits", None)
    assert prepare({"": path}, tmp_path / "out", min_count=2) == manifest
    with pytest.raises(TypeError):
        prepare({"": path}, tmp_path / "out", min_count=1)


def test_subwords_give_the_text_back(tmp_path, annotations):
    from fairseq_plugins.subwords import load_subwords

    prepare({"": annotations}, tmp_path / "out", units="bpe", vocab_size=60)
    words = Dictionary.load(str(tmp_path / "out" / "dict.txt"))
    assert len(words) == 60
    texts = data_utils.load_indexed_dataset(str(tmp_path / "out" / "train"), words)
    pieces = [words[i] for i in texts[0].tolist()[:-1]]
    assert load_subwords(tmp_path / "out").decode(pieces) == "a red dog on the grass"


class TestTokens:
    LINES = ("A man's dog, running!", "line\nbreak", "", 'He said "no" (twice).')

    @pytest.mark.skipif(java() is None, reason="no Java")
    def test_stanfords(self):
        tokens = ptb_tokenize(self.LINES)
        assert tokens[0] == "a man 's dog running"
        assert tokens[1:3] == ["line break", ""]

    def test_without_java(self, monkeypatch):
        assert simple_tokenize(self.LINES[0]) == "a man 's dog running"
        assert simple_tokenize(self.LINES[3]) == "he said no ( twice )"


def test_sentences_without_numbers(tmp_path):
    content = karpathy()
    for image in content["images"]:
        for sentence in image["sentences"]:
            del sentence["sentid"]
    path = tmp_path / "dataset.json"
    path.write_text(json.dumps(content))
    prepare({"": path}, tmp_path / "out", min_count=1)
    references = json.loads((tmp_path / "out" / "references" / "test.json").read_text())
    numbers = [row["id"] for row in references["annotations"]]
    assert len(set(numbers)) == len(numbers) == 18
