"""The stages of a recipe: prepare, train, average, decode, score, report."""

import datetime
import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from fairseq_plugins.average import average, last_checkpoints
from fairseq_plugins.files import atomic
from fairseq_plugins.sizes import sizes_of_checkpoint
from fairseq_plugins.stages import Stages, key
from fairseq_plugins.text import read_lines
from recipes import report, training
from translation.prepare import prepare
from translation.score import score
from translation.translate import translate


def run(name: str, systems: Mapping[str, DictConfig], command: str) -> dict[str, Any]:
    """Run every stage that is not done yet; return the results, as in ``OUT/results.json``.

    Args:
        name: the recipe's name.
        systems: system -> complete configuration, see :func:`recipes.config.systems`.
        command: what the user typed, for the report.

    Raises:
        UserError: from any stage; what is done stays done.
    """
    first = next(iter(systems.values()))
    out = Path(first.out).resolve()
    data = OmegaConf.to_container(first.data, resolve=True)
    tests = data.pop("tests")
    manifest = prepare(**data, tests=list(map(Path, tests.values())), out=out / "data")
    rows = [_system(system, cfg, out, manifest, list(tests)) for system, cfg in systems.items()]
    results = {
        "recipe": name,
        "command": command,
        "seed": first.train.seed,
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "systems": rows,
    }
    with atomic(out / "results.json") as temporary:
        temporary.write_text(json.dumps(results, indent=1, ensure_ascii=False))
    with atomic(out / "report.html") as temporary:
        temporary.write_text(report.render(results, out), encoding="utf-8")
    print(f"report: {out / 'report.html'}", file=sys.stderr)
    return results


def _system(
    system: str, cfg: DictConfig, out: Path, manifest: dict[str, Any], tests: list[str]
) -> dict[str, Any]:
    folder = out / system
    line = training.arguments(cfg, out / "data" / "bin", folder / "checkpoints")
    shell_line = training.shell_line(line, cfg.threads)
    stages = Stages(folder)
    log, averaged = folder / "train.log", folder / "model.pt"

    current = key(manifest["stages"]["binarise"], line)
    if stages.needs("train", current):
        if stages.needs("training", current):  # other settings than those begun with
            _set_aside(folder / "checkpoints")
            _set_aside(log)
            stages.finish("training", current)
        training.recover(folder / "checkpoints")
        print(shell_line, file=sys.stderr)
        training.train(system, line, cfg.threads, cfg.train.max_update, log)
        stages.finish("train", current, line=shell_line)

    current = key(current, cfg.average)
    if stages.needs("average", current):
        average(last_checkpoints(folder / "checkpoints", cfg.average), averaged)
        stages.finish("average", current, sizes=sizes_of_checkpoint(averaged))

    decode = OmegaConf.to_container(cfg.decode, resolve=True)
    current = key(current, decode, tests)
    sets = [f"test{i or ''}" for i in range(len(tests))]  # as `prepare` names them
    if stages.needs("decode", current):
        speeds = {}
        for test, stored in zip(tests, sets, strict=True):
            lines = list(
                read_lines(out / "data" / "references" / f"{stored}.{cfg.data.source_lang}")
            )
            start = time.perf_counter()
            cpu = cfg.device == "cpu"
            results = translate([averaged], lines, data=out / "data", cpu=cpu, **decode)
            speeds[test] = len(lines) / (time.perf_counter() - start)
            with atomic(folder / f"{test}.{cfg.data.target_lang}") as temporary:
                temporary.write_text("".join(line + "\n" for line in results), encoding="utf-8")
        stages.finish("decode", current, sentences_per_second=speeds)

    if stages.needs("score", current):
        scores = {
            test: score(
                folder / f"{test}.{cfg.data.target_lang}",
                [out / "data" / "references" / f"{stored}.{cfg.data.target_lang}"],
            )
            for test, stored in zip(tests, sets, strict=True)
        }
        stages.finish("score", current, scores=scores)

    with open(log) as file:
        curves = list(training.read_log(file))
    kept = {k: v for k, v in stages.manifest.items() if k != "stages"}
    langs = [cfg.data.source_lang, cfg.data.target_lang]
    return {"name": system, "langs": langs, **kept, "learning": learning(curves)}


def _set_aside(path: Path) -> None:
    """Rename *path* to ``PATH.old``, in the place of an earlier one."""
    if path.exists():
        old = path.with_name(f"{path.name}.old")
        if old.is_dir():
            shutil.rmtree(old)
        path.replace(old)
        print(f"the settings have changed: {path.name} is now {old}", file=sys.stderr)


def learning(curves: list[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """Return (updates, seconds, nll_loss) of training and validation, and their ends."""
    points: dict[str, list] = {"train": [], "valid": []}
    seconds = 0.0
    for kind, values in curves:
        seconds = float(values.get("wall") or values.get("train_wall") or seconds)
        loss = values.get("nll_loss") if kind == "train_inner" else values.get("valid_nll_loss")
        if loss is not None:
            where = "train" if kind == "train_inner" else "valid"
            points[where].append((int(values["num_updates"]), seconds, float(loss)))
    updates = max((point[0] for point in points["train"] + points["valid"]), default=0)
    return {**points, "updates": updates, "seconds": seconds}


def machine() -> dict[str, Any]:
    """Return what a figure depends on: processor, cores, versions."""
    processor = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        models = [
            line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")
        ]
        processor = models[0].partition(": ")[2] if models else processor
    packages = ("torch", "sacrebleu", "sentencepiece", "hydra-core")
    return {
        "processor": processor,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        **{package: version(package) for package in packages},
    }
