import json

import numpy as np
import pytest

from captioning.prepare import prepare
from captioning.store_writer import StoreWriter

COLOURS = ("red", "blue", "green", "black")
THINGS = ("dog", "cat", "bird", "car", "boat")
PLACES = ("on the grass", "in the snow", "near a house")
MADE_BY = {"backbone": "made_up", "weights": "random", "weights_hash": "0", "prefix_tokens": 0}


def karpathy(pictures: int = 60, captions: int = 3) -> dict:
    """Return annotations in Karpathy's form; what a picture shows follows from its number."""
    images = []
    for i in range(pictures):
        colour, thing = COLOURS[i % 4], THINGS[i // 4 % 5]
        texts = [f"A {colour} {thing} {PLACES[(i + n) % 3]}." for n in range(captions)]
        split = {58: "val", 59: "test"}.get(i, ("train", "restval")[i % 2])
        if i % 10 == 8:
            split = "val"
        if i % 10 == 9:
            split = "test"
        sentences = [{"sentid": 10 * i + n, "raw": text} for n, text in enumerate(texts)]
        name = f"{i}.png"
        images.append({"imgid": i, "filename": name, "split": split, "sentences": sentences})
    return {"dataset": "made up", "images": images}


def write_store(folder, pictures: int = 60, grid=(2, 3), **other):
    """Write cells of 20 channels that show the colour and the thing."""
    rng = np.random.default_rng(1)
    manifest = MADE_BY | {"transform": {"size": [32, 32]}, "channels": 20, "grid": grid} | other
    with StoreWriter(folder, manifest, "float16") as writer:
        for i in range(pictures):
            cells = rng.normal(0, 0.1, (grid[0] * grid[1], 20))
            cells[:, i % 4] += 1
            cells[i % len(cells), 4 + i // 4 % 5] += 2
            writer.add([i], [cells])
        writer.finish()
    return folder


@pytest.fixture(scope="session")
def annotations(tmp_path_factory):
    path = tmp_path_factory.mktemp("annotations") / "dataset.json"
    path.write_text(json.dumps(karpathy()))
    return path


@pytest.fixture(scope="session")
def data(tmp_path_factory, annotations):
    folder = tmp_path_factory.mktemp("captions") / "data"
    prepare({"": annotations}, folder, min_count=1)
    return folder


@pytest.fixture(scope="session")
def store(tmp_path_factory):
    return write_store(tmp_path_factory.mktemp("features") / "store")
