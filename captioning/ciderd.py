"""CIDEr-D, vectorised: equal to pycocoevalcap's class ``Cider``, references prepared once.

Vedantam et al., "CIDEr: Consensus-based Image Description Evaluation" (CVPR 2015), section 7:
tf-idf vectors of n-grams, n = 1..4, clipped cosine similarity, a Gaussian penalty on the
difference in length, the mean over n and over references, times 10.
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

import numpy as np

from fairseq_plugins.errors import UserError

N = 4
SIGMA = 6.0  # of the length penalty, in bigrams
END = "</s>"
SHIFT = 32  # two ids below 2**31 make one key


def _grams(words: np.ndarray, lengths: np.ndarray, identify) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return for n = 1..N the (caption, n-gram id) of every n-gram.

    Args:
        words: word ids of all captions, one after the other.
        lengths: words of each caption.
        identify: (n, keys of n-grams) -> ids; a key is the id of the first n - 1 words and the last
            word.
    """
    caption = np.repeat(np.arange(len(lengths)), lengths)
    left = np.repeat(np.cumsum(lengths), lengths) - np.arange(len(words))  # words from here on
    ids, result = words, [(caption, words)]
    for n in range(2, N + 1):
        starts = np.flatnonzero(left >= n)
        grown = np.zeros_like(ids)
        grown[starts] = identify(n, ids[starts] << SHIFT | words[starts + n - 1])
        ids = grown
        result.append((caption[starts], ids[starts]))
    return result


