"""The architecture in fairseq's own commands, as a user runs them."""

import json

import pytest
import torch

from fairseq_plugins.average import average, last_checkpoints
from fairseq_plugins.checkpoints import load, load_models
from tests.helpers import USER_DIR, fairseq

SIZES = {"encoder_embed_dim": 16, "encoder_ffn_embed_dim": 16, "dropout": 0.0, "factor_dim": 8}
KINDS = {
    "sequence": {"share_pattern": "sequence", "encoder_stored_layers": 2},
    "veps": {"weight_source": "veps"},
}
TRAINING = {
    "optimization": {"lr": 0.01, "clip_norm": 1.0},
    "dataset": {"max_tokens": 64, "required_batch_size_multiple": 1},
    "common": {"seed": 1, "cpu": True, "user_dir": USER_DIR, "log_format": "json"},
    "checkpoint": {"save_interval_updates": 1},
}


def options(*groups):
    line = []
    for group in groups:
        for name, value in group.items():
            line += [f"--{name.replace('_', '-')}"] + ([] if value is True else [str(value)])
    return line


def train(data, save_dir, *more, arch="share_transformer_tiny", check=True, **model):
    return fairseq(
        "train",
        data,
        f"--arch={arch}",
        f"--save-dir={save_dir}",
        "--optimizer=adam",
        *options(SIZES | model, *TRAINING.values()),
        *more,
        check=check,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a16_a17_resume_is_exact_then_generate_and_average(data, tmp_path, kind):
    model = KINDS[kind]
    train(data, tmp_path / "once", "--max-update=4", **model)
    train(data, tmp_path / "twice", "--max-update=2", **model)
    train(data, tmp_path / "twice", "--max-update=4", **model)
    once = load(tmp_path / "once" / "checkpoint_last.pt")
    twice = load(tmp_path / "twice" / "checkpoint_last.pt")
    assert once["model"].keys() == twice["model"].keys()
    assert all(torch.equal(once["model"][k], twice["model"][k]) for k in once["model"])
    iterators = [state["extra_state"]["train_iterator"] for state in (once, twice)]
    assert iterators[0] == iterators[1]  # the same place in the same order of samples

    mean = tmp_path / "mean.pt"
    newest = last_checkpoints(tmp_path / "twice", 2)
    average(newest, mean)
    states = [load(path)["model"] for path in newest]
    for name, tensor in load(mean)["model"].items():
        if tensor.is_floating_point():
            assert torch.allclose(tensor, (states[0][name] + states[1][name]) / 2)
    model = load_models([mean])[0][0]
    assert (
        model.encoder.layers[0].fc1.weight is model.encoder.layers[1].fc1.weight or kind == "veps"
    )

    arguments = ["--gen-subset=test", "--cpu", "--beam=2", f"--user-dir={USER_DIR}"]
    arguments += ["--max-len-b=9", "--required-batch-size-multiple=1"]
    paths = f"{mean}:{tmp_path / 'once' / 'checkpoint_last.pt'}"  # an ensemble
    result = fairseq("generate", data, f"--path={paths}", *arguments)
    assert result.stdout.count("\nH-") == 8


def test_hydra_builds_the_same_model_and_resumes(data, tmp_path):
    model = {"encoder_layers": 2, "weight_source": "veps", "share_all_embeddings": True}
    train(data, tmp_path / "line", "--max-update=1", **model)
    arguments = [
        "task=translation",
        f"task.data={data}",
        "+model._name=share_transformer_tiny",
        "optimizer=adam",
        "criterion=cross_entropy",
        *(f"+model.{name}={value}" for name, value in (SIZES | model).items()),
        *(
            f"{group}.{name}={[value] if name == 'lr' else value}"
            for group, values in TRAINING.items()
            for name, value in values.items()
        ),
        f"checkpoint.save_dir={tmp_path / 'hydra'}",
        f"hydra.run.dir={tmp_path / 'run'}",
    ]
    for updates in (1, 2):
        fairseq("hydra_train", *arguments, f"optimization.max_update={updates}")
    line = load(tmp_path / "line" / "checkpoint_last.pt")
    hydra = load(tmp_path / "hydra" / "checkpoint_last.pt")
    assert hydra["cfg"]["model"] == line["cfg"]["model"] | {"_name": "share_transformer_tiny"}
    assert hydra["model"].keys() == line["model"].keys()
    assert all(hydra["model"][k].shape == v.shape for k, v in line["model"].items())
    assert hydra["model"]["encoder.embed_tokens.weight"].shape[1] == 8
    assert len([k for k in hydra["model"] if k.endswith("fc1.bias")]) == 5  # 2 + 3 layers


FAULTS = {
    "does not fit": (
        {"weight_source": "eps", "share_all_embeddings": True},
        [],
        ["need", "columns", "What fits", "--virtual-dim"],
    ),
    "M > N": ({"decoder_stored_layers": 9}, [], ["9 stored layers cannot serve 3"]),
    "a30 fp16 on a CPU": ({}, ["--fp16"], ["--fp16", "--cpu"]),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_one_line_on_standard_error(data, tmp_path, fault):
    model, arguments, words = FAULTS[fault]
    result = train(data, tmp_path, "--max-update=1", *arguments, check=False, **model)
    assert result.returncode == 1
    *_, last = result.stderr.strip().splitlines()
    assert all(word in last for word in words), result.stderr[-2000:]
    assert "Traceback" not in result.stderr


def test_another_kind_of_checkpoint_is_refused(data, tmp_path):
    train(data, tmp_path, "--max-update=1")
    result = train(data, tmp_path, "--max-update=2", check=False, weight_source="veps")
    assert result.returncode == 1
    assert "the checkpoint is stored / cycle" in result.stderr.strip().splitlines()[-1]
    assert "Traceback" not in result.stderr


def test_moving_average_and_layerdrop_train(data, tmp_path):
    train(
        data, tmp_path, "--store-ema", "--max-update=2", "--encoder-layerdrop=0.5", **KINDS["veps"]
    )
    assert load(tmp_path / "checkpoint_last.pt")["extra_state"]["ema"].keys()


def test_a16_reset_optimizer_forgets_the_best_score(data, tmp_path):
    def best(result):
        lines = [line for line in result.stdout.splitlines() if "| valid | {" in line]
        values = json.loads(lines[-1].partition("| valid | ")[2])
        return float(values["valid_loss"]), float(values["valid_best_loss"])

    loss, _ = best(train(data, tmp_path, "--max-update=3", "--valid-subset=valid"))
    # a learning rate that spoils the model: with the old best score kept, it would stay the best
    reset = ("--reset-optimizer", "--max-update=6", "--valid-subset=valid", "--lr=5")
    worse, forgotten = best(train(data, tmp_path, *reset))
    assert worse > loss
    assert forgotten > loss
