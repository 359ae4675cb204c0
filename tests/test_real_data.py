"""What only real data can show; DATA names the folder that holds the sets."""

import os
from pathlib import Path

import pytest

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
