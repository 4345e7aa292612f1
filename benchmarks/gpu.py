"""What a card makes of this code: one command, and a Markdown table to send back.

python -m benchmarks.gpu                        # everything, some twenty minutes; writes gpu.md
python -m benchmarks.gpu --losses ccp-c2        # waits and kernels of some methods alone
python -m benchmarks.gpu --quick                # tiny sizes, to see that it runs

On a card: milliseconds of a training step by precision, steps per second of one, two and four
workers beside those of the CPU, crops made before and on the card, retrieval by our search and by
faiss, NMI, and the waits of a step as torch counts them (torch.cuda.set_sync_debug_mode). On a
machine without one, waits and kernels are counted on a pretended card, and nothing is timed: what
only a card can show is listed as such.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.pretended_gpu import pretended_gpu
from benchmarks.steps import CUB, TINY, Size, make_features, make_unit
from harness import registry
from harness.data.crops import CropSettings, random_batch
from harness.metrics import retrieval
from harness.metrics.neighbours import nearest
from harness.model.network import Model, PooledTrunk, freeze_batchnorm
from harness.system import cards
from harness.system.device import choose_device, cpu_threads
from harness.system.precision import WHILE_TRAINING, training_precision
from harness.system.progress import Listener, Prepared
from harness.system.repeating import repeating
from harness.system.worker_process import Turn
from harness.system.workers import cores, run_workers
from harness.training.pieces import backward_by_pieces
from harness.training.trainer import Trainer

CUDA = torch.device("cuda", 0)
TRUNKS = {"bninception": 227, "resnet50": 224, "timm:vit_small_patch16_224": 224}
WORKERS = (1, 2, 4)
GALLERIES = ((8_131, 512), (60_502, 512))
NEIGHBOURS = 50


@dataclass
class Counts:
    """Waits and kernels of the steps that were taken, and where the CPU waited."""

    waits: list[int] = field(default_factory=list)
    kernels: list[int] = field(default_factory=list)
    lines: Counter[str] = field(default_factory=Counter)


@contextmanager
def counted_there() -> Iterator[Callable[[], Counts]]:
    """Waits of a real card, by torch's own warnings; it does not count kernels."""
    lines: Counter[str] = Counter()

    def note(message: Any, category: Any, filename: str, lineno: int, *more: Any) -> None:
        if "synchroniz" in str(message):
            lines[f"{'/'.join(Path(filename).parts[-2:])}:{lineno}"] += 1

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = note  # type: ignore[assignment]
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield lambda: Counts([lines.total()], [], lines.copy())
        finally:
            torch.cuda.set_sync_debug_mode("default")


@contextmanager
def counted_on_a_pretended_one() -> Iterator[Callable[[], Counts]]:
    with pretended_gpu() as gpu:

        def seen() -> Counts:
            lines = Counter(asked.line for asked in gpu.waits)
            return Counts([len(gpu.waits)], [gpu.kernels.total()], lines)

        yield seen


def count_steps(trainer: Trainer, seen: Callable[[], Counts], steps: int = 3) -> Counts:
    """Of some steps after a first one, which sets things up."""
    trainer._train_mode()
    trainer.hook.on_train_begin(trainer)
    found = Counts()
    batches = trainer.loader.load(trainer.batches, range(steps + 1))
    before = seen()
    for number, (images, labels) in enumerate(batches):
        trainer._train_step(images, labels)
        trainer.progress.step += 1
        now = seen()
        if number:
            found.waits.append(now.waits[0] - before.waits[0])
            found.kernels += [a - b for a, b in zip(now.kernels, before.kernels, strict=True)]
            found.lines += now.lines - before.lines
        before = now
    return found


def waits(losses: list[str], size: Size, real: bool) -> list[str]:
    listing, features = make_features(size)
    kernels = "" if real else " kernels |"
    lines = [
        f"| method | waits per step |{kernels} first line |",
        "|---" * (3 if real else 4) + "|",
    ]
    for loss in losses:
        with counted_there() if real else counted_on_a_pretended_one() as seen:
            trainer = make_unit(loss, listing, features, size).build_trainer(CUDA)
            found = count_steps(trainer, seen)
        first = found.lines.most_common(1)[0][0] if found.lines else ""
        launched = "" if real else f" {max(found.kernels)} |"
        lines.append(f"| {loss} | {max(found.waits)} |{launched} {first} |")
        print(lines[-1], flush=True)
    return lines


