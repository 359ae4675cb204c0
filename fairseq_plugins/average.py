"""The mean of several checkpoints' weights."""

import io
import re
from collections.abc import Sequence
from pathlib import Path

import torch

from fairseq_plugins.checkpoints import load
from fairseq_plugins.errors import UserError
from fairseq_plugins.files import atomic


def numbered_checkpoints(folder: Path) -> list[Path]:
    """Return checkpoint_E_U.pt and checkpointE.pt of *folder*, newest first."""
    numbered = re.compile(r"checkpoint(\d+|_\d+_\d+)\.pt")
    paths = [path for path in folder.iterdir() if numbered.fullmatch(path.name)]
    return sorted(paths, key=lambda path: path.stat().st_mtime, reverse=True)


def last_checkpoints(folder: Path, count: int) -> list[Path]:
    """Return the *count* newest numbered checkpoints of *folder*, newest first.

    Those by epoch (checkpointE.pt) and by updates (checkpoint_E_U.pt) count alike: where an epoch
    ends at an interval of updates, fairseq writes the former only.

    Raises:
        UserError: no such folder, or fewer than *count* are there.
    """
    if not folder.is_dir():
        raise UserError(f"{folder.resolve()}: no such folder; check --inputs")
    paths = numbered_checkpoints(folder)
    if len(paths) < count:
        raise UserError(
            f"{folder.resolve()}: {len(paths)} numbered checkpoints, {count} asked for: "
            "lower --last, or keep more in training (--keep-interval-updates, --keep-last-epochs)"
        )
    return paths[:count]


def average(checkpoints: Sequence[Path], output: Path) -> None:
    """Write the mean of *checkpoints* to *output*, as a checkpoint without optimiser state.

    Tensors that share memory in the first checkpoint are averaged once and share it in the
    output. Integer tensors and everything but the weights are the first checkpoint's.

    Raises:
        UserError: a file that is no checkpoint, or checkpoints of different models.
    """
    first = load(checkpoints[0])
    first.pop("last_optimizer_state", None)
    model = first["model"]
    owners: dict[tuple, str] = {}
    owner = {
        name: owners.setdefault((tensor.data_ptr(), tensor.shape, tensor.stride()), name)
        for name, tensor in model.items()
    }
    totals = {
        name: tensor.to(torch.float64, copy=True)
        for name, tensor in model.items()
        if owner[name] == name and tensor.is_floating_point()
    }
    for path in checkpoints[1:]:
        other = load(path)["model"]
        if {k: v.shape for k, v in other.items()} != {k: v.shape for k, v in model.items()}:
            raise UserError(
                f"{path}: not of the same model as {checkpoints[0]}: average checkpoints of one run"
            )
        for name, total in totals.items():
            total += other[name]
    means = {name: (t / len(checkpoints)).to(model[name].dtype) for name, t in totals.items()}
    first["model"] = {name: means.get(owner[name], model[name]) for name in model}
    buffer = io.BytesIO()  # torch reports a full disk as an error of its own
    torch.save(first, buffer)
    with atomic(output) as temporary:
        temporary.write_bytes(buffer.getbuffer())
