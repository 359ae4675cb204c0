"""The fast CIDEr-D is pycocoevalcap's."""

import os
import random
from pathlib import Path

import numpy as np
import pytest
from pycocoevalcap.cider.cider import Cider

from captioning.ciderd import CiderD
from captioning.prepare import read_splits
from captioning.tokens import simple_tokenize
from fairseq_plugins.errors import UserError

A2 = {
    1: ["a cat on a mat", "a cat sits on a mat"],
    2: ["two dogs run in the snow", "dogs in snow"],
    3: ["a man rides a red bike", "man on a bike"],
    4: ["a bowl of hot soup", "soup in a bowl"],
}


def random_captions(seed: int, images: int, words: int = 30):
    rng = random.Random(seed)

    def caption():
        return " ".join(f"w{rng.randrange(words)}" for _ in range(rng.randint(1, 9)))

    references = {7 * i: [caption() for _ in range(rng.randint(1, 5))] for i in range(images)}
    outputs = {i: [rng.choice([caption(), captions[0]])] for i, captions in references.items()}
    outputs[0], outputs[7] = [""], ["new words that no reference has words that"]
    return references, outputs


def both(references, outputs):
    _, theirs = Cider().compute_score(references, outputs)
    ids = list(references)
    return theirs, CiderD(references).score(ids, [outputs[i][0] for i in ids])


@pytest.mark.parametrize("seed", range(5))
def test_random_captions(seed):
    theirs, ours = both(*random_captions(seed, 40))
    assert theirs.max() > 1
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)


@pytest.mark.data
def test_real_captions():
    path = Path(os.environ["DATA"]) / "flickr8k" / "dataset_flickr8k.json"
    references: dict[int, list[str]] = {}
    for split in read_splits({"": path}, "karpathy").values():
        for _, image, caption in split.captions:
            references.setdefault(image, []).append(simple_tokenize(caption))
    outputs = {image: [captions.pop()] for image, captions in references.items()}
    np.testing.assert_allclose(*both(references, outputs), rtol=0, atol=1e-6)


def test_a02_the_end_token_counts_as_a_word():
    """A caption that stops early loses more when its end counts."""
    cut, whole = "a cat on a", "a cat on a mat"
    plain = CiderD(A2).score([1, 1], [cut, whole])
    np.testing.assert_allclose(plain, [5.09, 7.14], atol=0.005)
    ended = CiderD(A2, end=True).score([1, 1], [cut, whole], [False, True])
    np.testing.assert_allclose(ended, [4.40, 7.79], atol=0.005)


def test_a03_a_batch_of_one_image_has_a_reward_of_its_own():
    references, _ = random_captions(1, 30)
    scorer = CiderD(references, end=True)
    alone = scorer.score([14], [references[14][0]])
    assert alone[0] > 0
    among = scorer.score([0, 14, 14, 21], ["w1 w2", references[14][0], "w3", "w4"])
    assert among[1] == alone[0]


def test_saved_and_loaded(tmp_path):
    references, outputs = random_captions(3, 30)
    scorer = CiderD(references, end=True)
    scorer.save(tmp_path / "train.npz")
    loaded = CiderD.load(tmp_path / "train.npz")
    ids, captions = list(outputs), [captions[0] for captions in outputs.values()]
    assert (loaded.score(ids, captions) == scorer.score(ids, captions)).all()
    assert loaded.references(14) == [f"{caption} </s>" for caption in references[14]]


def test_faults_are_one_line(tmp_path):
    with pytest.raises(UserError, match="image 2 has no reference"):
        CiderD({1: ["a"], 2: []})
    with pytest.raises(UserError, match="image 9: no reference captions"):
        CiderD(A2).score([9], ["a"])
    (tmp_path / "x.npz").write_bytes(b"no")
    with pytest.raises(UserError, match=r"x\.npz: not readable.*captioning prepare"):
        CiderD.load(tmp_path / "x.npz")
