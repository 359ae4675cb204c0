"""A VEPS training step against the published way of reading weights.

The published code makes the whole virtual matrix in every forward and slices it again inside every
layer; ours computes the planned columns and splits them once. Shape: ShareBERT Small.

python -m benchmarks.veps_step
"""

from typing import Annotated

import torch
import torch.nn.functional as F
import typer
from torch import nn

from benchmarks.measure import in_turns, peak_memory, ratios, report
from fairseq_plugins.sharing import BorrowedLinear, ColumnPlan, VirtualLender

SHAPES = {"small": (30528, 128, 2048, 4096, 16, 12), "tiny": (500, 16, 64, 96, 4, 3)}


class Encoder(nn.Module):
    """Pre-norm layers, own biases and norms; how a layer gets its weights is left open.

    Args:
        shape: rows, factor width, hidden = virtual width, FFN width, heads, layers.
    """

    def __init__(self, shape: tuple[int, ...]):
        super().__init__()
        rows, factor, self.hidden, ffn, self.heads, layers = shape
        square = (self.hidden, self.hidden)
        self.shapes = {"q": square, "k": square, "v": square}
        self.shapes |= {"fc1": (self.hidden, ffn), "fc2": (ffn, self.hidden), "out": square}
        self.table = nn.Embedding(rows, factor)
        nn.init.normal_(self.table.weight, 0, factor**-0.5)
        self.plan = ColumnPlan(rows, self.hidden, self.shapes)
        self.lender = VirtualLender(self.table, self.plan)
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {n: BorrowedLinear(nn.Linear(*s), self.lender, n) for n, s in self.shapes.items()}
                | {n: nn.LayerNorm(self.hidden) for n in ("norm1", "norm2")}
            )
            for _ in range(layers)
        )

    def layer(self, own, linear, x):
        """(batch, length, hidden), with *linear* (name, x) -> x."""

        def split(y):
            return y.unflatten(-1, (self.heads, -1)).transpose(1, 2)

        y = own["norm1"](x)
        y = F.scaled_dot_product_attention(*(split(linear(name, y)) for name in "qkv"))
        x = x + linear("out", y.transpose(1, 2).flatten(2))
        return x + linear("fc2", F.gelu(linear("fc1", own["norm2"](x))))

    def ours(self, x):
        with self.lender.lend():
            for own in self.layers:
                x = self.layer(own, lambda name, y, own=own: own[name](y), x)
        return x

    def published(self, x):
        virtual = self.lender.map(self.table.weight)  # (rows, hidden), in every forward

        def linear(name, y, own):
            first, last = self.plan.columns[name]
            inputs, outputs = self.shapes[name]
            entries = virtual[:, first : last + 1].reshape(-1)[: inputs * outputs]
            return y @ entries.view(inputs, outputs) + own[name].bias

        for own in self.layers:
            x = self.layer(own, lambda name, y, own=own: linear(name, y, own), x)
        return x


def step(way: str, shape: str, tokens: int):
    """Return a call that does forward and backward of one sentence of *tokens* tokens."""
    torch.manual_seed(1)
    model = Encoder(SHAPES[shape])
    x = torch.randn(1, tokens, model.hidden)

    def call():
        model.zero_grad()
        loss = getattr(model, way)(x).square().mean()
        loss.backward()
        return loss.item(), {n: p.grad for n, p in model.named_parameters()}

    return call


def check(shape: str, tokens: int) -> None:
    """Assert that both ways give the same loss and gradients, to fp32's rounding."""
    results = [step(way, shape, tokens)() for way in ("ours", "published")]
    (loss, ours), (wanted, published) = results
    assert abs(loss - wanted) <= 1e-5 * abs(wanted), (loss, wanted)
    largest = max(gradient.abs().max() for gradient in published.values())
    for name, gradient in ours.items():
        difference = (gradient - published[name]).abs().max()
        assert difference <= 1e-4 * largest, (name, difference, largest)


def main(
    shape: Annotated[str, typer.Option(help="small (ShareBERT Small) or tiny.")] = "small",
    tokens: Annotated[int, typer.Option(help="Tokens of the one sentence of a step.")] = 32,
    rounds: Annotated[int, typer.Option(help="Steps of each way, in turns.")] = 5,
    as_json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """Seconds and peak memory of a step, as ratios to the published way."""
    check("tiny", 8)
    check(shape, tokens)
    ways = ("published", "ours")
    memory = {way: peak_memory(step, way, shape, tokens) for way in ways}
    rows = ratios(in_turns({way: step(way, shape, tokens) for way in ways}, rounds), "published")
    for way, row in rows.items():
        row |= {"memory": memory[way] / memory["published"], "memory MB": memory[way]}
    report("VEPS step", rows, as_json, shape=shape, tokens=tokens, rounds=rounds)


if __name__ == "__main__":
    typer.run(main)
