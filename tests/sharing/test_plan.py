import pytest
import torch

from fairseq_plugins.sharing import (
    ColumnPlan,
    SharingError,
    columns_needed,
    inert_rows,
    rows_needed,
)


def test_papers_example():
    """A 10 x 8 matrix, L_A = 16, L_B = 25: G_A = 2, d_A = 4, G_B = 3, d_B = 5."""
    plan = ColumnPlan(10, 8, {"A": (4, 4), "B": (5, 5)})
    assert plan.counts == {"A": 2, "B": 3}
    assert plan.columns == {"A": (6, 7), "B": (3, 5)}
    assert [plan.counts["A"] * 10 - 16, plan.counts["B"] * 10 - 25] == [4, 5]


def test_published_columns():
    """ShareBERT's slices from the right edge, H = V = 2048, I = 4096, n = 30528."""
    hidden, ffn, rows = 2048, 4096, 30528
    square = (hidden, hidden)
    shapes = {"Q": square, "K": square, "V": square, "in": (hidden, ffn), "out": (ffn, hidden)}
    plan = ColumnPlan(rows, hidden, shapes | {"output": square, "pooler": square})
    g, f = 138, 275
    right = {"Q": 0, "K": g, "V": 2 * g, "in": 3 * g, "out": 3 * g + f, "output": 3 * g + 2 * f}
    for name, offset in (right | {"pooler": 4 * g + 2 * f}).items():
        count = f if name in ("in", "out") else g
        assert plan.columns[name] == (hidden - offset - count, hidden - offset - 1)
    assert plan.needed == 1240


def test_reads_row_by_row_into_in_out():
    plan = ColumnPlan(3, 5, {"A": (2, 4), "B": (3, 1)})  # A: 8 of 9 entries, B: 3 of 3
    matrix = torch.arange(15.0).view(3, 5)
    weights = plan.read(matrix[:, 5 - plan.needed :])
    a = matrix[:, 2:5].reshape(-1)[:8].view(2, 4)
    assert torch.equal(weights["A"], a.t())
    x = torch.randn(7, 2)
    assert torch.allclose(torch.nn.functional.linear(x, weights["A"]), x @ a)
    assert torch.equal(weights["B"], matrix[:, 1:2].t())


def test_refuses_with_numbers():
    with pytest.raises(SharingError, match="5 columns needed, 4 there"):
        ColumnPlan(10, 4, {"A": (4, 4), "B": (5, 5)})


def test_rows_needed_is_the_fewest():
    shapes = {"A": (16, 16), "B": (16, 40), "C": (40, 16)}
    for width in (3, 4, 10, 50):
        rows = rows_needed(width, shapes)
        assert columns_needed(rows, shapes) <= width < columns_needed(rows - 1, shapes)
    assert rows_needed(2, shapes) == 0


@pytest.mark.parametrize(("pad", "rows"), [(1, range(2, 10)), (0, range(1, 10)), (9, range(9))])
def test_pad_row_is_left_out(pad, rows):
    assert range(10)[inert_rows(10, pad)] == rows
    assert range(10)[inert_rows(10, None)] == range(10)
