"""Each work-around is still needed, and does what it should."""

import argparse
import subprocess
import sys

import pytest
import timm
import torch
from timm.models import load_state_dict

import fairseq_plugins  # noqa: F401
from captioning.backbones import Backbone
from fairseq_plugins.checkpoints import load
from fairseq_plugins.errors import UserError


def test_a17_torch_still_refuses_fairseqs_checkpoints_by_itself(tmp_path):
    path = tmp_path / "checkpoint.pt"
    torch.save({"args": argparse.Namespace(x=1)}, path)
    code = f"import torch; torch.load({str(path)!r})"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "Weights only load failed" in result.stderr
    assert torch.load(path)["args"].x == 1  # with this package imported


def test_a17_checkpoints_load_after_timm_has_loaded_weights(tmp_path):
    weights, path = tmp_path / "weights.pt", tmp_path / "checkpoint.pt"
    torch.save(timm.create_model("test_efficientnet").state_dict(), weights)
    torch.save({"args": argparse.Namespace(x=1), "model": {}, "cfg": {}}, path)
    load_state_dict(weights)
    with pytest.raises(UserError):
        load(path)
    Backbone("test_efficientnet", weights)
    assert load(path)["args"].x == 1


class Surprise:
    pass


def test_loading_stays_safe(tmp_path):
    path = tmp_path / "checkpoint.pt"
    torch.save({"model": {}, "cfg": {}, "surprise": Surprise()}, path)
    with pytest.raises(UserError, match=r"checkpoint\.pt: not a readable"):
        load(path)


@pytest.mark.parametrize("keep", [0, 50, 0.5, 0.99])
def test_truncated_checkpoint_is_one_line(tmp_path, keep):
    path = tmp_path / "checkpoint.pt"
    torch.save({"model": {"a": torch.ones(1000)}, "cfg": {}}, path)
    content = path.read_bytes()
    path.write_bytes(content[: keep if keep in (0, 50) else int(len(content) * keep)])
    with pytest.raises(UserError, match="truncated: use an earlier one") as refused:
        load(path)
    assert "\n" not in str(refused.value)


def test_missing_and_foreign_files(tmp_path):
    with pytest.raises(UserError, match="no such checkpoint"):
        load(tmp_path / "none.pt")
    torch.save({"weights": {}}, tmp_path / "other.pt")
    with pytest.raises(UserError, match="not a readable fairseq checkpoint"):
        load(tmp_path / "other.pt")
