"""Seconds and peak memory of ``translation prepare``.

python -m benchmarks.prepare                 a corpus made of the demo's sentences
python -m benchmarks.prepare --train PREFIX  a corpus of yours, PREFIX.en and PREFIX.vi
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.measure import report
from recipes.config import HERE

CODE = """import atexit, resource, sys, fairseq_share
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
atexit.register(lambda: print(peak(), file=sys.stderr))
fairseq_share.main()"""


def main(
    train: Annotated[Path | None, typer.Option(help="Prefix of .en and .vi.")] = None,
    pairs: Annotated[int, typer.Option(help="Pairs to make, without --train.")] = 137_000,
    vocab_size: Annotated[int, typer.Option(help="Rows of the table.")] = 8000,
    as_json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """Run the command in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        demo = HERE / "demo_data"
        if train is None:
            train, vocab_size = Path(folder) / "train", 1400
            for lang in ("en", "vi"):
                lines = (demo / f"train.{lang}").read_text().splitlines(keepends=True)
                (Path(folder) / f"train.{lang}").write_text(
                    "".join(lines[i % len(lines)] for i in range(pairs))
                )
        line = ["translation", "prepare", "--source-lang=en", "--target-lang=vi"]
        line += [f"--train={train}", f"--valid={demo / 'valid'}", f"--test={demo / 'test'}"]
        line += [f"--vocab-size={vocab_size}", f"--out={folder}/out"]
        start = time.perf_counter()
        command = [sys.executable, "-c", CODE, *line]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stderr
        seconds = time.perf_counter() - start
    peak = int(printed.split()[-1]) / 1024
    rows = {"prepare": {"seconds": seconds, "peak MB": peak}}
    report("prepare", rows, as_json, train=str(train), vocab_size=vocab_size)


if __name__ == "__main__":
    typer.run(main)
