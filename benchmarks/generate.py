"""Beam search with EPS against fairseq's own ``transformer``, as ``fairseq-generate`` does it.

python -m benchmarks.generate
"""

from typing import Annotated

import torch
import typer
from fairseq.sequence_generator import SequenceGenerator

import fairseq_plugins  # noqa: F401
from benchmarks.measure import in_turns, ratios, report
from benchmarks.train_step import ROWS, SIZES, VARIANTS
from fairseq_plugins.checkpoints import nameless_dictionary
from fairseq_plugins.sizes import build


def decoding(variant: str, sentences: int, length: int, beam: int):
    """Return a call that decodes *sentences* of *length* tokens into as many, random weights."""
    arch, options = VARIANTS[variant]
    torch.manual_seed(1)
    model = build(arch, (SIZES + options).split(), ROWS).eval()
    words = nameless_dictionary(ROWS)
    generator = SequenceGenerator(
        [model], words, beam_size=beam, max_len_b=length, min_len=length, max_len_a=0
    )
    source = torch.randint(4, ROWS, (sentences, length))
    net_input = {"src_tokens": source, "src_lengths": torch.full((sentences,), length)}
    return lambda: generator.generate([model], {"net_input": net_input})


def main(
    sentences: Annotated[int, typer.Option(help="Sentences a batch.")] = 32,
    length: Annotated[int, typer.Option(help="Tokens of source and output.")] = 25,
    beam: Annotated[int, typer.Option(help="Beam size.")] = 4,
    rounds: Annotated[int, typer.Option(help="Batches of each model, in turns.")] = 15,
    as_json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """Seconds a batch, as ratios to fairseq's ``transformer``."""
    names = ("transformer", "stored", "eps", "veps")
    calls = {name: decoding(name, sentences, length, beam) for name in names}
    rows = ratios(in_turns(calls, rounds), "transformer")
    report("beam search", rows, as_json, sentences=sentences, length=length, beam=beam)


if __name__ == "__main__":
    typer.run(main)
