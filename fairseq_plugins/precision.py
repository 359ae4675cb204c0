"""Number formats: what a machine cannot run, or runs slower, is refused."""

import time
from functools import cache

import torch
from omegaconf import OmegaConf

from fairseq_plugins.errors import UserError


def refuse_half_on_cpu(model_cfg) -> None:
    """Refuse ``--fp16``, ``--bf16`` and ``--amp`` together with ``--cpu``.

    Args:
        model_cfg: the model's part of fairseq's configuration; the whole is its parent.

    Raises:
        UserError: names both options.
    """
    root = model_cfg._get_parent() if OmegaConf.is_config(model_cfg) else None
    if root is None or not root.get("common", {}).get("cpu"):
        return
    for option in ("fp16", "bf16", "amp"):
        if root.common.get(option):
            raise UserError(
                f"--{option} with --cpu: fairseq has no such path on a CPU; leave --{option} out "
                "(--cpu-autocast trains in bfloat16 where the CPU has it)"
            )


def cpu_autocast(device: torch.device) -> torch.autocast:
    """Return the context in which matrix products run in bfloat16 on a CPU.

    Raises:
        UserError: *device* is not a CPU, or this CPU is slower in bfloat16.
    """
    if device.type != "cpu":
        raise UserError(
            f"--cpu-autocast on {device.type}: it is for CPUs; use --bf16 or --fp16 there, "
            "or add --cpu"
        )
    if (ratio := bfloat16_speed()) < 1:
        raise UserError(
            f"--cpu-autocast: this CPU multiplies matrices in bfloat16 at {ratio:.2f} times the "
            "speed of fp32; leave --cpu-autocast out"
        )
    return torch.autocast("cpu", torch.bfloat16)


@cache
def bfloat16_speed(size: int = 512, repeats: int = 5) -> float:
    """Return the measured speed of a bfloat16 matrix product relative to fp32 on this CPU."""
    best = {}
    for kind in (torch.float32, torch.bfloat16):
        a = torch.ones(size, size, dtype=kind)
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            a @ a
            times.append(time.perf_counter() - start)
        best[kind] = min(times)
    return best[torch.float32] / best[torch.bfloat16]
