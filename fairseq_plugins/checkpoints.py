"""Reading fairseq checkpoints, safely and with clear errors."""

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from fairseq.checkpoint_utils import load_checkpoint_to_cpu, load_model_ensemble_and_task
from fairseq.data import Dictionary
from fairseq.models import build_model
from torch import nn

from fairseq_plugins.errors import UserError
from fairseq_plugins.models.visual import VisualSource


def _explain(path: Path, error: Exception) -> UserError:
    if isinstance(error, FileNotFoundError):
        return UserError(f"{path.resolve()}: no such checkpoint; check the path")
    reason = (str(error).splitlines() or ["no content"])[0].partition(". ")[0][:120]
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


def sharing(state: dict[str, Any]) -> dict[str, Any]:
    """Return how the model of a checkpoint's *state* dict shares; nothing where it does not."""
    described = state.get("sharing_version")
    return json.loads(bytes(described.tolist())) if described is not None else {}


def load_models(paths: Sequence[Path], overrides: dict | None = None, task=None):
    """Return (models, configuration, task) of one checkpoint or of an ensemble.

    Args:
        overrides: option -> value that replaces what the checkpoint was made with.
        task: to build the models for; None: the checkpoint's own.

    Raises:
        UserError: as :func:`load`; the data that the task reads its dictionaries from is gone.
    """
    for path in paths:
        trained_on = load(path)["cfg"]["task"]["data"]
        data = (overrides or {}).get("data", trained_on)
        if not Path(data).is_dir():
            raise UserError(
                f"{Path(data).resolve()}: no such folder, which has the dictionaries of {path}: "
                "name the prepared folder with --data"
            )
    return load_model_ensemble_and_task([str(path) for path in paths], overrides, task)


def load_bare(path: Path) -> nn.Module:
    """Return a checkpoint's model for looking at, without the data it was trained on.

    Raises:
        UserError: as :func:`load`.
    """
    load(path)
    state = load_checkpoint_to_cpu(str(path))
    cells = sharing(state["model"]).get("cells")
    rows = state["model"]["encoder.embed_tokens.weight"].shape[0]
    target = state["model"].get("decoder.embed_tokens.weight")
    source_words = nameless_dictionary(rows)
    joined = target is None or state["cfg"].model.get("share_all_embeddings")
    target_words = source_words if joined else nameless_dictionary(target.shape[0])
    task = SimpleNamespace(source_dictionary=source_words, target_dictionary=target_words)
    if cells:
        task.visual_source = VisualSource.of(cells)
    model = build_model(state["cfg"].model, task, from_checkpoint=True)
    weights = {k: v for k, v in state["model"].items() if ".backbone." not in k}
    model.load_state_dict(weights, strict=not cells)
    return model


def nameless_dictionary(rows: int) -> Dictionary:
    """Return a dictionary of *rows* entries, fairseq's four special ones among them."""
    dictionary = Dictionary()
    for i in range(rows - len(dictionary)):
        dictionary.add_symbol(str(i))
    return dictionary
