"""Extraction into a feature store against a plain timm loop that saves one array at the end.

python -m benchmarks.features                 on pictures of noise
python -m benchmarks.features --images DIR    on the pictures of a folder
"""

import statistics
import tempfile
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Annotated

import numpy as np
import timm
import torch
import typer
from PIL import Image
from timm.data import create_transform, resolve_model_data_config
from torch.utils.data import DataLoader, Dataset

from benchmarks.measure import in_turns, ratios, report
from captioning.backbones import Backbone
from captioning.features import extract


class Plain(Dataset):
    """What a user would write."""

    def __init__(self, files: list[Path], transform):
        self.files, self.transform = files, transform

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.transform(Image.open(self.files[index]).convert("RGB"))


def plain(files: list[Path], network, transform, out: Path, batch_size: int, workers: int) -> None:
    """Save the cells of *files* in half precision."""
    loader = DataLoader(Plain(files, transform), batch_size, num_workers=workers)
    with torch.inference_mode():
        maps = [network.forward_features(pixels).half() for pixels in loader]
    np.save(out, torch.cat(maps).flatten(2).transpose(1, 2).contiguous().numpy())


def draw(folder: Path, number: int) -> list[Path]:
    """Draw pictures of a photo's size and about its bytes; return the files."""
    generator = np.random.default_rng(1)
    files = [folder / f"{i}.jpg" for i in range(number)]
    for file in files:
        values = generator.integers(0, 256, (94, 125, 3), np.uint8)
        Image.fromarray(values).resize((500, 375)).save(file)
    return files


def main(
    images: Annotated[Path | None, typer.Option(help="Folder of .jpg files.")] = None,
    number: Annotated[int, typer.Option(help="Pictures a round.")] = 512,
    backbone: Annotated[str, typer.Option(help="timm's name; its output is NCHW.")] = "resnet18",
    batch_size: Annotated[int, typer.Option(help="Pictures a batch.")] = 32,
    workers: Annotated[int, typer.Option(help="Processes that read pictures.")] = 2,
    rounds: Annotated[int, typer.Option(help="Passes of each, in turns.")] = 5,
    as_json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """Seconds a pass, as ratios to the plain loop; random weights."""
    ours = Backbone(backbone)
    network = timm.create_model(backbone, num_classes=0).eval()
    transform = create_transform(**resolve_model_data_config(network), is_training=False)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = sorted(images.glob("*.jpg"))[:number] if images else draw(folder, number)
        pictures: Mapping[int, Path] = dict(enumerate(files))
        settings = {"batch_size": batch_size, "workers": workers}
        stores = (folder / f"store{i}" for i in count())
        last = folder / "finished"
        calls = {
            "plain timm loop": lambda: plain(
                files, network, transform, folder / "plain.npy", **settings
            ),
            "ours": lambda: extract(pictures, ours, next(stores), **settings),
            "ours, all are finished": lambda: extract(pictures, ours, last, **settings),
        }
        seconds = in_turns(calls, rounds)
    rows = ratios(seconds, "plain timm loop")
    for row, times in seconds.items():
        rows[row]["images a second"] = len(files) / statistics.median(times)
    report("features", rows, as_json, backbone=backbone, images=len(files), **settings)


if __name__ == "__main__":
    typer.run(main)
