"""What a training step on frozen features costs, beside the least that it could cost.

python -m benchmarks.steps                                # every method: about ten minutes
python -m benchmarks.steps --losses proxyanchor ccp-c2    # some of them
python -m benchmarks.steps --quick                        # tiny sizes, to see that it runs

The trainer itself trains under the protocol `frozen`, on made-up features of CUB's size, in one
thread; a step has its share of the validation that comes every hundred steps. Its floor is what no
implementation saves: the products of head and loss with their gradients, Adam's fused update of all
parameters, and the validation's share, each run alone on the same shapes in the pauses of the same
training. All times are milliseconds of CPU time of this process, means over a few steps, the best
of hundreds: others on the machine disturb them little. The batches of many steps are drawn
together; a step has its share of that, too.

`bare` is no method: a loss of nothing but its products with a proxy per class. What it is above its
floor is what batches, modules, autograd and cold caches take, whatever the loss.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from harness import registry
from harness.config import RunConfig
from harness.data.batches import Drawn, TrainBatches
from harness.data.features import Features
from harness.data.loading import Loader
from harness.datasets.dataset import Listing
from harness.experiment import Experiment
from harness.losses.drml import GroupedLinear
from harness.losses.method import Method, Preset
from harness.losses.proxygml import ProxyGMLLoss
from harness.metrics import retrieval
from harness.model.network import NORMALIZERS
from harness.protocols.splits import split_classes
from harness.system.device import choose_device, cpu_threads
from harness.training.trainer import Trainer
from harness.training.unit import Unit

LIMIT = 1.5  # asked of step / floor
ASKED = ("proxyanchor", "contrastive", "proxynca++", "proxygml", "ccp-c2")
FLOOR = ("products", "adam", "validation")
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Size:
    """The size of a problem, and how often it is timed."""

    classes: int
    trainval_images: int
    test_images: int
    width: int  # of the features
    windows: int  # each ends with a validation
    groups: int  # in a window
    group: int  # steps that are timed together

    @property
    def steps(self) -> int:
        """In a window."""
        return self.groups * self.group


CUB = Size(200, 5_864, 5_924, 1280, windows=20, groups=25, group=4)
TINY = Size(40, 200, 200, 16, windows=2, groups=2, group=1)


class Products(nn.Module):
    """Compares a batch with a proxy per class, and does nothing with it."""

    def __init__(self, num_classes: int, embedding_size: int) -> None:
        super().__init__()
        self.proxies = nn.Parameter(torch.randn(num_classes, embedding_size))

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        del labels
        return (embeddings @ self.proxies.T).mean()


BARE = Method(
    name="bare",
    paper="",
    build_loss=Products,
    space=lambda dataset, num_classes: {},
    presets={"mlrc": {"cub": Preset({})}},
    samples_per_class=1,
)


@dataclass(frozen=True)
class Row:
    """Milliseconds per step of one method, with its share of validation."""

    name: str
    step: float
    floor: dict[str, float]

    def line(self, judged: bool) -> str:
        floor = sum(self.floor.values())
        numbers = [self.step, *self.floor.values(), floor]
        ratio = self.step / floor
        verdict = ("yes" if ratio <= LIMIT else "NO") if judged and self.name in ASKED else ""
        cells = "".join(f"{number:>11.3f}" for number in numbers)
        return f"{self.name:<16}{cells}{ratio:>7.2f}  {verdict}"


class Best:
    """The least CPU seconds seen of each of several things."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def note(self, name: str, seconds: float) -> None:
        self.seconds[name] = min(seconds, self.seconds.get(name, seconds))

    def measure(self, name: str, run: Callable[[], object], repeats: int) -> None:
        start = time.process_time()
        for _ in range(repeats):
            run()
        self.note(name, (time.process_time() - start) / repeats)


