"""Reading fairseq checkpoints, safely and with clear errors."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from fairseq_plugins.errors import UserError


def _explain(path: Path, error: Exception) -> UserError:
    if isinstance(error, FileNotFoundError):
        return UserError(f"{path.resolve()}: no such checkpoint; check the path")
    reason = (str(error).splitlines() or ["no content"])[0][:120]
    return UserError(
        f"{path.resolve()}: not a readable fairseq checkpoint ({reason}); "
        "it may be truncated: use an earlier one"
    )


def load(path: Path) -> dict[str, Any]:
    """Return the checkpoint's content, on the CPU; only tensors and plain values are unpickled.

    Raises:
        UserError: no such file, a truncated one, or one that fairseq did not write.
    """
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        state["model"], state["cfg"]
    except Exception as error:  # torch raises many kinds for a damaged file
        raise _explain(Path(path), error) from error
    return state


def load_models(paths: Sequence[Path], overrides: dict | None = None, task=None):
    """Return (models, configuration, task) of one checkpoint or of an ensemble.

    Args:
        overrides: option -> value that replaces what the checkpoint was made with.
        task: a task to build the models for, instead of the checkpoint's own.

    Raises:
        UserError: as :func:`load`.
    """
    from fairseq.checkpoint_utils import load_model_ensemble_and_task

    for path in paths:
        load(path)
    return load_model_ensemble_and_task([str(path) for path in paths], overrides, task)
