"""A captioning step: its source against text, and what a self-critical step spends its time on.

python -m benchmarks.captioning_step
"""

import time
from types import SimpleNamespace
from typing import Annotated

import torch
import typer
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion

from benchmarks.ciderd import made_up
from benchmarks.measure import in_turns, ratios, report
from benchmarks.train_step import update
from captioning.ciderd import CiderD
from fairseq_plugins.checkpoints import nameless_dictionary
from fairseq_plugins.criterions import self_critical
from fairseq_plugins.models.share_config import ShareTransformerConfig
from fairseq_plugins.models.share_transformer import ShareTransformerModel
from fairseq_plugins.models.visual import VisualSource

ROWS, PICTURES, CAPTIONS, CELLS, LENGTH = 8004, 50, 5, 49, 12
SIDE = {"layers": 3, "embed_dim": 256, "ffn_embed_dim": 1024, "attention_heads": 4}
SIZES = {f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in SIDE.items()}


def build(source: VisualSource | None, weight_source: str) -> ShareTransformerModel:
    """Return a model whose source are pictures, or text."""
    words = nameless_dictionary(ROWS)
    task = SimpleNamespace(
        source_dictionary=None if source else words, target_dictionary=words, visual_source=source
    )
    tie = "share_decoder_input_output_embed" if source else "share_all_embeddings"
    torch.manual_seed(1)
    config = ShareTransformerConfig(**SIZES, weight_source=weight_source, **{tie: True})
    return ShareTransformerModel.build_model(config, task).train()


def step(visual: bool, weight_source: str):
    """Return a call that trains a model one step on every caption of the pictures."""
    source = VisualSource(1280, (7, 7), origin="made up") if visual else None
    model = build(source, weight_source)
    number = PICTURES * CAPTIONS
    texts = torch.randint(4, ROWS, (number, LENGTH))
    shape = (PICTURES, CELLS) if visual else (number, LENGTH)  # text: sentence by sentence
    ids = torch.randint(4, ROWS, shape)
    given = {"src_tokens": ids, "src_lengths": torch.full(shape[:1], shape[1])}
    if visual:
        given["cells"] = torch.randn(PICTURES, CELLS, 1280)
        given["image_of_caption"] = torch.arange(PICTURES).repeat_interleave(CAPTIONS)
    sample = {
        "net_input": given | {"prev_output_tokens": texts},
        "target": texts,
        "ntokens": texts.numel(),
    }
    task = SimpleNamespace(target_dictionary=nameless_dictionary(ROWS))
    criterion = LabelSmoothedCrossEntropyCriterion(task, True, 0.1)
    return update(model, lambda: criterion(model, sample)[0] / sample["ntokens"])


def parts(weight_source: str, rounds: int) -> dict[str, float]:
    """Return the shares of a self-critical step's time: sampling, reward, and the update."""
    references = made_up(6000)
    words = nameless_dictionary(ROWS)

    def caption(ids):
        return " ".join(str(i) for i in ids.tolist() if i not in (words.eos(), words.pad()))

    scorer = CiderD(references, end=True)
    task = SimpleNamespace(target_dictionary=words, references=lambda _: scorer, caption=caption)
    criterion = self_critical.SelfCriticalCriterion(task, CAPTIONS, "samples", 0.0, LENGTH)
    model = build(VisualSource(1280, (7, 7), origin="made up"), weight_source)
    ids = torch.full((PICTURES, CELLS), 3)
    source = {"src_tokens": ids, "src_lengths": torch.full((PICTURES,), CELLS)}
    source["cells"] = torch.randn(PICTURES, CELLS, 1280)
    sample = {"image_id": torch.arange(PICTURES), "split": "train", "net_input": source}
    spent = {"sample": 0.0, "reward": 0.0, "whole": 0.0}

    def timed(name, call):
        def wrapped(*arguments, **options):
            start = time.perf_counter()
            result = call(*arguments, **options)
            spent[name] += time.perf_counter() - start
            return result

        return wrapped

    plain = self_critical.draw
    criterion.reward = timed("reward", criterion.reward)
    self_critical.draw = timed("sample", plain)
    try:
        call = timed("whole", update(model, lambda: criterion(model, sample)[0]))
        call()
        spent.update(dict.fromkeys(spent, 0.0))
        for _ in range(rounds):
            call()
    finally:
        self_critical.draw = plain
    whole = spent.pop("whole")
    shares = {name: seconds / whole for name, seconds in spent.items()}
    return shares | {"update": 1 - sum(shares.values()), "seconds": whole / rounds}


def main(
    rounds: Annotated[int, typer.Option(help="Steps of each, in turns.")] = 10,
    as_json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """Seconds a step as ratios to text's, and shares of a self-critical step."""
    rows = {}
    for kind in ("stored", "eps"):
        calls = {f"{kind}, text": step(False, kind), f"{kind}, pictures": step(True, kind)}
        rows |= ratios(in_turns(calls, rounds), f"{kind}, text")
        rows[f"{kind}, self-critical"] = parts(kind, rounds)
    report("captioning step", rows, as_json, pictures=PICTURES, captions=CAPTIONS, cells=CELLS)


if __name__ == "__main__":
    typer.run(main)