def _count(caption: np.ndarray, gram: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (caption, n-gram, how often), each pair once, sorted."""
    keys, counts = np.unique(caption << SHIFT | gram, return_counts=True)
    return keys >> SHIFT, keys & (1 << SHIFT) - 1, counts


def _sum(groups: np.ndarray, values: np.ndarray, count: int) -> np.ndarray:
    """Return the sum of *values* a group, (count,), float also when there is nothing to add."""
    return np.bincount(groups, values, minlength=count).astype(float, copy=False)


class CiderD:
    """Scores captions against the references of their images.

    Document frequencies are those of the given references, all of them: for a reward, of the whole
    training split.

    Args:
        references: image id -> its captions, tokens separated by spaces.
        end: count an end token as a last word of every caption, as a reward must (without it,
            trained captions stop at "... with a").

    Raises:
        UserError: an image without references.
    """

    def __init__(self, references: Mapping[int, Sequence[str]], *, end: bool = False):
        if empty := [image for image, captions in references.items() if not captions]:
            raise UserError(f"image {empty[0]} has no reference caption: CIDEr-D needs one or more")
        self.end = end
        self.images = np.array(sorted(references), dtype=np.int64)
        counts = np.array([len(references[image]) for image in self.images])
        row = np.repeat(np.arange(len(counts)), counts)  # image of each reference
        split = [self._split(c) for image in self.images for c in references[image]]
        self.words = {word: i for i, word in enumerate(dict.fromkeys(chain.from_iterable(split)))}
        words, lengths = self._ids(split, {})
        self.keys: list[np.ndarray] = [np.arange(len(self.words))]
        tokens = words.astype(np.int32)

        def identify(n, keys):
            known, ids = np.unique(keys, return_inverse=True)
            self.keys.append(known)
            return ids

        self.data = {"tokens": tokens, "lengths": lengths, "first": np.cumsum(counts) - counts}
        self.data["counts"] = counts
        for n, (reference, gram) in enumerate(_grams(words, lengths, identify), 1):
            reference, gram, tf = _count(reference, gram)
            key = row[reference] << SHIFT | gram
            order = np.argsort(key, kind="stable")
            key, reference, gram, tf = key[order], reference[order], gram[order], tf[order]
            self.data[f"key{n}"], self.data[f"reference{n}"] = key, reference.astype(np.int32)
            self.data[f"tf{n}"] = tf.astype(np.int32)
            seen = np.unique(key) & (1 << SHIFT) - 1
            self.data[f"df{n}"] = np.bincount(seen, minlength=len(self.keys[n - 1]))
        self._weigh()

    def _weigh(self) -> None:
        """Make tf-idf weights and norms of what :attr:`data` counts."""
        self.log_images = np.log(float(len(self.images)))
        self.idf, self.weights, self.norms = [], [], []
        for n in range(1, N + 1):
            idf = self.log_images - np.log(np.maximum(1, self.data[f"df{n}"]))
            self.idf.append(np.append(idf, self.log_images))  # the last: an n-gram never seen
            weight = self.data[f"tf{n}"] * idf[self.data[f"key{n}"] & (1 << SHIFT) - 1]
            reference = self.data[f"reference{n}"]
            squares = _sum(reference, weight**2, len(self.data["lengths"]))
            self.weights.append(weight)
            self.norms.append(np.sqrt(squares))

    def score(
        self, ids: Sequence[int], captions: Sequence[str], ended: Sequence[bool] | None = None
    ) -> np.ndarray:
        """Return the score of each caption, (captions,), on pycocoevalcap's scale (0 to 10).

        Args:
            ids: image of each caption; one image may have several.
            captions: tokens separated by spaces.
            ended: with ``end``, which captions reached their end token; None: all.

        Raises:
            UserError: an image without references here.
        """
        ids = np.asarray(ids, dtype=np.int64)
        row = np.searchsorted(self.images, ids).clip(max=len(self.images) - 1)
        if (unknown := self.images[row] != ids).any():
            raise UserError(f"image {ids[unknown][0]}: no reference captions of it here")
        ended = [True] * len(captions) if ended is None else ended
        new: dict[str, int] = {}
        split = [self._split(c, e) for c, e in zip(captions, ended, strict=True)]
        words, lengths = self._ids(split, new)

        # every caption against every reference of its image: pairs
        counts = self.data["counts"][row]
        start = np.cumsum(counts) - counts  # a caption's first pair
        pair_caption = np.repeat(np.arange(len(ids)), counts)
        pair_reference = (self.data["first"][row] - start)[pair_caption] + np.arange(counts.sum())
        total = np.zeros(len(pair_caption))
        for n, (caption, gram) in enumerate(_grams(words, lengths, self._identify), 1):
            caption, gram, tf = _count(caption, gram)
            idf = self.idf[n - 1]
            weight = tf * idf[np.minimum(gram, len(idf) - 1)]
            norm = np.sqrt(_sum(caption, weight**2, len(ids)))
            key = row[caption] << SHIFT | gram
            first = np.searchsorted(self.data[f"key{n}"], key, "left")
            matches = np.searchsorted(self.data[f"key{n}"], key, "right") - first
            mine = np.repeat(np.arange(len(key)), matches)
            theirs = np.arange(matches.sum()) + (first - np.cumsum(matches) + matches)[mine]
            reference_weight = self.weights[n - 1][theirs]
            reference = self.data[f"reference{n}"][theirs]
            pair = start[caption[mine]] + reference - self.data["first"][row[caption[mine]]]
            product = np.minimum(weight[mine], reference_weight) * reference_weight
            similarity = _sum(pair, product, len(total))
            both = norm[pair_caption] * self.norms[n - 1][pair_reference]
            total += np.divide(similarity, both, out=similarity, where=both > 0)
        bigrams = (lengths - 1).clip(min=0)[pair_caption]
        delta = bigrams - (self.data["lengths"] - 1).clip(min=0)[pair_reference]
        total *= np.exp(-(delta**2.0) / (2 * SIGMA**2))
        return 10 / N * _sum(pair_caption, total, len(ids)) / counts

    def references(self, image_id: int) -> list[str]:
        """Return an image's reference captions, tokens separated by spaces."""
        if not hasattr(self, "_spelled"):
            self._spelled = np.array(list(self.words)), np.cumsum(self.data["lengths"])
        spelled, ends = self._spelled
        row = int(np.searchsorted(self.images, image_id))
        first = int(self.data["first"][row])
        captions = range(first, first + int(self.data["counts"][row]))
        starts = ends - self.data["lengths"]
        tokens = self.data["tokens"]
        return [" ".join(spelled[tokens[starts[c] : ends[c]]]) for c in captions]

    def save(self, path: Path) -> None:
        """Write everything to a ``.npz`` file."""
        words = np.frombuffer("\n".join(self.words).encode(), dtype=np.uint8)
        grams = {f"grams{n}": keys for n, keys in enumerate(self.keys, 1)}
        # an open file: numpy appends .npz to a name
        with open(path, "wb") as file:
            np.savez(file, words=words, images=self.images, end=self.end, **grams, **self.data)

    @classmethod
    def load(cls, path: Path) -> "CiderD":
        """Read what :meth:`save` wrote.

        Raises:
            UserError: no such file, or not such a file.
        """
        try:
            with np.load(path) as file:
                arrays = dict(file)
            scorer = cls.__new__(cls)
            words = arrays.pop("words").tobytes().decode().split("\n")
            scorer.words = {word: i for i, word in enumerate(words)}
            scorer.images, scorer.end = arrays.pop("images"), bool(arrays.pop("end"))
            scorer.keys = [arrays.pop(f"grams{n}") for n in range(1, N + 1)]
        except (OSError, KeyError, ValueError) as error:
            raise UserError(
                f"{Path(path).resolve()}: not readable references ({error}): "
                "make them with `fairseq-share captioning prepare`"
            ) from error
        scorer.data = arrays
        scorer._weigh()
        return scorer

    def _split(self, caption: str, ended: bool = True) -> list[str]:
        words = caption.split()
        return [*words, END] if self.end and ended else words

    def _ids(self, captions: list[list[str]], new: dict[str, int]) -> tuple[np.ndarray, np.ndarray]:
        """Return (word ids, lengths); words that are not known get ids in *new*."""
        known, count = self.words, len(self.words)
        ids = [
            known[word] if word in known else new.setdefault(word, count + len(new))
            for words in captions
            for word in words
        ]
        return np.array(ids, dtype=np.int64), np.array(list(map(len, captions)), dtype=np.int64)

    def _identify(self, n: int, keys: np.ndarray) -> np.ndarray:
        """Return ids of n-grams; those that no reference has get ids behind all others."""
        known = self.keys[n - 1]
        ids = np.searchsorted(known, keys)
        missing = known[ids.clip(max=len(known) - 1)] != keys if len(known) else keys >= 0
        ids[missing] = len(known) + np.unique(keys[missing], return_inverse=True)[1]
        return ids
