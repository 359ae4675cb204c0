"""Lending of layer weights: pure torch, no fairseq."""

from fairseq_plugins.sharing.errors import SharingError
from fairseq_plugins.sharing.lenders import (
    BorrowedLinear,
    FactorizedEmbedding,
    Lender,
    VirtualLender,
)
from fairseq_plugins.sharing.patterns import PATTERNS, layer_indices
from fairseq_plugins.sharing.plan import (
    ColumnPlan,
    columns_needed,
    inert_rows,
    rows_needed,
)
from fairseq_plugins.sharing.tying import borrow, lendable, tie, weight_shapes

__all__ = [
    "PATTERNS",
    "BorrowedLinear",
    "ColumnPlan",
    "FactorizedEmbedding",
    "Lender",
    "SharingError",
    "VirtualLender",
    "borrow",
    "columns_needed",
    "inert_rows",
    "layer_indices",
    "lendable",
    "rows_needed",
    "tie",
    "weight_shapes",
]
