"""Timing in turns, peak memory in a process of its own, and the lines that say where."""

import ctypes
import datetime
import gc
import json
import multiprocessing
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from recipes.runner import machine


def in_turns(variants: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Return seconds of each call, name -> *rounds* times; the variants take turns.

    Each is called once before, unmeasured.
    """
    for call in variants.values():
        call()
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, call in variants.items():
            start = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def ratios(seconds: Mapping[str, list[float]], base: str) -> dict[str, dict[str, float]]:
    """Return min, median and max of each variant's time over *base*'s of the same round."""
    return {
        name: dict(zip(("min", "median", "max"), _spread(times, seconds[base]), strict=True))
        for name, times in seconds.items()
    }


def _spread(times: list[float], base: list[float]) -> tuple[float, float, float]:
    values = [a / b for a, b in zip(times, base, strict=True)]
    return min(values), statistics.median(values), max(values)


def peak_memory(prepare: Callable[..., Callable[[], object]], *arguments, calls: int = 3) -> float:
    """Return MB by which *calls* calls raise a new process's resident memory at their peak.

    Linux only: the kernel's high-water mark, set back after the preparation.

    Args:
        prepare: called in that process with *arguments*; its memory is not counted, the memory of
            the call that it returns is. Both must be importable.
    """
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        return pool.apply(_peak, (prepare, arguments, calls, torch.get_num_threads()))


def _peak(prepare, arguments, calls: int, threads: int) -> float:
    torch.set_num_threads(threads)
    call = prepare(*arguments)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = _resident("VmRSS")
    for _ in range(calls):
        call()
    return _resident("VmHWM") - before


def _resident(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


def report(name: str, rows: Mapping[str, Mapping[str, float]], as_json: bool, **facts) -> None:
    """Print a table of *rows*, or one JSON object, with the machine and the date."""
    facts |= {"date": datetime.date.today().isoformat(), "machine": machine()}
    facts |= {"threads": torch.get_num_threads()}
    if as_json:
        print(json.dumps({"benchmark": name, "rows": rows, **facts}))
        return
    print(name, *(f"{key}={value}" for key, value in facts.items()), sep="\n  ")
    for row, values in rows.items():
        print(f"{row:28}", *(f"{key} {value:9.3f}" for key, value in values.items()), sep="  ")
