"""What a search costs beside training, and what a second worker brings.

python -m benchmarks.search            # about four minutes on two cores that do nothing else
python -m benchmarks.search --quick    # a few steps, to see that it runs
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

LOSS = "proxyanchor"
RATIO = 1.7  # asked of two workers against one
SHARE = 0.03  # of the wall clock that may go elsewhere than into training and validation

# Every fold takes as long as any other, whatever it finds.
TRUNK = "convnet"
PROTOCOL = "mlrc+lr=0.003+max_steps=400+patience=8+resize=28+validate_every=50"
QUICK = "mlrc+max_steps=6+validate_every=3"

# Functions beside training and validation, and what they do.
PARTS = {
    "_save": "checkpoints",
    "claim": "choosing trials",
    "build_model": "building models",
    "write": "records",
    "finish": "telling results",
}


class Clock:
    """Adds up the seconds that calls of some functions take."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def watch(self, owner: Any, name: str) -> None:
        call = getattr(owner, name)
        self.seconds[name] = 0.0

        def timed(*arguments: Any, **more: Any) -> Any:
            start = time.perf_counter()
            try:
                return call(*arguments, **more)
            finally:
                self.seconds[name] += time.perf_counter() - start

        setattr(owner, name, timed)


def search_here(trials: int, protocol: str, runs: str) -> dict[str, float]:
    """One worker in this process, with a clock on each of its parts."""
    import_module("torch._dynamo")  # which the first optimizer would load, once in a process

    import harness
    from harness.records.records import FoldRecord
    from harness.searching import loop, study
    from harness.training import unit
    from harness.training.trainer import Trainer

    clock = Clock()
    clock.watch(loop, "work")
    clock.watch(Trainer, "fit")
    clock.watch(Trainer, "_save")
    clock.watch(study.Study, "claim")
    clock.watch(study.Study, "finish")
    clock.watch(unit, "build_model")
    clock.watch(FoldRecord, "write")
    what = partial(harness.search, LOSS, trials=trials, protocol=protocol, trunk=TRUNK)
    what(runs_dir=runs, workers=1, device="cpu")
    return clock.seconds


def run_one(trials: int, protocol: str, runs: Path) -> tuple[float, dict[str, float]]:
    arguments = ["-m", "benchmarks.search", "--only", str(trials), protocol, str(runs)]
    return run([sys.executable, *arguments])


def run_two(trials: int, protocol: str, runs: Path) -> float:
    what = ["--loss", LOSS, "--trials", str(trials), "--protocol", protocol, "--device", "cpu"]
    how = ["--workers", "2", "--runs-dir", str(runs), "--trunk", TRUNK]
    return run([sys.executable, "-m", "harness", "search", *what, *how])[0]


def run(command: list[str]) -> tuple[float, dict[str, float]]:
    """Seconds of a whole command, from its start to its end, and what it reports."""
    start = time.perf_counter()
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=alone)
    seconds = time.perf_counter() - start
    last = done.stdout.strip().splitlines()[-1]
    return seconds, json.loads(last) if last.startswith("{") else {}


def judge(met: bool, asked: str, quick: bool) -> str:
    return "" if quick else f"  {'ok' if met else 'MISSED'} (asked: {asked})"


def print_ratio(one: float, two: float, quick: bool) -> None:
    judged = judge(one / two >= RATIO, f"at least {RATIO}", quick)
    print(f"one worker {one:.1f} s, two workers {two:.1f} s: {one / two:.2f} times as fast{judged}")


def print_overhead(seconds: dict[str, float], quick: bool) -> None:
    """Checkpoints are written while a model is fitted, and yet are no training."""
    wall = seconds["work"]
    outside = wall - seconds["fit"] + seconds["_save"]
    judged = judge(outside / wall <= SHARE, f"at most {SHARE:.0%}", quick)
    share = f"{outside / wall:.1%} of {wall:.1f} s"
    print(f"one worker, outside training and validation: {share}{judged}")
    for name, what in PARTS.items():
        print(f"  {what}: {seconds[name] / wall:.1%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few steps per fold")
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--only", nargs=3, metavar=("TRIALS", "PROTOCOL", "RUNS"), help="internal")
    options = parser.parse_args()
    if options.only:
        trials, protocol, runs = options.only
        print(json.dumps(search_here(int(trials), protocol, runs)))
        return
    protocol = QUICK if options.quick else PROTOCOL
    with tempfile.TemporaryDirectory() as name:
        run_one(1, QUICK, Path(name, "set-up"))  # glyphs are drawn, files are in memory
        one, parts = run_one(options.trials, protocol, Path(name, "one"))
        two = run_two(options.trials, protocol, Path(name, "two"))
    print(f"{LOSS} on glyphs, {protocol}, {options.trials} trials")
    print_ratio(one, two, options.quick)
    print_overhead(parts, options.quick)


if __name__ == "__main__":
    main()