def step_times(batch: int = 32, repeats: int = 30) -> list[str]:
    """Milliseconds of forward, loss, backward and update, by trunk and precision."""
    lines = [f"| trunk, batch {batch} | " + " | ".join(WHILE_TRAINING) + " |"]
    lines.append("|---" * (1 + len(WHILE_TRAINING)) + "|")
    loss = registry.load_method("contrastive").make_loss(100, 128, {}).to(CUDA)
    labels = torch.arange(batch, device=CUDA) // 4
    for name, side in TRUNKS.items():
        trunk = registry.load_trunk(name)
        images = torch.randint(0, 256, (batch, 3, side, side), dtype=torch.uint8, device=CUDA)
        cells = []
        for precision in WHILE_TRAINING:
            network = PooledTrunk(trunk.build(3, "none"), trunk.normalize, "avg")
            head = nn.Linear(network.out_features, 128)
            model = Model(network, "none", head, precision).to(CUDA).train()
            freeze_batchnorm(model.trunk)
            optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-6, foreach=True)

            def step(model: Model = model, optimizer: Any = optimizer, x: Tensor = images) -> None:
                optimizer.zero_grad()
                backward_by_pieces(model, loss, x, labels, batch)
                optimizer.step()

            with training_precision(precision, CUDA), repeating(CUDA):
                cells.append(f"{timed(step, repeats) * 1e3:.1f}")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
        print(lines[-1], flush=True)
    return lines


def timed(run: Callable[[], object], repeats: int) -> float:
    """Seconds of one run on the card, after some that warm it up."""
    for _ in range(5):
        run()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        run()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / repeats


def train_some(size: Size, device: str, listener: Listener) -> None:
    """One worker: a training on frozen features; tells how many steps a second it made."""
    unit = make_unit("proxyanchor", *make_features(size), size)
    with tempfile.TemporaryDirectory() as folder, cpu_threads(1):
        trainer = unit.build_trainer(choose_device(device))
        fit = trainer.fit(Path(folder) / "c.pt", seed=0)
    rate = round(fit.steps / fit.seconds)
    listener(Prepared(dataset="", action="", done=rate, total=rate))


def shared(size: Size) -> list[str]:
    """Steps per second of all workers together."""
    lines = ["| workers | steps per second |", "|---|---|"]
    there = [(f"{count} on one card", "cuda:0", count) for count in WORKERS if count <= cores()]
    for title, device, count in [*there, (f"{cores()} on the CPU", "cpu", cores())]:
        rates: list[int] = []

        def heard(event: Any, rates: list[int] = rates) -> None:
            rates.append(event.done)

        run_workers(train_some, [Turn(title, size)], torch.device(device), count, 1, heard)
        lines.append(f"| {title} | {sum(rates)} |")
        print(lines[-1], flush=True)
    return lines


@dataclass(frozen=True)
class MadeImages:
    """An ImageStore of noise, of a size that images have in the cache."""

    pixels: np.ndarray
    fingerprint: str = "made up"
    channels: int = 3
    digests: None = None

    @property
    def indices(self) -> range:
        return range(len(self.pixels))

    def image(self, listing_index: int) -> np.ndarray:
        return self.pixels[listing_index]

    def check_stored(self, mapped_only: bool = False) -> None:
        """There is no file."""


def cropped(batch: int = 32, repeats: int = 30) -> list[str]:
    """Training images per second on their way to the card, prepared by one process."""
    rng = np.random.default_rng(0)
    store = MadeImages(rng.integers(0, 256, (batch, 256, 340, 3), dtype=np.uint8))
    protocol = registry.load_protocol("mlrc", "cub")
    lines = ["| crops are resized | images per second |", "|---|---|"]
    for title, late in (("before they are sent", False), ("on the card", True)):
        settings = CropSettings(
            protocol.crop, protocol.crop_scale, protocol.crop_ratio, protocol.flip, late
        )

        def send(settings: CropSettings = settings) -> Tensor:
            drawn = random_batch(store, store.indices, settings, rng)
            return drawn.pin_memory().to(CUDA, non_blocking=True)

        lines.append(f"| {title} | {batch / timed(send, repeats):.0f} |")
        print(lines[-1], flush=True)
    return lines


