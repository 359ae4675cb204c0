"""Which columns of a matrix a weight is read from.

ShareBERT (AAAI 2024): a weight A with L_A entries takes G_A = ceil(L_A / rows) whole columns.
The rows x G_A slice is flattened row by row, cut to L_A entries and shaped (in, out). Slices are
disjoint and are laid from the right edge of the matrix, in the order of the weights.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from torch import Tensor

from fairseq_plugins.sharing.errors import SharingError

Shapes = Mapping[str, tuple[int, int]]  # weight -> (in, out)


def inert_rows(rows: int, pad: int | None) -> slice:
    """Return the rows that weights may be read from: one run of rows without the pad row.

    The pad row must neither shape a weight nor be trained by one, so a plan reads only the rows
    behind it (or before it, where that run is longer). The run is contiguous, so reading it
    copies nothing. fairseq's pad is row 1: rows 2..n-1 are read.
    """
    if pad is None:
        return slice(0, rows)
    return slice(pad + 1, rows) if rows - pad - 1 >= pad else slice(0, pad)


def columns_needed(rows: int, shapes: Shapes) -> int:
    """Return the sum of ceil(in * out / rows) over *shapes*."""
    return sum(-(-prod(shape) // rows) for shape in shapes.values())


def rows_needed(width: int, shapes: Shapes) -> int:
    """Return the fewest rows at which *shapes* fit into *width* columns (0: at none)."""
    if len(shapes) > width:
        return 0
    low, high = 1, max(map(prod, shapes.values()), default=1)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if columns_needed(middle, shapes) <= width else (middle + 1, high)
    return low


@dataclass(frozen=True)
class ColumnPlan:
    """Disjoint columns of a (rows, width) matrix, one run a weight.

    Attributes:
        rows: rows that are read (without the pad row, see :func:`inert_rows`).
        width: columns of the matrix.
        shapes: weight -> (in, out), in the order of the columns from the right edge.
    """

    rows: int
    width: int
    shapes: Shapes

    def __post_init__(self):
        if self.needed > self.width:
            raise SharingError(f"{self.needed} columns needed, {self.width} there")

    @property
    def counts(self) -> dict[str, int]:
        """Columns of each weight, G_A."""
        return {name: -(-prod(shape) // self.rows) for name, shape in self.shapes.items()}

    @property
    def needed(self) -> int:
        return sum(self.counts.values())

    @property
    def columns(self) -> dict[str, tuple[int, int]]:
        """First and last column of each weight, 0-based, both inclusive."""
        columns, right = {}, self.width
        for name, count in self.counts.items():
            columns[name] = (right - count, right - 1)
            right -= count
        return columns

    def read(self, matrix: Tensor) -> dict[str, Tensor]:
        """Read every weight out of *matrix*, by one split.

        Args:
            matrix: (rows, needed), the planned columns only, left to right.

        Returns:
            weight -> tensor (out, in) as :class:`torch.nn.Linear` holds it; x @ W + b of the
            paper, with W (in, out), is ``linear(x, W.T, b)``.
        """
        names = list(self.shapes)[::-1]
        slices = matrix.split([self.counts[name] for name in names], dim=1)
        return {
            name: part.reshape(-1)[: prod(self.shapes[name])].view(self.shapes[name]).t()
            for name, part in zip(names, slices, strict=True)
        }
