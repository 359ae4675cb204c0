"""A feature store: visual features of many pictures, in one memory-mapped file."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_plugins.errors import UserError

IDENTITY = ("backbone", "weights_hash", "transform", "prefix_tokens")  # what makes cells comparable


def read_manifest(path: Path) -> dict[str, Any]:
    """Return a store's manifest.

    Raises:
        UserError: there is none that can be read.
    """
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        describe(manifest)
        return manifest
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise UserError(
            f"{path.parent.resolve()}: no finished feature store ({error}): make it, or finish it, "
            "with `fairseq-share captioning features`"
        ) from error


def describe(manifest: Mapping[str, Any]) -> str:
    """Return in words what made the cells: backbone, weights, transform."""
    parts = manifest["transform"] or {}
    transform = ", ".join(f"{name} {value}" for name, value in parts.items())
    return f"{manifest['backbone']} (weights {manifest['weights_hash']}; {transform or 'as given'})"


def refuse_another(
    folder: Path,
    found: Mapping[str, Any],
    wanted: Mapping[str, Any],
    keys: Sequence[str] = IDENTITY,
) -> None:
    """Refuse a store of another backbone, other weights or another transform than wanted.

    Raises:
        UserError: names both, and the first thing that differs.
    """
    for name in keys:
        if json.dumps(found.get(name)) != json.dumps(wanted.get(name)):
            raise UserError(
                f"{folder.resolve()} has features of {describe(found)}, and wanted are those of "
                f"{describe(wanted)}: {name} is {found.get(name)}, not {wanted.get(name)}; take "
                "the same, or another folder"
            )


class FeatureStore:
    """Cells by image id; may be sent to worker processes, each opens the file itself.

    Attributes:
        manifest: backbone, weights_hash, transform, channels, grid, ...
        ids: (pictures,) int64, in the order of the file.
        channels: of a cell.
        grid: (rows, columns), or None where pictures have different numbers of cells.

    Raises:
        UserError: no finished store there.
    """

    def __init__(self, folder: Path | str):
        self.folder = Path(folder).resolve()
        self.manifest = read_manifest(self.folder / "manifest.json")
        with np.load(self.folder / "index.npz") as index:
            self.ids, self._first, self._count = index["ids"], index["first"], index["count"]
        self.channels: int = self.manifest["channels"]
        grid = self.manifest["grid"]
        self.grid: tuple[int, int] | None = tuple(grid) if grid else None
        self.has_boxes: bool = self.manifest["boxes"]
        self._rows = {int(image_id): row for row, image_id in enumerate(self.ids)}
        self._maps: dict[str, np.ndarray] = {}

    def __len__(self) -> int:
        return len(self.ids)

    def __contains__(self, image_id: int) -> bool:
        return image_id in self._rows

    def __getstate__(self):
        return self.__dict__ | {"_maps": {}}

    def cells(self, image_id: int) -> np.ndarray:
        """Return (cells, channels), row-major, read-only.

        Raises:
            UserError: no such picture.
        """
        return self._read("cells", image_id)

    def boxes(self, image_id: int) -> np.ndarray | None:
        """Return (cells, 4), left, top, right, bottom as fractions of the picture; None: none."""
        return self._read("boxes", image_id) if self.has_boxes else None

    def view(self, image_id: int) -> dict[str, np.ndarray]:
        """Return what a model sees: cells, and boxes where there are some."""
        boxes = {"boxes": self._read("boxes", image_id)} if self.has_boxes else {}
        return {"cells": self.cells(image_id), **boxes}

    def describe(self) -> str:
        return describe(self.manifest)

    def check(self, manifest: Mapping[str, Any]) -> None:
        """Refuse what :func:`refuse_another` refuses."""
        refuse_another(self.folder, self.manifest, manifest)

    def _read(self, name: str, image_id: int) -> np.ndarray:
        row = self._rows.get(int(image_id))
        if row is None:
            why = self.manifest["skipped"].get(str(image_id), "extract it into the store")
            raise UserError(f"{self.folder}: no picture {image_id} among its {len(self)}: {why}")
        if name not in self._maps:
            try:
                file = np.load(self.folder / f"{name}.npy", mmap_mode="r")
            except (OSError, ValueError) as error:
                raise UserError(f"{self.folder}/{name}.npy: {error}: copy it again") from error
            self._maps[name] = np.asarray(file)  # plain: slices of a np.memmap are slow
        return self._maps[name][self._first[row] : self._first[row] + self._count[row]]
