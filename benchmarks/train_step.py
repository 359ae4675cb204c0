"""A training step, and its peak memory, against fairseq's own ``transformer`` at equal depth.

python -m benchmarks.train_step
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Annotated

import torch
import typer
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.data import Dictionary

import fairseq_plugins  # noqa: F401
from benchmarks.measure import in_turns, peak_memory, ratios, report
from fairseq_plugins.sizes import build

ROWS = 8000
SIZES = "--encoder-layers 3 --decoder-layers 3 --encoder-embed-dim 256 --encoder-ffn-embed-dim 1024"
SIZES += " --encoder-attention-heads 4 --decoder-attention-heads 4 --share-all-embeddings"
PRE = " --encoder-normalize-before --decoder-normalize-before"
VARIANTS = {
    "transformer": ("transformer", PRE),
    "stored": ("share_transformer", PRE),
    "eps": ("share_transformer", PRE + " --weight-source eps"),
    "veps": ("share_transformer", PRE + " --weight-source veps --factor-dim 128"),
    "unshared, cpu-autocast": ("share_transformer", PRE + " --share-pattern none --cpu-autocast"),
    "eps, cpu-autocast": ("share_transformer", PRE + " --weight-source eps --cpu-autocast"),
}


def step(variant: str, tokens: int):
    """Return a call that trains *variant* one step on about *tokens* target tokens."""
    arch, options = VARIANTS[variant]
    torch.manual_seed(1)
    model = build(arch, (SIZES + options).split(), ROWS).train()
    task = SimpleNamespace(target_dictionary=Dictionary())
    criterion = LabelSmoothedCrossEntropyCriterion(task, True, 0.1)
    lengths = torch.arange(20, 41).repeat(
        1 + tokens // 600
    )  # sentences of like length share a batch
    lengths = lengths[lengths.cumsum(0) <= tokens]
    ids = torch.randint(4, ROWS, (len(lengths), int(lengths.max())))
    ids[torch.arange(ids.shape[1]) >= lengths[:, None]] = task.target_dictionary.pad()
    net_input = {"src_tokens": ids, "src_lengths": lengths, "prev_output_tokens": ids}
    sample = {"net_input": net_input, "target": ids, "ntokens": int(lengths.sum())}
    return update(model, lambda: criterion(model, sample)[0] / sample["ntokens"])


def update(model: torch.nn.Module, loss: Callable[[], torch.Tensor]) -> Callable[[], None]:
    """Return a call that updates *model* once by what *loss* returns."""
    optimizer = torch.optim.Adam(model.parameters(), 1e-4, betas=(0.9, 0.98))

    def call():
        optimizer.zero_grad()
        loss().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return call


def main(
    tokens: Annotated[int, typer.Option(help="Target tokens a step.")] = 4096,
    rounds: Annotated[int, typer.Option(help="Steps of each variant, in turns.")] = 15,
    as_json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """Seconds a step and peak memory, as ratios to fairseq's ``transformer``."""
    memory = {name: peak_memory(step, name, tokens) for name in VARIANTS}
    rows = ratios(in_turns({name: step(name, tokens) for name in VARIANTS}, rounds), "transformer")
    for name, row in rows.items():
        row |= {"memory": memory[name] / memory["transformer"], "memory MB": memory[name]}
    report("training step", rows, as_json, tokens=tokens, rounds=rounds)


if __name__ == "__main__":
    typer.run(main)
