"""Features of regions that others have extracted, into a feature store."""

from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from captioning.store_writer import StoreWriter
from fairseq_plugins.errors import UserError

CHUNK = 64  # region files stored at a time
NAMES = {"x": "cells", "features": "cells", "bbox": "boxes", "boxes": "boxes", "num_bbox": "count"}
NAMES |= {"image_w": "width", "width": "width", "image_h": "height", "height": "height"}
Regions = tuple[np.ndarray, np.ndarray | None]


def import_regions(
    folder: Path,
    output: Path,
    *,
    name: str = "bottom-up",
    dtype: str = "float16",
    on_error: str = "skip",
) -> dict[str, Any]:
    """Store bottom-up features, which others have extracted; return the store's manifest.

    A file ``ID.npz`` holds ``x`` or ``features`` (regions, channels); ``bbox`` or ``boxes``
    (regions, 4), x1 y1 x2 y2 in pixels, with ``image_w`` and ``image_h`` or ``width`` and
    ``height``; it may say in ``num_bbox`` how many regions are not padding. Either all files have
    boxes or none.

    Args:
        name: of what made them; a store of another name is another backbone's.
        on_error: as in :func:`~captioning.features.extract`.

    Raises:
        UserError: no .npz files, or none that is whole; a broken one, with ``stop``; and as
            :class:`~captioning.store_writer.StoreWriter`.
    """
    files = sorted((int(p.stem), p) for p in Path(folder).glob("*.npz") if p.stem.isdecimal())
    if not files:
        raise UserError(f"{Path(folder).resolve()}: no ID.npz files: name the folder of them")
    regions = ((image_id, _regions_or_reason(path)) for image_id, path in files)
    first = next((found for _, found in regions if not isinstance(found, str)), None)
    if first is None:
        raise UserError(f"{_regions_or_reason(files[0][1])}; and so are all {len(files)} files")
    manifest = {"backbone": name, "weights_hash": None, "transform": None, "grid": None}
    manifest |= {"channels": first[0].shape[1], "prefix_tokens": 0}
    with StoreWriter(output, manifest, dtype, boxes=first[1] is not None) as writer:
        done = set(writer.done[:, 0].tolist())
        todo = [row for row in files if row[0] not in done]
        if not todo and writer.finished:
            return writer.manifest
        for start in tqdm(range(0, len(todo), CHUNK), unit_scale=CHUNK, unit=" images"):
            rows = {}
            for image_id, path in todo[start : start + CHUNK]:
                found = _regions_or_reason(path, first)
                if isinstance(found, str):
                    writer.skip(image_id, found, on_error)
                else:
                    rows[image_id] = found
            if rows:
                cells, boxes = zip(*rows.values(), strict=True)
                writer.add(list(rows), cells, boxes)
        return writer.finish()


def _regions_or_reason(path: Path, like: Regions | None = None) -> Regions | str:
    """Return features (regions, channels) and boxes, fractions; or why they cannot be read.

    Args:
        like: another picture's, to which the channels and the presence of boxes must agree.
    """
    try:
        with np.load(path) as file:
            found = {new: file[old] for old, new in NAMES.items() if old in file}
        count = int(found.get("count", len(found["cells"])))
        cells, boxes = found["cells"][:count], found.get("boxes")
        if boxes is not None:
            size = [float(found[side]) for side in ("width", "height")]
            boxes = (boxes[:count] / (size * 2)).clip(0, 1)
            if boxes.shape != (len(cells), 4):
                return f"{path}: boxes {boxes.shape} for {len(cells)} regions"
    except Exception as error:  # zip, pickle and NumPy raise many kinds
        return f"{path}: not features of regions: {type(error).__name__}: {error}"
    if cells.ndim != 2 or not len(cells):
        return f"{path}: features are {cells.shape}, not (regions, channels)"
    if like and (cells.shape[1] != like[0].shape[1] or (boxes is None) != (like[1] is None)):
        return f"{path}: {cells.shape[1]} channels, boxes {boxes is not None}: unlike the first"
    return cells, boxes
