import random

import pytest

from tests.helpers import fairseq


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """40 sentence pairs over 20 words, binarised by fairseq with one dictionary."""
    folder = tmp_path_factory.mktemp("data")
    rng = random.Random(1)
    for name, count in (("train", 40), ("valid", 8), ("test", 8)):
        for lang in "ab":
            sentences = [
                " ".join(f"{lang}{rng.randrange(10)}" for _ in range(rng.randint(2, 9)))
                for _ in range(count)
            ]
            (folder / f"{name}.{lang}").write_text("".join(s + "\n" for s in sentences))
    prefixes = [f"--{name}pref={folder / name}" for name in ("train", "valid", "test")]
    out = folder / "bin"
    fairseq(
        "preprocess", "-s", "a", "-t", "b", *prefixes, f"--destdir={out}", "--joined-dictionary"
    )
    return out
