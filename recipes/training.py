"""The one way to train: a recipe renders to one ``fairseq-train`` line, which is run."""

import ctypes
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from tqdm import tqdm

import fairseq_plugins
from fairseq_plugins.average import numbered_checkpoints
from fairseq_plugins.checkpoints import load
from fairseq_plugins.errors import UserError
from fairseq_plugins.files import atomic
from recipes.tasks import use_gpu

# glibc then keeps the large blocks of a step instead of giving them back to the kernel
MALLOC = {"MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "8589934592"}
PRECISIONS = ("fp32", "cpu_autocast", "fp16", "bf16")


def phases(cfg: DictConfig) -> dict[str, dict[str, Any]]:
    """Return the trainings of a recipe, in turn: name -> options of ``fairseq-train``.

    The first has no name and is ``train``; ``self_critical`` says what differs in a second one,
    which starts from the first one's average.

    Raises:
        UserError: one of them writes fewer checkpoints than ``average`` takes.
    """
    train = OmegaConf.to_container(cfg.train, resolve=True)
    found = {"": train}
    if cfg.get("self_critical"):
        found["self_critical"] = train | OmegaConf.to_container(cfg.self_critical, resolve=True)
    for name, options in found.items():
        updates, interval = options["max_update"], options["save_interval_updates"]
        if interval and updates // interval < cfg.average:  # 0: a checkpoint an epoch
            where = name or "train"
            raise UserError(
                f"average={cfg.average}: {where} writes {updates // interval} checkpoints, one in "
                f"{interval} of {updates} updates: lower "
                f"average or {where}.save_interval_updates"
            )
    return found


def arguments(
    cfg: DictConfig, task, save_dir: Path, train: dict[str, Any], start: Path | None = None
) -> list[str]:
    """Return the arguments of ``fairseq-train`` for one training of one system of a recipe.

    Args:
        cfg: the system's configuration.
        task: one of :mod:`recipes.tasks`.
        save_dir: the folder of the checkpoints.
        train: one of :func:`phases`.
        start: the checkpoint whose weights it starts with; None: at random.

    Raises:
        UserError: an unknown device or precision, or one that does not run there.
    """
    options: dict[str, Any] = {
        "user_dir": Path(fairseq_plugins.__file__).parent,
        "task": cfg.task,
        **task.options(),
        "save_dir": save_dir.resolve(),
        "arch": "share_transformer",
        **OmegaConf.to_container(cfg.model, resolve=True),
        **OmegaConf.to_container(cfg.sharing.options, resolve=True),
        **train,
        "required_batch_size_multiple": 1,
        "log_format": "json",
        **_hardware(cfg),
        "finetune_from_model": start and start.resolve(),
    }
    line = [str(task.data.resolve())]
    for name, value in options.items():
        if value is True:
            line.append(f"--{name.replace('_', '-')}")
        elif value is not None and value is not False:
            line += [f"--{name.replace('_', '-')}", str(value)]
    return line


def _hardware(cfg: DictConfig) -> dict[str, bool]:
    if cfg.device not in ("auto", "cpu", "cuda"):
        raise UserError(f"device={cfg.device}: choose auto, cpu or cuda")
    if cfg.precision not in PRECISIONS:
        raise UserError(f"precision={cfg.precision}: choose from {', '.join(PRECISIONS)}")
    cpu = not use_gpu(cfg)
    if cpu and cfg.precision in ("fp16", "bf16"):
        raise UserError(
            f"--{cfg.precision} with --cpu: precision={cfg.precision} needs a GPU; "
            "use precision=fp32 or precision=cpu_autocast"
        )
    return {"cpu": cpu} | ({} if cfg.precision == "fp32" else {cfg.precision: True})


def shell_line(line: list[str], threads: int) -> str:
    """Return the command as a person would paste it into a shell."""
    variables = " ".join(f"{name}={value}" for name, value in _environment(threads).items())
    return f"{variables} {shlex.join(['fairseq-train', *line])}"


def _environment(threads: int) -> dict[str, str]:
    return {"OMP_NUM_THREADS": str(threads), **MALLOC}


def train(name: str, line: list[str], threads: int, updates: int, log: Path) -> None:
    """Run ``fairseq-train`` to its end, from its last checkpoint if there is one.

    Args:
        name: what the progress bar says.
        line: the arguments.
        threads: of the processor.
        updates: at which training ends.
        log: all that fairseq says is appended to it.

    Raises:
        UserError: fairseq stopped; the message has its last words and the log's path.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "fairseq_cli.train", *line]
    last = ""
    with (
        open(log, "a") as file,
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | _environment(threads),
            preexec_fn=_end_with_parent if sys.platform == "linux" else None,
        ) as process,
        tqdm(total=updates, desc=name, unit=" updates") as bar,
    ):
        for text in process.stdout or ():
            file.write(text)
            file.flush()
            last = text.strip() or last
            for kind, values in read_log([text]):
                loss = values.get("nll_loss") or values.get(f"{kind}_nll_loss")
                bar.set_postfix_str(f"nll_loss {loss}", refresh=False)
                bar.update(int(values["num_updates"]) - bar.n)
    if process.returncode:
        raise UserError(f"{name}: training stopped: {last} (all of it: {log.resolve()})")


def recover(checkpoints: Path) -> None:
    """Put the newest whole checkpoint in the place of a truncated checkpoint_last.pt.

    fairseq copies its newest checkpoint there, and a kill or a full disk can cut the copy short.
    """
    last = checkpoints / "checkpoint_last.pt"
    if not last.exists():
        return
    for path in [last, *numbered_checkpoints(checkpoints)]:
        try:
            load(path)
        except UserError as error:
            print(f"warning: {error}", file=sys.stderr)
            continue
        if path != last:
            print(f"training goes on from {path.name}", file=sys.stderr)
            with atomic(last) as temporary:
                shutil.copyfile(path, temporary)
        return
    last.unlink()


def _end_with_parent() -> None:
    """Ask Linux to end this process with its parent, so that a killed run leaves no training."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
    if os.getppid() == 1:
        os._exit(1)


def read_log(lines) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (kind, values) of each JSON entry in fairseq's log: train_inner, train or valid.

    ``num_updates`` is the same key in each kind.
    """
    for line in lines:
        head, brace, rest = line.partition("| {")
        kind = head.rstrip().rpartition("| ")[2]
        if brace and kind in ("train_inner", "train", "valid"):
            values = json.loads("{" + rest)
            updates = values.get("num_updates") or values.get(f"{kind}_num_updates")
            yield kind, values | {"num_updates": updates}
