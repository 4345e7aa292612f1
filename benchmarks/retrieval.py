"""Time and peak memory of `harness.metrics.retrieval.evaluate` against PML's AccuracyCalculator.

With one thread, which is what every protocol uses, and with two.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from torch import Tensor

from harness.metrics import retrieval
from harness.metrics.names import METRICS
from harness.system.device import THREAD_VARIABLES, choose_device

CONTENDERS = ("ours", "pml")
THREADS = (1, 2)
PML_NAMES = {
    "map_at_r": "mean_average_precision_at_r",
    "r_precision": "r_precision",
    "p_at_1": "precision_at_1",
}
MEBIBYTE = 2**20


@dataclass(frozen=True)
class Case:
    """Clustered random unit vectors; `spread` sets the noise around the class centres."""

    size: int
    dimensions: int
    classes: int
    spread: float  # the table's MAP@R tells how hard the data is

    def __str__(self) -> str:
        return f"{self.size:,} x {self.dimensions}, {self.classes:,} classes"


CASES = (
    Case(8_131, 512, 98, spread=3.0),
    Case(60_502, 128, 11_316, spread=1.1),
    Case(60_502, 512, 11_316, spread=1.9),
)
QUICK_CASES = (Case(500, 16, 95, spread=1.0),)


@dataclass(frozen=True)
class Run:
    seconds: float
    peak_bytes: int
    scores: list[float]


def class_sizes(case: Case, random: np.random.Generator) -> np.ndarray:
    """Equal sizes if classes are large, else between 2 and 12 like Stanford Online Products."""
    mean = case.size / case.classes
    if mean > 12:
        return np.bincount(np.arange(case.size) % case.classes)
    sizes = 2 + random.binomial(10, (mean - 2) / 10, case.classes)
    while (missing := case.size - sizes.sum()) != 0:
        step = int(np.sign(missing))
        able = np.flatnonzero((sizes + step >= 2) & (sizes + step <= 12))
        sizes[random.choice(able, min(abs(missing), len(able)), replace=False)] += step
    return sizes


def make_data(case: Case, folder: Path) -> None:
    """Write embeddings.npy and labels.npy, so that making them does not count as memory."""
    random = np.random.default_rng(0)
    labels = random.permutation(np.repeat(np.arange(case.classes), class_sizes(case, random)))
    points = random.standard_normal((case.classes, case.dimensions), dtype=np.float32)[labels]
    points += case.spread * random.standard_normal(points.shape, dtype=np.float32)
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    np.save(folder / "embeddings.npy", points)
    np.save(folder / "labels.npy", labels)


def score_ours(embeddings: Tensor, labels: Tensor) -> list[float]:
    values = retrieval.evaluate(embeddings, labels).values
    return [values[name] for name in METRICS]


def score_pml(embeddings: Tensor, labels: Tensor) -> list[float]:
    calculator = AccuracyCalculator(
        include=tuple(PML_NAMES.values()), k="max_bin_count", device=torch.device("cpu")
    )
    found = calculator.get_accuracy(embeddings, labels)
    return [found[PML_NAMES[name]] for name in METRICS]


def memory_bytes(field: str) -> int:
    """VmRSS (now) or VmHWM (highest) of this process."""
    status = Path("/proc/self/status").read_text()
    found = re.search(rf"^{field}:\s+(\d+) kB", status, re.MULTILINE)
    if found is None:
        raise RuntimeError(f"/proc/self/status must state {field}, it does not")
    return int(found[1]) * 1024


def measure(score: Callable[[Tensor, Tensor], list[float]], folder: Path) -> Run:
    """Score once after a warm-up on 300 points, which loads libraries and starts threads."""
    choose_device("cpu")  # as every command does; what it sets for memory holds for both
    embeddings = torch.from_numpy(np.load(folder / "embeddings.npy"))
    labels = torch.from_numpy(np.load(folder / "labels.npy"))
    score(torch.randn(300, 16), torch.arange(300) % 30)
    Path("/proc/self/clear_refs").write_text("5")  # sets VmHWM back to VmRSS
    before = memory_bytes("VmRSS")
    start = time.perf_counter()
    scores = score(embeddings, labels)
    return Run(time.perf_counter() - start, memory_bytes("VmHWM") - before, scores)


def run_alone(contender: str, folder: Path, threads: int) -> Run:
    """Measure one contender once, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.retrieval", "--only", contender, str(folder)]
    environment = os.environ | dict.fromkeys(THREAD_VARIABLES, str(threads))
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return Run(**json.loads(done.stdout))


def compare(folder: Path, threads: int, repeats: int) -> dict[str, Run]:
    """The best time and the least peak of each contender over interleaved runs."""
    runs: dict[str, list[Run]] = {contender: [] for contender in CONTENDERS}
    for _ in range(repeats):
        for contender in CONTENDERS:
            runs[contender].append(run_alone(contender, folder, threads))
    return {
        contender: Run(
            min(run.seconds for run in found),
            min(run.peak_bytes for run in found),
            found[0].scores,
        )
        for contender, found in runs.items()
    }


def print_row(case: Case, threads: int, best: dict[str, Run]) -> None:
    ours, pml = best["ours"], best["pml"]
    difference = max(abs(a - b) for a, b in zip(ours.scores, pml.scores, strict=True))
    print(
        f"{case!s:<34}{threads:>8}{ours.seconds:>8.2f} s{pml.seconds:>8.2f} s"
        f"{pml.seconds / ours.seconds:>7.1f}x"
        f"{ours.peak_bytes / MEBIBYTE:>9.0f} MiB{pml.peak_bytes / MEBIBYTE:>7.0f} MiB"
        f"{ours.peak_bytes / max(pml.peak_bytes, 1):>7.2f}"
        f"{ours.scores[METRICS.index('map_at_r')]:>8.3f}{difference:>10.0e}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, once")
    parser.add_argument(
        "--repeats",
        type=int,
        default=3,
        help="runs of each (thrice as many of short ones), the best counts",
    )
    parser.add_argument("--only", nargs=2, metavar=("CONTENDER", "FOLDER"), help="internal")
    options = parser.parse_args()
    if options.only:
        score = {"ours": score_ours, "pml": score_pml}[options.only[0]]
        print(json.dumps(vars(measure(score, Path(options.only[1])))))
        return
    print(f"{os.cpu_count()} cores, torch {torch.__version__}")
    print(f"self-retrieval, {' + '.join(METRICS)}; memory is the peak above the inputs")
    print(
        f"{'':<34}{'threads':>8}{'ours':>10}{'PML':>10}{'faster':>8}"
        f"{'ours':>13}{'PML':>11}{'share':>7}{'MAP@R':>8}{'differs':>10}"
    )
    for case in QUICK_CASES if options.quick else CASES:
        # A run of a second is easily disturbed: more of them, for the best to be undisturbed.
        repeats = options.repeats * (3 if case.size < 10_000 else 1)
        with tempfile.TemporaryDirectory() as folder:
            make_data(case, Path(folder))
            for threads in THREADS[:1] if options.quick else THREADS:
                best = compare(Path(folder), threads, 1 if options.quick else repeats)
                print_row(case, threads, best)


if __name__ == "__main__":
    main()
