"""CIDEr-D against pycocoevalcap's ``Cider``, which is CIDEr-D: a test set, and a reward's batch.

python -m benchmarks.ciderd                     on made-up captions
python -m benchmarks.ciderd --references FILE   on COCO's annotations, each image's first as output
"""

import json
from collections import defaultdict
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from pycocoevalcap.cider.cider import Cider

from benchmarks.measure import in_turns, ratios, report
from captioning.ciderd import CiderD
from captioning.tokens import tokenize


def made_up(images: int) -> dict[int, list[str]]:
    """Return six captions an image, of words as frequent as those of a language."""
    rng = np.random.default_rng(1)
    ids = np.minimum(rng.zipf(1.3, (images, 6, 10)), 8000)
    return {
        image: [" ".join(map(str, caption[: rng.integers(7, 11)])) for caption in group]
        for image, group in enumerate(ids)
    }


def read(path: Path, images: int) -> dict[int, list[str]]:
    """Return image id -> tokenised captions of the first *images* with two or more."""
    content = json.loads(path.read_text(encoding="utf-8"))["annotations"]
    tokens, _ = tokenize([row["caption"] for row in content])
    captions: dict[int, list[str]] = defaultdict(list)
    for row, caption in zip(content, tokens, strict=True):
        captions[row["image_id"]].append(caption)
    return dict([item for item in captions.items() if len(item[1]) > 1][:images])


def main(
    references: Annotated[Path | None, typer.Option(help="COCO's annotations.")] = None,
    images: Annotated[int, typer.Option(help="Images scored.")] = 5000,
    batch: Annotated[int, typer.Option(help="Samples of a reward's batch, five an image.")] = 250,
    rounds: Annotated[int, typer.Option(help="Calls of each, in turns.")] = 5,
    as_json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """Seconds a call, as ratios to pycocoevalcap's."""
    captions = read(references, images) if references else made_up(images)
    outputs = {image: group[:1] for image, group in captions.items()}
    known = {image: group[1:] for image, group in captions.items()}
    flat = [group[0] for group in outputs.values()]
    prepared = CiderD(known)
    theirs, ours = Cider().compute_score(known, outputs)[1], prepared.score([*outputs], flat)
    difference = float(np.abs(theirs - ours).max())
    assert difference < 1e-6, difference

    few = [*known][: batch // 5]
    ids = [image for image in few for _ in range(5)]
    texts = [known[image][n % len(known[image])] for n, image in enumerate(ids)]
    samples = {n: [text] for n, text in enumerate(texts)}
    of_sample = {n: known[image] for n, image in enumerate(ids)}
    whole = {
        "pycocoevalcap": lambda: Cider().compute_score(known, outputs),
        "ours": lambda: CiderD(known).score([*outputs], flat),
        "ours, prepared": lambda: prepared.score([*outputs], flat),
    }
    part = {
        "batch, pycocoevalcap": lambda: Cider().compute_score(of_sample, samples),
        "batch, ours, prepared": lambda: prepared.score(ids, texts),
    }
    rows = ratios(in_turns(whole, rounds), "pycocoevalcap")
    rows |= ratios(in_turns(part, 4 * rounds), "batch, pycocoevalcap")
    facts = {"images": len(known), "samples": len(samples), "largest_difference": difference}
    report("CIDEr-D", rows, as_json, **facts, references=str(references or "made up"))


if __name__ == "__main__":
    typer.run(main)
