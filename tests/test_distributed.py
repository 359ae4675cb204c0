"""Two processes on one CPU."""

import os
import socket
import subprocess
import sys

import torch

from fairseq_plugins.checkpoints import load
from tests.helpers import USER_DIR
from tests.models.conftest import data  # noqa: F401
from tests.models.test_commands import SIZES, TRAINING, options


def test_a22_a23_two_processes_train(data, tmp_path):  # noqa: F811
    """Every worker knows the architecture, and no parameter is left without a gradient."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    line = [
        data,
        "--arch=share_transformer_tiny",
        "--weight-source=veps",
        "--optimizer=adam",
        "--max-update=2",
        f"--user-dir={USER_DIR}",
        f"--save-dir={tmp_path}",
        "--distributed-world-size=2",
        f"--distributed-init-method=tcp://127.0.0.1:{port}",
        "--distributed-no-spawn",
        "--distributed-backend=gloo",
        "--ddp-backend=legacy_ddp",
        *options(SIZES, *TRAINING.values()),
    ]
    code = "from fairseq_cli.train import cli_main; cli_main()"
    workers = [
        subprocess.Popen(
            [
                sys.executable,
                "-W",
                "ignore",
                "-c",
                code,
                *map(str, line),
                f"--distributed-rank={rank}",
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=os.environ | {"GLOO_SOCKET_IFNAME": "lo"},
            text=True,
        )
        for rank in (0, 1)
    ]
    outputs = [worker.communicate(timeout=200)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], outputs[0][-2000:]
    state = load(tmp_path / "checkpoint_last.pt")
    assert state["optimizer_history"][-1]["num_updates"] == 2
    assert all(torch.isfinite(t).all() for t in state["model"].values())