def retrieved() -> list[str]:
    """Our exact search on the card, faiss's there, and ours on one CPU thread.

    faiss gives no guarantee about near-ties: the last column counts the queries that it orders
    differently, among their first NEIGHBOURS.
    """
    lines = [
        "| embeddings | seconds on the card | faiss there | one CPU thread | ordered otherwise |",
        "|---|---|---|---|---|",
    ]
    index = retrieval.faiss_card(CUDA)
    for count, dimensions in GALLERIES:
        points = nn.functional.normalize(torch.randn(count, dimensions))
        labels = torch.arange(count) // NEIGHBOURS
        there = points.to(CUDA), labels.to(CUDA)
        card = timed(lambda there=there: retrieval.evaluate(*there), 1)  # type: ignore[misc]
        theirs = timed(lambda points=points: faiss_neighbours(points, index), 1)  # type: ignore[misc]
        start = time.perf_counter()
        retrieval.evaluate(points, labels)
        here = time.perf_counter() - start
        other = differently_ordered(points.to(CUDA), faiss_neighbours(points, index))
        cells = (f"{count} x {dimensions}", f"{card:.2f}", f"{theirs:.2f}", f"{here:.2f}", other)
        lines.append("| " + " | ".join(map(str, cells)) + " |")
        print(lines[-1], flush=True)
    return lines


def faiss_neighbours(points: Tensor, card: int | None) -> Tensor:
    """(n, NEIGHBOURS) the nearest other points by faiss, on a card or on the CPU."""
    rows = points.numpy()
    if card is None:
        found = faiss.knn(rows, rows, NEIGHBOURS + 1)[1]
    else:
        resources = faiss.StandardGpuResources()
        found = faiss.knn_gpu(resources, rows, rows, NEIGHBOURS + 1, device=card)[1]
    itself = torch.from_numpy(found) == torch.arange(len(rows))[:, None]
    itself[~itself.any(1), -1] = True  # behind its duplicates: the farthest goes instead
    return torch.from_numpy(found)[~itself].view(len(rows), NEIGHBOURS)


def differently_ordered(points: Tensor, neighbours: Tensor) -> int:
    """How many queries have other neighbours, or another order of them, than by our search."""
    order = torch.arange(len(points), device=points.device)
    depths = torch.full_like(order, NEIGHBOURS)
    found = nearest(points, None, depths, order)
    return sum(int((exact.cpu() != neighbours[rows.cpu()]).any(1).sum()) for rows, exact in found)


def clustered() -> list[str]:
    """NMI, most of which is k-means with as many clusters as classes."""
    lines = ["| embeddings | NMI on the card, seconds | on the CPU | values |", "|---|---|---|---|"]
    for count, dimensions in GALLERIES:
        labels = torch.arange(count) // NEIGHBOURS
        noise = torch.randn(count, dimensions)
        points = nn.functional.normalize(torch.randn(count, dimensions)[labels] + noise)
        seconds, values = [], []
        for device in (CUDA, torch.device("cpu")):
            there = points.to(device), labels.to(device)
            start = time.perf_counter()
            values.append(retrieval.evaluate(*there, metrics=["nmi"]).values["nmi"])
            seconds.append(f"{time.perf_counter() - start:.2f}")
        equal = ", ".join(f"{value:.6f}" for value in values)
        lines.append(f"| {count} x {dimensions} | " + " | ".join([*seconds, equal]) + " |")
        print(lines[-1], flush=True)
    return lines


def machine(real: bool) -> list[str]:
    facts = {"torch": torch.__version__, "cores": str(cores()), "built for": torch.version.cuda}
    if real:
        facts |= {**cards.describe(CUDA), "MPS": "runs" if cards.mps_runs() else "does not run"}
    else:
        facts["gpu"] = "none: waits and kernels were counted on a pretended one, nothing was timed"
    return [f"- {name}: {value}" for name, value in facts.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--losses", nargs="+", metavar="NAME", help="methods; all unless given")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it runs")
    parser.add_argument("--output", type=Path, default=Path("gpu.md"), help="default: gpu.md")
    options = parser.parse_args()
    real = torch.cuda.is_available()
    if real:
        choose_device("cuda")  # says what is wrong with a card that cannot be used
    size = TINY if options.quick else CUB
    warnings.simplefilter("ignore")  # what losses say of tiny sizes
    report = ["# Measured on a GPU" if real else "# Counted without a GPU", "", *machine(real)]
    report += ["", "## Waits of a step on frozen features", ""]
    report += waits(options.losses or registry.names("loss"), size, real)
    timings: dict[str, Callable[[], list[str]]] = {
        "Milliseconds of a training step": step_times,
        "Workers that share a card, proxyanchor on frozen features": lambda: shared(size),
        "Crops": cropped,
        "Exact retrieval": retrieved,
        "NMI": clustered,
    }
    for title, measure in timings.items():
        if real and not options.losses:
            report += ["", f"## {title}", "", *measure()]
        elif not real:
            report += ["", f"## {title}", "", "Only a card can show it."]
    options.output.write_text("\n".join(report) + "\n")
    print(f"written: {options.output}")


if __name__ == "__main__":
    main()
