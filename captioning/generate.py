"""Captions of a prepared split or of any picture, by beam search."""

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq import utils
from fairseq.checkpoint_utils import load_checkpoint_to_cpu
from fairseq.dataclass.configs import GenerationConfig
from fairseq.tasks import setup_task
from tqdm import tqdm

from captioning.backbones import Backbone
from captioning.dataset import CaptionDataset
from captioning.pictures import PictureView, open_picture
from fairseq_plugins.checkpoints import load, load_models, sharing
from fairseq_plugins.errors import UserError
from fairseq_plugins.files import atomic
from fairseq_plugins.models.visual import VisualSource

Caption = dict[str, Any]  # image_id, caption, words, maps


def generate(
    checkpoints: Sequence[Path],
    split: str,
    *,
    data: Path | None = None,
    features: Path | None = None,
    images: Path | None = None,
    batch_size: int = 64,
    cpu: bool = False,
    **generation: Any,
) -> tuple[list[Caption], tuple[int, int] | None]:
    """Return a caption of each picture of *split*, in order, and the grid of its attention maps.

    Args:
        checkpoints: one, or several for an ensemble.
        data: the folder that `captioning prepare` wrote; None: where the model was trained.
        features, images: the store or the pictures; None: those that it was trained with.
        batch_size: pictures a batch; each is encoded once.
        generation: options of fairseq's generation: ``beam``, ``lenpen``, ``max_len_b``, ...

    Raises:
        UserError: unreadable checkpoints, data or features.
    """
    overrides = {"data": data, "features": features, "images": images}
    overrides = {name: str(path) for name, path in overrides.items() if path is not None}
    models, _, task = load_models(checkpoints, overrides)
    task.load_dataset(split)
    dataset = task.dataset(split)
    captions = list(_captions(models, task, dataset, batch_size, cpu, generation))
    if len(captions) != len(dataset):
        raise UserError(f"{len(dataset)} pictures went in and {len(captions)} captions came out")
    return captions, task.visual_source.grid


def write(
    captions: Sequence[Caption],
    grid: tuple[int, int] | None,
    results: Path,
    attention: Path | None = None,
) -> None:
    """Write what :func:`generate` returned: COCO's results, and the attention maps of the words."""
    rows = [{name: c[name] for name in ("image_id", "caption")} for c in captions]
    contents: dict[Path, Any] = {results: rows}
    if attention is not None:
        maps = {
            str(c["image_id"]): {k: c[k] for k in ("words", "maps") if k in c} for c in captions
        }
        contents[attention] = {"grid": grid, "images": maps}
    for path, content in contents.items():
        with atomic(path) as temporary:
            temporary.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")


def caption(
    checkpoint: Path,
    pictures: Sequence[Path],
    *,
    data: Path | None = None,
    backbone_checkpoint: str | None = None,
    cpu: bool = False,
    **generation: Any,
) -> list[str]:
    """Return a caption of each picture file.

    Args:
        backbone_checkpoint: weights of the backbone, where the model was trained on stored
            features: pretrained, random, or a file; None: as the store says.

    Raises:
        UserError: as :func:`generate`; the backbone is not the one that the model knows; a picture
            that cannot be read.
    """
    for path in pictures:
        open_picture(path)
    cells = sharing(load(checkpoint)["model"]).get("cells")
    if cells is None:
        raise UserError(f"{checkpoint}: not a captioning model")
    overrides = {"data": str(data)} if data else {}
    if cells["backbone"]:
        models, _, task = load_models([checkpoint], overrides)
        backbone = models[0].encoder.embed_cells.backbone
    else:
        config = load_checkpoint_to_cpu(str(checkpoint), overrides)["cfg"].task
        task = setup_task(config)
        task.visual_source = VisualSource.of(cells)
        models, *_ = load_models([checkpoint], overrides, task)
        backbone = _backbone(cells["manifest"], backbone_checkpoint)
        if backbone.describe() != cells["origin"]:
            raise UserError(
                f"{checkpoint} knows cells of {cells['origin']}, and this backbone is "
                f"{backbone.describe()}: name its weights with --backbone-checkpoint"
            )
    pixels = PictureView(dict(enumerate(pictures)), backbone.transform)

    def view(index: int) -> dict[str, Any]:
        seen = pixels(index)
        if not cells["backbone"]:
            with torch.inference_mode():
                seen = {"cells": backbone(seen["pixels"][None])[0].numpy()}
        return seen

    none = [[] for _ in pictures]
    dataset = CaptionDataset(
        range(len(pictures)), none, None, view, task.words, cells=int(np.prod(cells["grid"] or 0))
    )
    return [c["caption"] for c in _captions(models, task, dataset, 16, cpu, generation)]


def _backbone(manifest: dict[str, Any], weights: str | None) -> Backbone:
    """Return the backbone that *manifest* describes, with *weights* if they have moved."""
    transform = manifest["transform"]
    return Backbone(
        manifest["backbone"],
        weights or manifest["weights"],
        keep_prefix=bool(manifest["prefix_tokens"]),
        image_size=transform["size"][0],
        squash=transform["crop_mode"] == "squash",
    )


def _captions(
    models, task, dataset: CaptionDataset, batch_size: int, cpu: bool, generation: dict[str, Any]
) -> Iterator[Caption]:
    use_cuda = torch.cuda.is_available() and not cpu
    for model in models:
        model.cuda() if use_cuda else model.cpu()
        model.eval()
    generator = task.build_generator(models, GenerationConfig(**generation))
    batches = task.get_batch_iterator(
        dataset, max_sentences=batch_size, required_batch_size_multiple=1
    ).next_epoch_itr(shuffle=False)
    with tqdm(total=len(dataset), desc="caption", unit=" images", file=sys.stderr) as bar:
        for batch in batches:
            batch = utils.move_to_cuda(batch) if use_cuda else batch
            hypotheses = task.inference_step(generator, models, batch)
            for image_id, best in zip(batch["image_id"].tolist(), hypotheses, strict=True):
                tokens, attention = best[0]["tokens"].cpu(), best[0]["attention"]
                yield {
                    "image_id": image_id,
                    "caption": task.caption(tokens),
                    **_attention(task, tokens, attention),
                }
            bar.update(len(hypotheses))


def _attention(task, tokens: torch.Tensor, attention: torch.Tensor | None) -> dict[str, Any]:
    """Return words and their maps, 0 to 255, of (cells, tokens) attention.

    A word of several subwords has the mean of their maps.
    """
    if attention is None or not attention.numel():
        return {}
    symbols = [task.words[i] for i in tokens[:-1].tolist()]
    words: list[str] = []
    groups: list[list[int]] = []
    for position, symbol in enumerate(symbols):
        if task.subwords is None or symbol.startswith("▁") or not words:
            words.append(symbol.lstrip("▁"))
            groups.append([position])
        else:
            words[-1] += symbol
            groups[-1].append(position)
    maps = [attention[:, group].float().mean(1).cpu() for group in groups]
    scaled = [(255 * m / m.max().clamp(min=1e-9)).round().int().tolist() for m in maps]
    return {"words": words, "maps": scaled}
