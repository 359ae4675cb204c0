"""The demo's pictures: coloured shapes, drawn by code, and captions of our own grammar.

A scene is one or two groups of one to three equal shapes, one group beside or above the other, or
in a corner. Scenes of the validation and test pictures are not among those of training.
"""

import json
import random
from math import cos, pi, sin
from pathlib import Path
from typing import NamedTuple

from PIL import Image, ImageDraw
from tqdm import tqdm

from fairseq_plugins.files import atomic

COLOURS = {
    "red": (214, 48, 42),
    "green": (40, 150, 60),
    "blue": (45, 90, 210),
    "yellow": (240, 200, 40),
    "purple": (140, 60, 170),
    "black": (30, 30, 35),
}
SHAPES = {"circle": 0, "square": 4, "triangle": 3, "star": 5}  # corners
COUNTS = ("a", "two", "three")
PLACES = {  # centre of a group, as fractions of the picture
    "in the top left corner": (0.27, 0.24),
    "in the top right corner": (0.73, 0.24),
    "in the bottom left corner": (0.27, 0.76),
    "in the bottom right corner": (0.73, 0.76),
    "in the middle": (0.5, 0.5),
}
RELATIONS = {"above": ("below", 0.5, 0.25), "to the left of": ("to the right of", 0.25, 0.5)}


class Group(NamedTuple):
    """Equal shapes: how many, of which colour, of which shape."""

    count: int
    colour: str
    shape: str

    def __str__(self) -> str:
        return f"{COUNTS[self.count - 1]} {self.colour} {self.shape}{'s' * (self.count > 1)}"


class Scene(NamedTuple):
    """A group at a place, or two groups in a relation."""

    first: Group
    where: str
    second: Group | None = None

    def captions(self) -> list[str]:
        """Return five captions."""
        verb = "is" if self.first.count == 1 else "are"
        if self.second is None:
            said = f"{self.first} {self.where}"
            return [
                f"{said}.",
                f"There {verb} {said}.",
                f"{self.where.capitalize()} there {verb} {self.first}.",
                f"{self.where.capitalize()}, {self.first}.",
                f"The picture shows {said}.",
            ]
        back = RELATIONS[self.where][0]
        said = f"{self.first} {self.where} {self.second}"
        return [
            f"{said}.",
            f"There {verb} {said}.",
            f"{self.second} {back} {self.first}.",
            f"There {'is' if self.second.count == 1 else 'are'} {self.second} {back} {self.first}.",
            f"The picture shows {said}.",
        ]

    def draw(self, size: int, rng: random.Random) -> Image.Image:
        """Return the picture, (size, size), places and sizes varied a little."""
        shade = rng.randrange(225, 250)
        image = Image.new("RGB", (size * 2, size * 2), (shade, shade, shade - rng.randrange(12)))
        groups = [(self.first, PLACES.get(self.where))]
        if self.second is not None:
            x, y = RELATIONS[self.where][1:]
            groups = [(self.first, (x, y)), (self.second, (1 - x, 1 - y))]
        for group, (x, y) in groups:
            _draw_group(ImageDraw.Draw(image), group, x * 2 * size, y * 2 * size, 2 * size, rng)
        return image.resize((size, size), Image.Resampling.LANCZOS)


def _draw_group(pen, group: Group, x: float, y: float, side: int, rng: random.Random) -> None:
    x, y = (value + rng.uniform(-0.03, 0.03) * side for value in (x, y))
    step = 0.155 * side
    for number in range(group.count):
        radius = rng.uniform(0.062, 0.074) * side
        centre = x + (number - (group.count - 1) / 2) * step, y
        corners, fill = SHAPES[group.shape], COLOURS[group.colour]
        if not corners:
            pen.ellipse([c + r for r in (-radius, radius) for c in centre], fill)
        else:
            pen.polygon(_outline(corners, *centre, 1.2 * radius), fill)


def _outline(corners: int, x: float, y: float, radius: float) -> list[tuple[float, float]]:
    turns = [0.5 * radius, radius] if corners == 5 else [radius]  # a star has inner corners
    total = corners * len(turns)
    start = pi / 4 if corners == 4 else -pi / 2 - pi / total * (len(turns) - 1)
    angles = [start + 2 * pi * i / total for i in range(total)]
    radii = [turns[i % len(turns)] for i in range(total)]
    return [(x + r * cos(a), y + r * sin(a)) for r, a in zip(radii, angles, strict=True)]


def scene(rng: random.Random) -> Scene:
    """Return a scene at random."""
    groups = [
        Group(rng.randint(1, 3), rng.choice(list(COLOURS)), rng.choice(list(SHAPES)))
        for _ in range(2)
    ]
    if rng.random() < 0.4:
        return Scene(groups[0], rng.choice(list(PLACES)))
    return Scene(groups[0], rng.choice(list(RELATIONS)), groups[1])


def draw(folder: Path, *, train: int, valid: int, test: int, size: int, seed: int) -> Path:
    """Draw pictures to *folder*, once; return their annotations, in Karpathy's form.

    Args:
        train, valid, test: pictures of each split.
        size: pixels a side.
    """
    annotations = folder / "dataset.json"
    settings = {"train": train, "val": valid, "test": test, "size": size, "seed": seed}
    if annotations.is_file() and json.loads(annotations.read_text())["settings"] == settings:
        return annotations
    rng = random.Random(seed)
    held_out: set[Scene] = set()
    images = []
    with atomic(folder, folder=True) as temporary:
        for split, count in (("test", test), ("val", valid), ("train", train)):
            for _ in tqdm(range(count), f"draw {split}", unit=" pictures"):
                what = scene(rng)
                while split == "train" and what in held_out:
                    what = scene(rng)
                if split != "train":
                    held_out.add(what)
                number = len(images)
                name = f"{number:05}.png"
                what.draw(size, rng).save(temporary / name)
                captions = enumerate(what.captions())
                sentences = [{"sentid": 5 * number + n, "raw": raw} for n, raw in captions]
                image = {"imgid": number, "filename": name, "split": split}
                images.append(image | {"sentences": sentences})
        content = {"dataset": "shapes", "settings": settings, "images": images}
        (temporary / "dataset.json").write_text(json.dumps(content))
    return annotations
