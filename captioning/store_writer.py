"""Writes a feature store, picture by picture, so that a kill loses none that is finished.

Until the store is whole, ``manifest.part`` stands for its manifest and ``journal.part`` lists what
is finished, (image id, cells) as int64; cells behind those that it lists are a kill's torn tail.
"""

import fcntl
import io
import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from tqdm import tqdm

from captioning.store import IDENTITY, read_manifest, refuse_another
from fairseq_plugins.errors import UserError
from fairseq_plugins.files import atomic

JOURNAL = "journal.part"
VERSIONS = ("timm", "torch", "torchvision", "pillow")


class StoreWriter:
    """Adds pictures to a new, a half-made or a finished store; used in a ``with``.

    Args:
        manifest: whose features they are; with ``channels`` and ``grid``.
        dtype: of the cells: float16 or float32.
        boxes: whether each cell has a box.

    Attributes:
        done: (pictures, 2) int64: the ids that are there, and their numbers of cells.
        finished: whether the store is whole as it is.

    Raises:
        UserError: the store there is another's (with both names); the folder is not ours, cannot
            be written, or another run writes to it.
    """

    def __init__(self, folder: Path, manifest: Mapping[str, Any], dtype: str, boxes: bool = False):
        self.folder = Path(folder).resolve()
        self.manifest = {**manifest, "dtype": dtype, "boxes": boxes, "skipped": {}}
        self._whole, self._part = self.folder / "manifest.json", self.folder / "manifest.part"
        if not self._whole.is_file() and not self._part.is_file():
            if any(self.folder.glob("[!.]*")):
                raise UserError(f"{self.folder}: not empty, no feature store: name another folder")
            self._write_manifest(self._part)
        self._files: dict[str, BinaryIO] = {}
        try:  # of this process alone: workers that outlive a kill do not hold it
            fcntl.lockf(self._open(".lock"), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UserError(
                f"{self.folder}: another run writes to it, or you may not ({error.strerror}): wait "
                "for its end, or name another folder"
            ) from error
        self.finished = self._whole.is_file()
        found = read_manifest(self._whole if self.finished else self._part)
        refuse_another(self.folder, found, self.manifest, (*IDENTITY, "dtype", "boxes"))
        self.manifest = found
        self._kinds = {"cells.npy": (np.dtype(dtype), manifest["channels"])}
        if boxes:
            self._kinds["boxes.npy"] = (np.dtype("float32"), 4)
        self.done = self._read_done()

    def __enter__(self) -> "StoreWriter":
        return self

    def __exit__(self, *error) -> None:
        for file in self._files.values():
            with suppress(OSError):  # of a full disk, which add() has told
                file.close()

    def add(
        self,
        ids: Sequence[int],
        cells: Sequence[np.ndarray],
        boxes: Sequence[np.ndarray] | None = None,
    ) -> None:
        """Store pictures that are not there yet; when this returns, they are on the disk.

        Args:
            cells: (cells, channels) of each picture.
            boxes: (cells, 4) of each picture.

        Raises:
            UserError: a feature is not finite in the store's format; the disk is full.
        """
        parts = {"cells.npy": cells, "boxes.npy": boxes}
        with np.errstate(over="ignore"):
            rows = {k: np.concatenate(parts[k]).astype(t) for k, (t, _) in self._kinds.items()}
        if not all(np.isfinite(part).all() for part in rows.values()):
            raise UserError(
                f"features of image ids {min(ids)} to {max(ids)} are not finite in "
                f"{self.manifest['dtype']}: take float32, or check the weights"
            )
        records = np.array([ids, [len(picture) for picture in cells]], np.int64).T
        self._start()
        try:
            for name, part in (*rows.items(), (JOURNAL, records)):
                self._files[name].write(np.ascontiguousarray(part).data)
                self._files[name].flush()
                os.fsync(self._files[name].fileno())
        except OSError as error:
            raise UserError(
                f"{self.folder}: {error.strerror}: make room and run it again; what is finished "
                "stays"
            ) from error
        self.done = np.concatenate([self.done, records])

    def skip(self, image_id: int, reason: str, on_error: str) -> None:
        """Name a broken picture, and take it down in the manifest; ``stop``: a UserError."""
        if on_error == "stop":
            raise UserError(f"image id {image_id}: {reason}; --on-error skip leaves it out")
        tqdm.write(f"image id {image_id} is skipped: {reason}", sys.stderr)
        self.manifest["skipped"][str(image_id)] = reason

    def finish(self) -> dict[str, Any]:
        """Make the store whole; return its manifest. A UserError if no picture is in it."""
        skipped = self.manifest["skipped"]
        if not len(self.done):
            raise UserError(f"{self.folder}: no picture was stored, {len(skipped)} are broken")
        self._start()
        ids, count = self.done.T
        for name in self._kinds:
            self._files[name].seek(0)
            self._files[name].write(self._header(name, int(count.sum())))
            self._files[name].flush()
            os.fsync(self._files[name].fileno())
        with atomic(self.folder / "index.npz") as temporary, open(temporary, "wb") as file:
            np.savez(file, ids=ids, first=count.cumsum() - count, count=count)
        for image_id in set(skipped) & set(map(str, ids.tolist())):
            del skipped[image_id]  # it was mended
        self.manifest |= {"pictures": len(ids), "cells": int(count.sum())}
        self.manifest["versions"] = {name: version(name) for name in VERSIONS}
        self._write_manifest(self._whole)
        self._part.unlink()
        (self.folder / JOURNAL).unlink()
        return self.manifest

    def _write_manifest(self, path: Path) -> None:
        with atomic(path) as temporary:
            temporary.write_text(json.dumps(self.manifest, indent=1))

    def _header(self, name: str, cells: int) -> bytes:
        """Return the head of a .npy file; NumPy makes it of one length for any number of cells."""
        kind, width = self._kinds[name]
        head = {"descr": kind.str, "fortran_order": False, "shape": (cells, width)}
        np.lib.format.write_array_header_1_0(buffer := io.BytesIO(), head)
        return buffer.getvalue()

    def _read_done(self) -> np.ndarray:
        """Return what the index or the journal lists, as far as the cells are there."""
        done = np.zeros((0, 2), np.int64)
        if self.finished:
            with np.load(self.folder / "index.npz") as index:
                done = np.stack([index["ids"], index["count"]], axis=1)
        elif (journal := self.folder / JOURNAL).is_file():
            raw = journal.read_bytes()
            done = np.frombuffer(raw[: len(raw) // 16 * 16], np.int64).reshape(-1, 2)
        for name, (kind, width) in self._kinds.items():
            path = self.folder / name
            size = path.stat().st_size if path.is_file() else 0
            ends = len(self._header(name, 0)) + done[:, 1].cumsum() * kind.itemsize * width
            done = done[ends <= size]
        return done

    def _open(self, name: str) -> BinaryIO:
        path = self.folder / name
        path.touch()
        self._files[name] = open(path, "r+b")  # noqa: SIM115 (until __exit__)
        return self._files[name]

    def _start(self) -> None:
        """Open the files behind what is done; from then on the store is half-made."""
        if JOURNAL in self._files:
            return
        with atomic(self.folder / JOURNAL) as temporary:
            temporary.write_bytes(self.done.tobytes())
        if self.finished:
            self._whole.replace(self._part)
            self.finished = False
        total = int(self.done[:, 1].sum())
        for name, (kind, width) in self._kinds.items():
            file = self._open(name)
            file.truncate(file.write(self._header(name, total)) + total * kind.itemsize * width)
        self._open(JOURNAL)
        for file in self._files.values():
            file.seek(0, os.SEEK_END)
