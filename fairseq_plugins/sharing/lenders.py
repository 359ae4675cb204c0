"""What weights are read from, and the layers that read them.

A lender makes all weights of a step from one split of its matrix, inside ``with lender.lend()``;
the backward pass is then one concatenation. Outside of that block no tensor with a graph stays on
any module, so a model can be copied and pickled. Without gradients, in eval mode, the weights are
made once and kept until a parameter changes.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_plugins.sharing.plan import ColumnPlan, inert_rows


class Lender(nn.Module):
    """EPS: weights are columns of the embedding table itself (ShareBERT, AAAI 2024).

    Args:
        table: the embedding, (n, d) with ``padding_idx``; it stays the property of its model.
        plan: the columns, over ``inert_rows(n, padding_idx)``.
    """

    table: nn.Embedding

    def __init__(self, table: nn.Embedding, plan: ColumnPlan):
        super().__init__()
        object.__setattr__(self, "table", table)  # not a child: its owner registers it
        self.plan = plan
        self.rows = inert_rows(table.num_embeddings, table.padding_idx)
        self._lent: dict[str, Tensor] | None = None
        self._kept: tuple[tuple, dict[str, Tensor]] | None = None

    def matrix(self) -> Tensor:
        """Return the planned columns, (rows, plan.needed)."""
        return self.table.weight[self.rows, self.plan.width - self.plan.needed :]

    def sources(self) -> list[Tensor]:
        """Return the parameters that the weights are made from."""
        return [self.table.weight, *self.parameters()]

    def weights(self) -> dict[str, Tensor]:
        """Return weight -> (out, in), lent for this step, kept, or made now."""
        if self._lent is not None:
            return self._lent
        if torch.is_grad_enabled() or self.training:
            self._kept = None
            return self.plan.read(self.matrix())
        key = tuple((p.data_ptr(), p._version, p.dtype, p.device) for p in self.sources())
        if self._kept is None or self._kept[0] != key:
            made = self.plan.read(self.matrix())
            self._kept = key, {name: weight.contiguous() for name, weight in made.items()}
        return self._kept[1]

    @contextmanager
    def lend(self) -> Iterator[None]:
        """Make the weights once for all that happens inside; blocks may nest."""
        outermost = self._lent is None
        if outermost:
            self._lent = self.weights()
        try:
            yield
        finally:
            if outermost:
                self._lent = None

    def train(self, mode: bool = True):
        self._kept = None  # fairseq's optimisers write to p.data, which no version counter sees
        return super().train(mode)

    def __getstate__(self):
        return self.__dict__ | {"_lent": None, "_kept": None}


class VirtualLender(Lender):
    """VEPS: a learned map with bias makes a virtual (n, V) matrix of a narrow table (n, F).

    Only the planned columns of the virtual matrix are computed.

    Args:
        table: the narrow embedding, (n, F).
        plan: the columns of the virtual matrix, ``plan.width`` = V.
        gain: the derived weights start at *gain* times the Xavier deviation of their shape.
            The map's rows for a weight A start at N(0, gain * sqrt(2 / (in + out)) / row norm),
            where the row norm of the table at the start, deviation * sqrt(F), is 1 for fairseq's
            embeddings. This choice is ours: the published code starts everything at
            N(0, 0.02), far below Xavier.
    """

    def __init__(self, table: nn.Embedding, plan: ColumnPlan, gain: float = 1.0):
        super().__init__(table, plan)
        factor_dim = table.weight.shape[1]
        self.map = nn.Linear(factor_dim, plan.width)
        nn.init.zeros_(self.map.bias)
        with torch.no_grad():
            row_norm = table.weight[self.rows].square().mean().sqrt() * factor_dim**0.5
            self.map.weight.normal_(0, gain * plan.width**-0.5 / row_norm)
            for name, (first, last) in plan.columns.items():
                xavier = (2 / sum(plan.shapes[name])) ** 0.5
                self.map.weight[first : last + 1].normal_(0, gain * xavier / row_norm)

    def matrix(self) -> Tensor:
        left = self.plan.width - self.plan.needed
        return F.linear(self.table.weight[self.rows], self.map.weight[left:], self.map.bias[left:])


class BorrowedLinear(nn.Module):
    """A linear layer that owns its bias and borrows its weight.

    Args:
        linear: the layer whose bias and size it takes over.
        lender: where the weight is read.
        name: the weight's name in the lender's plan.
    """

    lender: Lender

    def __init__(self, linear: nn.Linear, lender: Lender, name: str):
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.bias = linear.bias
        self.name = name
        object.__setattr__(self, "lender", lender)  # not a child: many layers borrow from it

    @property
    def weight(self) -> Tensor:
        """The borrowed weight, (out_features, in_features)."""
        return self.lender.weights()[self.name]

    def forward(self, x: Tensor) -> Tensor:
        """(..., in_features) -> (..., out_features)"""
        return F.linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, borrowed={self.name!r}"


class FactorizedEmbedding(nn.Embedding):
    """A narrow table (n, F) and a learned map with bias to the model's width d.

    Looks like an (n, d) embedding to the model; ``weight`` is the narrow table. The map starts so
    that its outputs have the deviation of fairseq's embeddings, 1/sqrt(d).
    """

    def __init__(self, num_embeddings: int, factor_dim: int, embedding_dim: int, padding_idx: int):
        super().__init__(num_embeddings, factor_dim, padding_idx=padding_idx)
        nn.init.normal_(self.weight, 0, factor_dim**-0.5)
        nn.init.zeros_(self.weight[padding_idx])
        self.factor_dim, self.embedding_dim = factor_dim, embedding_dim
        self.map = nn.Linear(factor_dim, embedding_dim)
        nn.init.normal_(self.map.weight, 0, embedding_dim**-0.5)
        nn.init.zeros_(self.map.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        """(...) ids -> (..., d)"""
        return self.map(super().forward(tokens))
