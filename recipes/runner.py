"""The stages of a recipe: prepare, train, average, decode, score, report."""

import datetime
import json
import os
import platform
import shutil
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from fairseq_plugins.average import average, last_checkpoints
from fairseq_plugins.files import atomic
from fairseq_plugins.sizes import sizes_of_checkpoint
from fairseq_plugins.stages import Stages, key
from recipes import report, training
from recipes.tasks import TASKS, use_gpu


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
    task = TASKS[first.task](first, out)
    prepared = task.prepare()
    if not use_gpu(first):
        torch.set_num_threads(first.threads)
    rows = [row for system, cfg in systems.items() for row in _system(system, cfg, task, prepared)]
    results = {
        "recipe": name,
        "command": command,
        "seed": first.train.seed,
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "metric": task.metric,
        "systems": rows,
    }
    with atomic(out / "results.json") as temporary:
        temporary.write_text(json.dumps(results, indent=1, ensure_ascii=False))
    with atomic(out / "report.html") as temporary:
        temporary.write_text(report.render(results, task), encoding="utf-8")
    print(f"report: {out / 'report.html'}", file=sys.stderr)
    return results


def folder_of(out: Path, system: str, phase: str) -> Path:
    """Return where a training of a system is kept."""
    return out / system / phase


def _system(system: str, cfg: DictConfig, task, prepared: str) -> Iterator[dict[str, Any]]:
    """Yield a row for each training of a system."""
    start: Path | None = None
    for phase, train in training.phases(cfg).items():
        folder = folder_of(task.out, system, phase)
        line = training.arguments(cfg, task, folder / "checkpoints", train, start)
        title = f"{system} {phase.replace('_', '-')}".strip()
        stages = Stages(folder)
        prepared = _train(title, cfg, line, train["max_update"], stages, prepared, folder)
        start = folder / "model.pt"

        decode = OmegaConf.to_container(cfg.decode, resolve=True)
        current = key(prepared, decode, list(task.tests))
        if stages.needs("decode", current):
            speeds = task.decode(start, folder, cfg)
            stages.finish("decode", current, sentences_per_second=speeds)
        if stages.needs("score", current):
            stages.finish("score", current, scores=task.score(folder))

        with open(folder / "train.log") as file:
            curves = list(training.read_log(file))
        kept = {k: v for k, v in stages.manifest.items() if k != "stages"}
        yield {
            "name": title,
            "folder": str(folder.relative_to(task.out)),
            **kept,
            "learning": learning(curves),
        }


def _train(
    title: str,
    cfg: DictConfig,
    line: list[str],
    updates: int,
    stages: Stages,
    prepared: str,
    folder: Path,
) -> str:
    """Train and average to ``model.pt``, unless it is done; return the key of it."""
    shell_line = training.shell_line(line, cfg.threads)
    log = folder / "train.log"
    current = key(prepared, line)
    if stages.needs("train", current):
        if stages.needs("training", current):  # other settings than those begun with
            _set_aside(folder / "checkpoints")
            _set_aside(log)
            stages.finish("training", current)
        training.recover(folder / "checkpoints")
        print(shell_line, file=sys.stderr)
        training.train(title, line, cfg.threads, updates, log)
        stages.finish("train", current, line=shell_line)

    current = key(current, cfg.average)
    if stages.needs("average", current):
        averaged = folder / "model.pt"
        average(last_checkpoints(folder / "checkpoints", cfg.average), averaged)
        stages.finish("average", current, sizes=sizes_of_checkpoint(averaged))
    return current


def _set_aside(path: Path) -> None:
    """Rename *path* to ``PATH.old``, in the place of an earlier one."""
    if path.exists():
        old = path.with_name(f"{path.name}.old")
        if old.is_dir():
            shutil.rmtree(old)
        path.replace(old)
        print(f"the settings have changed: {path.name} is now {old}", file=sys.stderr)


def learning(curves: list[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """Return (updates, seconds, value) of both losses and of validation's CIDEr-D, and the end."""
    points: dict[str, list] = {"train": [], "valid": [], "ciderd": []}
    seconds = 0.0
    for kind, values in curves:
        seconds = float(values.get("wall") or values.get("train_wall") or seconds)
        found = {"valid": values.get("valid_nll_loss"), "ciderd": values.get("valid_ciderd")}
        if kind == "train_inner":
            found = {"train": values.get("nll_loss")}
        for where, value in found.items():
            if value is not None:
                points[where].append((int(values["num_updates"]), seconds, float(value)))
    updates = max((int(values["num_updates"]) for _, values in curves), default=0)
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
    packages = ("torch", "sacrebleu", "pycocoevalcap", "sentencepiece", "timm", "hydra-core")
    return {
        "processor": processor,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        **{package: version(package) for package in packages},
    }
