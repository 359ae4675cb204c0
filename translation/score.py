"""Scores of sacreBLEU, each with the signature that reproduces it.

There is one way to score: detokenised text against the reference file as it is, both in NFC.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.significance import PairedTest

from fairseq_plugins.errors import UserError
from fairseq_plugins.text import read_parallel

RESAMPLES = 1000


def score(
    hypotheses: Path, references: Sequence[Path], baseline: Path | None = None
) -> list[dict[str, Any]]:
    """Return BLEU, chrF2 and TER: dicts of ``name``, ``score`` and ``signature``.

    With *baseline*, another system's output, each has also ``baseline`` (its score), ``p_value``
    (paired bootstrap, 1,000 resamples), and ``mean`` and ``confidence`` (95%, of the bootstrap).

    Raises:
        UserError: missing files or unequal numbers of lines.
    """
    systems = [hypotheses] if baseline is None else [baseline, hypotheses]
    rows = list(read_parallel([*systems, *references]))
    if not rows:
        raise UserError(f"{hypotheses}: no line to score")
    columns = [list(column) for column in zip(*rows, strict=True)]
    outputs, targets = columns[: len(systems)], columns[len(systems) :]
    if baseline is None:
        return [
            {
                "name": result.name,
                "score": result.score,
                "signature": metric.get_signature().format(),
            }
            for metric in (BLEU(), CHRF(), TER())
            for result in [metric.corpus_score(outputs[0], targets)]
        ]
    named = list(zip(("baseline", "system"), outputs, strict=True))
    metrics = {kind.__name__: kind(references=targets) for kind in (BLEU, CHRF, TER)}
    signatures, scores = PairedTest(
        named, metrics, references=None, test_type="bs", n_samples=RESAMPLES
    )()
    return [
        {
            "name": name,
            "score": float(scores[name][1].score),
            "signature": signature.format(),
            "baseline": float(scores[name][0].score),
            "p_value": float(scores[name][1].p_value),
            "mean": float(scores[name][1].mean),
            "confidence": float(scores[name][1].ci),
        }
        for name, signature in signatures.items()
    ]
