"""The front end of a model whose source is a picture: cells in, the encoder's input out."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class VisualSource:
    """What a task's pictures look like to a model.

    Attributes:
        channels: of a cell.
        grid: (rows, columns) of the cells, None for regions.
        boxes: regions come with their place in the picture.
        origin: what made the cells, in words; a checkpoint is only loaded for the same.
        manifest: the same, as the maker's own settings.
        backbone: pixels (batch, 3, height, width) -> cells (batch, cells, channels), where pictures
            are read instead of stored features.
        finetune_after: updates after which the backbone is trained; None: never.
    """

    channels: int
    grid: tuple[int, int] | None = None
    boxes: bool = False
    origin: str = ""
    manifest: Mapping[str, Any] = field(default_factory=dict)
    backbone: nn.Module | None = None
    finetune_after: int | None = None

    def describe(self) -> dict[str, Any]:
        """Return what a checkpoint must remember."""
        grid = self.grid and list(self.grid)
        return {
            "channels": self.channels,
            "grid": grid,
            "boxes": self.boxes,
            "origin": self.origin,
            "manifest": dict(self.manifest),
            "backbone": self.backbone is not None,
        }

    @classmethod
    def of(cls, described: Mapping[str, Any]) -> "VisualSource":
        """Return the source that :meth:`describe` describes, without its backbone."""
        grid = described["grid"]
        rest = {name: described[name] for name in ("channels", "boxes", "origin", "manifest")}
        return cls(grid=tuple(grid) if grid else None, **rest)


class CellEmbedding(nn.Module):
    """A linear map of the cells, a norm, places where asked for, dropout.

    Args:
        source: the cells.
        width: of the encoder.
        positions: add learned positions, a row's and a column's, to the cells of a grid.
        dropout: probability.
    """

    def __init__(self, source: VisualSource, width: int, *, positions: bool, dropout: float):
        super().__init__()
        self.map = nn.Linear(source.channels, width)
        nn.init.xavier_uniform_(self.map.weight)
        nn.init.zeros_(self.map.bias)
        self.norm = nn.LayerNorm(width)
        self.grid = source.grid or (6, 6)  # 36 regions are usual
        self.rows = self.columns = None
        if positions and source.grid:
            self.rows, self.columns = (nn.Parameter(torch.zeros(n, width)) for n in source.grid)
        self.place = nn.Linear(5, width, bias=False) if source.boxes else None
        self.dropout = nn.Dropout(dropout)
        self.backbone, self.finetune_after = source.backbone, source.finetune_after
        self.updates = 0
        if self.finetune_after is not None:
            self.backbone.requires_grad_()

    def example(self) -> dict[str, Tensor]:
        """Return the model's source for one picture, of zeros."""
        rows, columns = self.grid
        cells = rows * columns
        source = {
            "src_tokens": torch.full((1, cells), 3),
            "src_lengths": torch.tensor([cells]),
            "cells": torch.zeros(1, cells, self.map.in_features),
            "image_of_caption": torch.tensor([0]),
        }
        return source | ({"boxes": torch.zeros(1, cells, 4)} if self.place is not None else {})

    def set_num_updates(self, updates: int) -> None:
        """Hear from fairseq's trainer how far it is."""
        self.updates = updates

    def forward(
        self, cells: Tensor | None, pixels: Tensor | None = None, boxes: Tensor | None = None
    ) -> Tensor:
        """Return the encoder's input, (batch, cells, width).

        Args:
            cells: (batch, cells, channels), row-major.
            pixels: (batch, 3, height, width), in the place of *cells*.
            boxes: (batch, cells, 4), left, top, right, bottom, as fractions of the picture.
        """
        if cells is None:
            tuned = self.finetune_after is not None and self.updates >= self.finetune_after
            with torch.set_grad_enabled(tuned and torch.is_grad_enabled()):
                cells = self.backbone(pixels)
        x = self.norm(self.map(cells.to(self.map.weight.dtype)))
        if self.rows is not None:
            x = x + (self.rows[:, None] + self.columns).flatten(0, 1)
        if self.place is not None:
            sides = boxes[..., 2:] - boxes[..., :2]
            area = sides.prod(-1, keepdim=True)
            x = x + self.place(torch.cat([boxes, area], dim=-1).to(x.dtype))
        return self.dropout(x)
