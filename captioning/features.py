"""Pictures into a feature store, through a backbone."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader
from tqdm import tqdm

from captioning.backbones import Backbone
from captioning.pictures import Pictures
from captioning.regions import import_regions
from captioning.store_writer import StoreWriter
from fairseq_plugins.errors import UserError

__all__ = ["extract", "import_regions"]


def extract(
    pictures: Mapping[int, Path],
    backbone: Backbone,
    output: Path,
    *,
    batch_size: int = 32,
    workers: int = 2,
    dtype: str = "float16",
    device: str | torch.device = "cpu",
    on_error: str = "skip",
) -> dict[str, Any]:
    """Store the cells of all pictures; return the store's manifest.

    Pictures that are in the store already are not read again; so a run that was killed goes on
    where it was, and a new picture is added to an old store.

    Args:
        pictures: image id -> file.
        batch_size: pictures a batch.
        workers: processes that read pictures; 0: this one does.
        dtype: of the store: float16 or float32.
        on_error: ``skip`` a broken picture, which is named, also in the manifest; or ``stop``.

    Raises:
        UserError: a broken picture, with ``stop``; none that is whole; no such device; and as
            :class:`~captioning.store_writer.StoreWriter`.
    """
    if torch.device(device).type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"device {device}: PyTorch sees no GPU here: use --cpu")
    with StoreWriter(output, backbone.manifest, dtype) as writer:
        done = set(writer.done[:, 0].tolist())
        todo = {image_id: path for image_id, path in pictures.items() if image_id not in done}
        if not todo and writer.finished:
            return writer.manifest
        loader = DataLoader(
            Pictures(todo, backbone.transform),
            batch_size,
            num_workers=workers,
            collate_fn=Pictures.collate,
            pin_memory=torch.device(device).type == "cuda",
        )
        backbone.to(device).eval()
        with tqdm(total=len(pictures), initial=len(pictures) - len(todo), unit=" images") as bar:
            for ids, pixels, broken in loader:
                if ids:
                    with torch.inference_mode():
                        cells = backbone(pixels.to(device, non_blocking=True))
                    writer.add(ids, cells.to(getattr(torch, dtype)).cpu().numpy())
                for image_id, reason in broken.items():
                    writer.skip(image_id, reason, on_error)
                bar.update(len(ids) + len(broken))
        return writer.finish()