class Groups:
    """Times groups of steps by when batches are asked for and when validations are over."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.best = Best()
        self.begin_window()

    def begin_window(self) -> None:
        self.asked = 0
        self._begin_group()

    def _begin_group(self) -> None:
        self.drew = False
        self.started = time.process_time()

    def before_batch(self) -> None:
        if self.asked and self.asked % self.size == 0:
            self._end_group("steps")
        self.asked += 1

    def end_window(self) -> None:
        """After a validation, which comes with the last group."""
        self._end_group("steps and validation")

    def _end_group(self, name: str) -> None:
        if not self.drew:  # for later groups, which are not asked to pay for it
            self.best.note(name, time.process_time() - self.started)
        self._begin_group()

    def watch_draws(self, batches: TrainBatches) -> None:
        """Time the drawing of many batches apart."""
        draw = batches._draw

        def timed(steps: Sequence[int]) -> dict[int, Drawn]:
            self.drew = True
            start = time.process_time()
            drawn = draw(steps)
            self.best.note("draw", (time.process_time() - start) / len(steps))
            return drawn

        object.__setattr__(batches, "_draw", timed)  # of a frozen dataclass

    def step(self, groups: int) -> float:
        """Seconds of a step with its share of drawing and of the validation of so many groups."""
        best = self.best.seconds
        all_groups = (groups - 1) * best["steps"] + best["steps and validation"]
        return all_groups / groups / self.size + best["draw"]


Call = Callable[..., Any]


@dataclass(frozen=True)
class WatchedLoader(Loader):
    """A loader with something around the call that gets the next training batch."""

    watch: Callable[[Call], Call] = lambda load: load

    def load(self, dataset: Any, order: Sequence[int] | None = None) -> Iterator[Any]:
        batches = super().load(dataset, order)
        if not isinstance(dataset, TrainBatches):  # the pool that CCP picks proxies from
            return batches
        return iter(self.watch(lambda: next(batches, None)), None)


def watch_batches(trainer: Trainer, watch: Callable[[Call], Call]) -> None:
    trainer.loader = WatchedLoader(trainer.loader.device, watch=watch)


def make_features(size: Size) -> tuple[Listing, Features]:
    """A listing of as many images, and features of those of trainval, a cluster for each class."""
    half = size.classes // 2
    trainval = np.sort(np.arange(size.trainval_images) % half)
    test = half + np.sort(np.arange(size.test_images) % half)
    labels = np.concatenate([trainval, test])
    listing = Listing(
        names=tuple(map(str, range(len(labels)))),
        labels=labels,
        class_names=tuple(map(str, range(size.classes))),
        read=lambda index: b"",
        stamp=str,
    )
    rng = np.random.default_rng(0)
    values = rng.standard_normal((half, size.width), dtype=np.float32)[trainval]
    values += 3 * rng.standard_normal(values.shape, dtype=np.float32)
    return listing, Features("made up", range(len(values)), values)


def make_unit(loss: str, listing: Listing, features: Features, size: Size) -> Unit:
    """The first fold of a method at its published parameters, stopped by its steps alone."""
    protocol = replace(
        registry.load_protocol("frozen", "cub"),
        validate_every=size.steps,
        max_steps=size.steps * (1 + size.windows),
        patience=1 + size.windows,
    )
    experiment = Experiment(
        config=RunConfig(loss=loss, device="cpu"),
        protocol=protocol,
        trunk=registry.load_trunk("efficientnet_lite0"),
        dataset="cub",
        dataset_label="cub",
        listing=listing,
        unlisted=0,
        split=split_classes(listing.num_classes, protocol.folds),
        method=BARE if loss == BARE.name else registry.load_method(loss),
    )
    return Unit(experiment, features, experiment.published_params, fold=0)


def products(trainer: Trainer) -> Call:
    """The matrix products of a step: of head and loss, forward and backward."""
    batch, size = trainer.protocol.batch_size, trainer.protocol.embedding_size
    layers = [m for m in trainer.model.head.modules() if isinstance(m, nn.Linear | GroupedLinear)]
    weights = [layer.weight.detach() for layer in layers]  # of groups: one product for each
    inputs = [torch.randn(*weight.shape[:-2], batch, weight.shape[-1]) for weight in weights]
    embeddings = torch.randn(batch, size)
    pairs = [(embeddings, table) for table in compared_with(trainer.loss, embeddings)]
    if isinstance(trainer.loss, ProxyGMLLoss):  # compares proxies with sums over each class, too
        sums = torch.randn(trainer.loss.num_classes, size, requires_grad=True)
        pairs.append((trainer.loss.proxies, sums))

    @torch.no_grad()
    def run() -> None:
        for values, weight in zip(inputs, weights, strict=True):
            (values @ weight.mT).mT @ values
        for rows, table in pairs:
            matrix = rows @ table.T
            matrix @ table
            if table.requires_grad:
                matrix.T @ rows

    return run


def compared_with(loss: nn.Module, embeddings: Tensor) -> list[Tensor]:
    """What a loss compares a batch with: its tables of vectors, or the batch itself."""
    size = embeddings.shape[1]
    tables = [
        (table if table.shape[1] == size else table.T).detach().requires_grad_(trained)
        for tensors, trained in ((loss.parameters(), True), (loss.buffers(), False))
        for table in tensors
        if table.ndim == 2 and size in table.shape and table.is_floating_point()
    ]
    return tables or [embeddings]


def adam(trainer: Trainer) -> Call:
    copies = [nn.Parameter(parameter.detach().clone()) for parameter in trainer.parameters]
    for copy in copies:
        copy.grad = torch.randn_like(copy)
    return torch.optim.Adam(copies, lr=1e-5, weight_decay=1e-4, fused=True).step


def validation(unit: Unit, trainer: Trainer) -> Call:
    """Embedding and exact retrieval, of features that lie ready."""
    experiment, metric = unit.experiment, unit.experiment.protocol.metric
    indices = experiment.of_classes(unit.trainval.indices, unit.classes.val)
    labels = torch.from_numpy(experiment.listing.labels[indices])
    features = unit.trainval.for_evaluation(indices)
    normalizer = NORMALIZERS[experiment.method.normalizer]

    @torch.no_grad()
    def run() -> object:
        embeddings = normalizer(trainer.model.head(features))
        return retrieval.evaluate(embeddings, labels, metrics=(metric,))

    return run


def measure_step(unit: Unit, size: Size) -> tuple[float, dict[str, float]]:
    """Seconds of a step, and of its floor, which is measured in the pauses of the training."""
    trainer, groups, floor = unit.build_trainer(CPU), Groups(size.group), Best()
    least = (products(trainer), adam(trainer), validation(unit, trainer))

    def watch(load: Call) -> Call:
        def run() -> Any:
            groups.before_batch()
            return load()

        return run

    def pause() -> None:
        groups.end_window()
        for _ in range(size.groups):
            floor.measure("products", least[0], size.group)
            floor.measure("adam", least[1], size.group)
        floor.measure("validation", least[2], 1)
        groups.begin_window()

    watch_batches(trainer, watch)
    groups.watch_draws(trainer.batches)
    fit(trainer, pause)
    share = floor.seconds["validation"] / size.steps
    return groups.step(size.groups), {**floor.seconds, "validation": share}


def fit(trainer: Trainer, pause: Callable[[], None]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        trainer.fit(Path(folder) / "checkpoint.pt", seed=0, on_validation=lambda progress: pause())


def measure(unit: Unit, size: Size) -> Row:
    step, floor = measure_step(unit, size)
    return Row(
        name=unit.experiment.method.name,
        step=step * 1e3,
        floor={part: floor[part] * 1e3 for part in FLOOR},
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--losses", nargs="+", metavar="NAME", help="methods; all unless given")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it runs")
    options = parser.parse_args()
    size = TINY if options.quick else CUB
    choose_device("cpu")  # as every command does: freed memory is kept
    warnings.simplefilter("ignore")  # what losses say of tiny sizes
    listing, features = make_features(size)
    print(f"torch {torch.__version__}, one thread; CPU milliseconds per step")
    heads = "".join(f"{head:>11}" for head in ("step", *FLOOR, "floor"))
    print(f"{'':<16}{heads}{'ratio':>7}  <= {LIMIT}")
    with cpu_threads(1):
        for name in options.losses or (BARE.name, *registry.names("loss")):
            unit = make_unit(name, listing, features, size)
            try:
                line = measure(unit, size).line(judged=not options.quick)
            except ValueError as error:
                line = f"{name:<16}   not measured: {error}"
            print(line, flush=True)


if __name__ == "__main__":
    main()
