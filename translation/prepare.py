"""From raw parallel text to what ``fairseq-train`` reads."""

import sys
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Any

import sentencepiece
from tqdm import tqdm

from fairseq_plugins.errors import UserError
from fairseq_plugins.files import atomic
from fairseq_plugins.stages import Stages, digest
from fairseq_plugins.stages import key as stage_key
from fairseq_plugins.subwords import binarise, learn_subwords, load_subwords, write_dictionary
from fairseq_plugins.text import read_lines, read_parallel


def prepare(
    source_lang: str,
    target_lang: str,
    train: Path,
    valid: Path,
    tests: list[Path],
    vocab_size: int,
    out: Path,
    *,
    separate: bool = False,
    model_type: str = "bpe",
    max_length: int = 0,
    max_ratio: float = 0.0,
) -> dict[str, Any]:
    """Clean, learn SentencePiece, and binarise; return the manifest that is written to *out*.

    *out* gets ``bin/`` (fairseq's data), ``spm.model`` (or ``spm.LANG.model``), ``references/``
    (the cleaned text of the held-out sets, never rebuilt from ids), ``text/`` (of the training
    set) and ``manifest.json``. Finished stages are skipped when nothing they depend on changed.

    Args:
        train, valid, tests: prefixes; ``PREFIX.LANG`` are the files.
        vocab_size: rows of the embedding table: pieces and fairseq's four special entries.
        separate: a vocabulary a language, instead of a joined one.
        max_length: leave out training pairs with more words on a side; 0: keep all.
        max_ratio: leave out training pairs whose word counts differ by more than this factor; 0:
            keep all.

    Raises:
        UserError: files missing, not UTF-8 or of unequal length; nothing to train on; an empty
            held-out line; more characters than *vocab_size* has room for; an *out* with folders of
            these names that are not ours.
    """
    langs = [source_lang, target_lang]
    sets = {"train": train, "valid": valid}
    sets |= {f"test{i or ''}": prefix for i, prefix in enumerate(tests)}
    files = {name: [Path(f"{prefix}.{lang}") for lang in langs] for name, prefix in sets.items()}
    out = Path(out)
    stages = Stages(out)
    for name in ("bin", "text", "references"):
        if (out / name).exists() and not stages.path.is_file():
            raise UserError(
                f"{out.resolve()}: has a {name} of its own, which would be replaced: "
                "choose a new folder for --out"
            )

    hashes = {str(path): digest(path) for pair in files.values() for path in pair}
    key = stage_key(langs, list(sets), list(hashes.values()), max_length, max_ratio)
    if stages.needs("clean", key):
        counts = _clean_all(files, langs, out, max_length, max_ratio)
        settings = {"source_lang": source_lang, "target_lang": target_lang}
        settings |= {"max_length": max_length, "max_ratio": max_ratio}
        stages.finish("clean", key, **settings, sets=counts, inputs=hashes)

    key = stage_key(key, vocab_size, separate, model_type)
    if stages.needs("subword", key):
        groups = {f".{lang}": [lang] for lang in langs} if separate else {"": langs}
        models = {
            out / f"spm{suffix}.model": learn_subwords(
                [out / "text" / f"train.{lang}" for lang in members], vocab_size, model_type
            )
            for suffix, members in groups.items()
        }
        for path in set(out.glob("spm*.model")) - set(models):
            path.unlink()  # of other settings
        actual = {}
        for path, model in models.items():
            with atomic(path) as temporary:
                temporary.write_bytes(model)
            pieces = sentencepiece.SentencePieceProcessor(model_proto=model).get_piece_size()
            actual[path] = pieces + 1  # fairseq's four special entries for SentencePiece's three
        facts = {"joined": not separate, "vocab_size": vocab_size, "model_type": model_type}
        facts |= {"versions": {name: version(name) for name in ("sentencepiece", "torch")}}
        stages.finish("subword", key, **facts, vocab_actual=max(actual.values()))

    if stages.needs("binarise", key):
        with atomic(out / "bin", folder=True) as folder:
            for lang in langs:
                model = load_subwords(out, lang)
                dictionary = write_dictionary(model, folder / f"dict.{lang}.txt")
                for name in files:
                    text = out / ("text" if name == "train" else "references") / f"{name}.{lang}"
                    count = stages.manifest["sets"][name]["lines"]
                    lines = tqdm(read_lines(text), f"binarise {name}.{lang}", count, unit=" lines")
                    target = folder / f"{name}.{source_lang}-{target_lang}.{lang}"
                    binarise(lines, model, len(dictionary), target)
        stages.finish("binarise", key)
    return stages.manifest


def _clean_all(
    files: dict[str, list[Path]], langs: list[str], out: Path, max_length: int, max_ratio: float
) -> dict[str, dict[str, Any]]:
    """Write text/ and references/; return what each set holds and what was left out."""
    counts: dict[str, dict[str, Any]] = {}
    with (
        atomic(out / "text", folder=True) as text,
        atomic(out / "references", folder=True) as references,
    ):
        for name, paths in files.items():
            folder = text if name == "train" else references
            targets = [folder / f"{name}.{lang}" for lang in langs]
            left_out: Counter[str] = Counter()
            kept = 0
            with open(targets[0], "w") as source, open(targets[1], "w") as target:
                rows = tqdm(read_parallel(paths), f"clean {name}", unit=" pairs")
                for number, (a, b) in enumerate(rows, 1):
                    if reason := _reason_to_leave_out(a, b, max_length, max_ratio):
                        if name == "train":
                            left_out[reason] += 1
                            continue
                        if reason == "empty":
                            empty = paths[0] if not a else paths[1]
                            raise UserError(
                                f"{empty}:{number}: an empty line in a held-out set, whose lines "
                                "must all stay: remove the pair from both files"
                            )
                    source.write(a + "\n")
                    target.write(b + "\n")
                    kept += 1
            if not kept:
                raise UserError(f"{paths[0]}, {paths[1]}: no sentence pair in them")
            counts[name] = {"files": [str(path) for path in paths], "lines": kept}
            if left_out:
                counts[name]["left_out"] = dict(left_out)
                reasons = ", ".join(f"{n} {reason}" for reason, n in left_out.items())
                print(f"{name}: {kept} pairs kept, left out: {reasons}", file=sys.stderr)
    return counts


def _reason_to_leave_out(a: str, b: str, max_length: int, max_ratio: float) -> str | None:
    if not (a and b):
        return "empty"
    short, long = sorted((len(a.split()), len(b.split())))
    if max_length and long > max_length:
        return "too long"
    if max_ratio and long > max_ratio * short:
        return "of unlike length"
    return None
