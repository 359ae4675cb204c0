"""Picture files as RGB images and as pixels."""

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from PIL import Image, ImageOps
from torch import Tensor
from torch.utils.data import Dataset

from fairseq_plugins.errors import UserError

Transform = Callable[[Image.Image], Tensor]  # -> (3, height, width)


def open_picture(path: Path | str) -> Image.Image:
    """Return a picture as RGB, upright as its EXIF says; what is transparent becomes white.

    Raises:
        UserError: it is missing, broken or no picture; the reason is in the message.
    """
    try:
        with Image.open(path) as file:
            image = ImageOps.exif_transpose(file)
            if image.mode.startswith("I;16"):
                image = image.point(lambda value: value / 256, "L")  # else clipped at 255
            if image.has_transparency_data:
                image = image.convert("RGBA")
                white = Image.new("RGBA", image.size, "white")
                image = Image.alpha_composite(white, image)
            return image.convert("RGB")
    except Exception as error:  # Pillow's readers raise many kinds
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise UserError(f"{path}: not a readable picture: {reason}") from error


class PictureView:
    """What a model with a backbone sees of a picture: its pixels.

    Args:
        pictures: image id -> file.
    """

    def __init__(self, pictures: Mapping[int, Path], transform: Transform):
        self.pictures, self.transform = pictures, transform

    def __call__(self, image_id: int) -> dict[str, Tensor | str]:
        """Return ``pixels``; or, of a picture that cannot be read, the reason: ``broken``.

        A worker process cannot tell its user: the task does, see :meth:`CaptioningTask.whole`.
        """
        try:
            return {"pixels": self.transform(open_picture(self.pictures[image_id]))}
        except UserError as error:
            return {"broken": str(error)}


class Pictures(Dataset):
    """Pictures as pixels, by image id; a broken one is its reason instead.

    Args:
        pictures: image id -> file.
    """

    def __init__(self, pictures: Mapping[int, Path], transform: Transform):
        self.pictures = list(pictures.items())
        self.transform = transform

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor | str]:
        image_id, path = self.pictures[index]
        try:
            return image_id, self.transform(open_picture(path))
        except UserError as error:
            return image_id, str(error)

    @staticmethod
    def collate(rows: list) -> tuple[list[int], torch.Tensor | None, dict[int, str]]:
        """Return the ids and pixels of whole pictures, and the reasons of broken ones."""
        whole = [row for row in rows if not isinstance(row[1], str)]
        pixels = torch.stack([row[1] for row in whole]) if whole else None
        return [row[0] for row in whole], pixels, {k: v for k, v in rows if isinstance(v, str)}
