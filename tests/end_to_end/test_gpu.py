"""On a pretended GPU: nothing mixes devices, scores are those of the CPU, waits are counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import FOLDER, unit_of
from pytorch_metric_learning.losses import TripletMarginLoss
from torch import Tensor

from benchmarks.pretended_gpu import Gpu, pretended_gpu
from harness import registry
from harness.config import RunConfig
from harness.data.batches import TrainBatches
from harness.data.loading import Loader
from harness.evaluation.reproductions import evaluate
from harness.experiment import Experiment, build_experiment
from harness.metrics import geometry, retrieval
from harness.model.network import Model, PooledTrunk, freeze_batchnorm
from harness.records.layout import find_records
from harness.records.records import Fit, read_record
from harness.searching.loop import search
from harness.training.fold import run_fold
from harness.training.trainer import Progress, Trainer

SHORT = "+batch_size=8+max_steps=4+validate_every=2"
PLACES = ("runs_dir", "results_dir", "cache_dir")
CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)

# How often a step may wait for the card; what is not listed: never. PML's losses wait where they
# list pairs. Lower a number where a loss learns to do without, never raise one.
MAY_WAIT = {
    **{"arcface": 3, "ccp-ms": 6, "ccp-triplet": 5, "cosface": 3, "drml-cosface": 8},
    **{"drml-margin": 21, "drml-triplet": 18, "fastap": 15, "margin": 3, "margin-class": 5},
    **{"margin-dw": 9, "ms": 3, "ms-ball": 3, "ms-miner": 5, "ntxent": 2},
    **{"relation-cosface": 3, "relation-margin": 9, "relation-triplet": 6, "snr": 6},
    **{"softtriple": 1, "triplet": 2, "triplet-ball": 2, "triplet-semihard": 6},
}

# Queues and clusters at work within a few steps.
PARAMS: dict[str, dict[str, Any]] = {
    "c1-xbm": {"start": 1, "memory_size": 16},
    "c2-xbm": {"start": 1, "memory_size": 16},
}

# They draw from the generator of their device.
DRAWING = ("margin-dw", "drml-margin", "relation-margin")


@dataclass(frozen=True, kw_only=True)
class CountingLoader(Loader):
    """Counts the waits of each training step: between two batches that are asked for."""

    gpu: Gpu
    counts: list[int]

    def load(self, dataset: Any, order: Sequence[int] | None = None) -> Iterator[Any]:
        for batch in Loader(self.device).load(dataset, order):
            before = len(self.gpu.waits)
            yield batch
            if isinstance(dataset, TrainBatches):
                self.counts.append(len(self.gpu.waits) - before)


@pytest.fixture
def make(folder_config: RunConfig, config: RunConfig) -> Callable[..., Experiment]:
    """Experiments of a few steps and two validations, on small pictures or, for their superclasses,
    on glyphs.
    """

    def make(loss: str, **values: Any) -> Experiment:
        base = config if loss.endswith("-gt") else folder_config
        params = {"params": PARAMS.get(loss, {}), "loss": loss, "loader_workers": 0}
        return build_experiment(base.updated({**params, **values}))

    return make


def fit(experiment: Experiment, device: torch.device, checkpoint: Path) -> Fit:
    """Four steps and two validations."""
    return unit_of(experiment).build_trainer(device).fit(checkpoint, seed=0)


@pytest.mark.parametrize("loss", registry.names("loss"))
def test_every_loss_trains_as_on_the_cpu_and_waits_no_more_than_it_may(
    loss: str, make: Callable[..., Experiment], tmp_path: Path
) -> None:
    experiment = make(loss)
    counts: list[int] = []
    with pretended_gpu() as gpu:
        trainer = unit_of(experiment).build_trainer(CUDA)
        trainer.loader = CountingLoader(device=CUDA, gpu=gpu, counts=counts)
        there = trainer.fit(tmp_path / "gpu.pt", seed=0)
    here = fit(experiment, CPU, tmp_path / "cpu.pt")
    third = counts[1 if loss.endswith("-gt") else 2]  # no first one, no validation after it
    may_wait = MAY_WAIT.get(loss.removesuffix("-gt"), 0)
    assert third <= may_wait, Counter(gpu.waits).most_common(5)
    if loss not in DRAWING:
        assert there.history == [pytest.approx(line, abs=1e-6) for line in here.history]


class Stop(Exception):
    """Stands for a kill."""


@pytest.mark.parametrize("loss", ["ccp", "c2-xbm", "hpl", "margin-dw"])
def test_a_resumed_run_is_bit_identical_there_too(
    loss: str, make: Callable[..., Experiment], tmp_path: Path
) -> None:
    """CCP has a hook, XBM a queue, HPL clusters; the last one draws from the stream of its card."""
    unit = unit_of(make(loss, protocol=f"{FOLDER}+max_steps=12"))
    # Fruitless validations, so that CCP switches its problem before and after the interruption.
    scores = [0.3, 0.2, 0.2, 0.2, 0.1, 0.4]

    def trainer(left: Sequence[float]) -> Trainer:
        given = iter(left)
        return unit.build_trainer(CUDA, validate=lambda model, step: next(given))

    def stop(progress: Progress) -> None:
        if progress.step == 6:
            raise Stop

    with pretended_gpu() as gpu:
        whole = trainer(scores)
        expected = whole.fit(tmp_path / "whole.pt", seed=5)
        with pytest.raises(Stop):
            trainer(scores[:3]).fit(tmp_path / "cut.pt", seed=5, on_validation=stop)
        gpu.generator.manual_seed(99)
        resumed = trainer(scores[3:])
        found = resumed.fit(tmp_path / "cut.pt", seed=5)
        assert found.history == expected.history
        assert found.hook == expected.hook
        for ended, wanted in ((resumed.model, whole.model), (resumed.loss, whole.loss)):
            state = wanted.state_dict()
            assert all(
                torch.equal(value, state[name]) for name, value in ended.state_dict().items()
            )
    if loss == "ccp":
        assert found.hook["instances"] > 1


def test_crops_that_are_resized_on_the_card_train_nearly_the_same(
    make: Callable[..., Experiment], tmp_path: Path
) -> None:
    resized = FOLDER.replace("crop_scale=none", "crop_scale=0.5,1.0")
    early = fit(make("contrastive", protocol=resized), CPU, tmp_path / "early.pt")
    late = make("contrastive", protocol=f"{resized}+crops=gpu")
    assert "+crops=gpu" in late.protocol.name
    with pretended_gpu():
        there = fit(late, CUDA, tmp_path / "there.pt")
    others = late.config.updated({"loader_workers": 2})
    here = fit(build_experiment(others), CPU, tmp_path / "here.pt")
    assert there.history == [pytest.approx(line, abs=1e-6) for line in here.history]
    losses = [[loss for _, loss, _ in one.history] for one in (early, there)]
    assert losses[1] == pytest.approx(losses[0], rel=0.05) and losses[1] != losses[0]


def test_a_record_says_how_numbers_were_computed(make: Callable[..., Experiment]) -> None:
    """HPL adds up clusters, which torch can do in a fixed order; maxima of a network it cannot."""
    frozen = {"protocol": f"frozen+crop=12+resize=16{SHORT}"}
    here = run_fold(unit_of(make("hpl", **frozen))).compute
    assert here == {"precision": "fp32", "tf32": [], "deterministic": True, "unordered": []}
    with pretended_gpu():
        there = run_fold(unit_of(make("hpl", device="cuda", seed=1, **frozen))).compute
        pooled = run_fold(unit_of(make("hpl", device="cuda"))).compute
    assert there["gpu"] == "Pretended GPU"
    assert there["tf32"] == ["convolutions"]  # torch's default, on cards that have it
    assert there["deterministic"] and not there["unordered"]
    assert {"capability", "cuda"} <= set(there)
    assert pooled["unordered"] == ["aten.max_pool2d_with_indices_backward"]
    assert not pooled["deterministic"]


TRUNKS = [name for name in registry.names("trunk") if name != "timm:NAME"]


@pytest.mark.parametrize("name", [*TRUNKS, "timm:test_vit", "timm:test_convnext"])
def test_every_trunk_learns_as_on_the_cpu_without_a_wait(name: str) -> None:
    trunk = registry.load_trunk(name)
    side = trunk.own_side if name.startswith("timm") else 96
    generator = torch.Generator().manual_seed(0)
    shape = (2, trunk.channels or 1, side, side)
    images = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    torch.manual_seed(0)
    network = PooledTrunk(trunk.build(trunk.channels or 1, "none"), trunk.normalize, "avg")
    model = Model(network, "layer", torch.nn.Linear(network.out_features, 8))
    freeze_batchnorm(model.train())
    found = []
    with pretended_gpu() as gpu:
        for device in (CPU, CUDA):
            model, images = model.to(device), images.to(device)
            gpu.waits.clear()
            torch.manual_seed(1)  # of dropout on the CPU
            out = model(images)
            model.zero_grad()
            out.square().mean().backward()
            assert gpu.waits == []
            gradients = [p.grad.cpu() for p in model.parameters() if p.grad is not None]
            found.append((out.detach().cpu(), *gradients))
    for here, there in zip(*found, strict=True):
        assert torch.allclose(here, there, rtol=1e-4, atol=1e-6)  # attention has two kernels


def test_retrieval_nmi_and_geometry_are_those_of_the_cpu() -> None:
    points = torch.randn(1500, 16, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(1500) % 25
    names = ("map_at_r", "p_at_1", "r_precision", "recall_at_4", "nmi")
    here = retrieval.evaluate(points, labels, metrics=names)
    split = retrieval.evaluate(points[:500], labels[:500], points[500:], labels[500:])
    radius = geometry.covering_radius(points, labels), geometry.class_distance(points, labels)
    with pretended_gpu() as gpu:
        there, theirs = points.to(CUDA), labels.to(CUDA)
        gpu.waits.clear()
        assert retrieval.evaluate(there, theirs, metrics=names) == here
        assert len(gpu.waits) <= 60  # some for each block of a thousand points
        queries = there[:500], theirs[:500], there[500:], theirs[500:]
        assert retrieval.evaluate(*queries) == split
        found = geometry.covering_radius(there, theirs), geometry.class_distance(there, theirs)
    assert found == pytest.approx(radius)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", [FOLDER, f"frozen+crop=12+resize=16{SHORT}"])
def test_a_search_and_its_test_run_through(protocol: str, folder_config: RunConfig) -> None:
    scores = {}
    for device in ("cpu", "cuda"):
        places = {name: f"{folder_config.runs_dir}-{device}/{name}" for name in PLACES}
        values = {**places, "device": device, "loader_workers": 0, "protocol": protocol}
        config = folder_config.updated({**values, "loss": "ccp", "trials": 2})
        told = {**places, "device": device, "workers": 1, "loader_workers": 0, "reproductions": 1}
        with pretended_gpu() if device == "cuda" else nullcontext():
            found = search([config])[0]
            done = evaluate(["ccp"], told, metrics=("nmi", "covering_radius"), single=True)
        assert found.failed == 0 and not done.problems
        records = [read_record(path) for path in find_records(done.tables[0])]
        scores[device] = [record.scores["concatenated"] for record in records]
        assert len(records) >= 4  # of reproductions and naive rows, with more metrics of each
    assert scores["cuda"] == [pytest.approx(found) for found in scores["cpu"]]


class Planted(TripletMarginLoss):
    """A loss with a mistake that the CPU forgives."""

    mistake: Callable[[Tensor, Tensor], Tensor]

    def compute_loss(self, embeddings: Tensor, labels: Tensor, *others: Any) -> Any:
        added = type(self).mistake(embeddings, labels)
        return {
            "loss": {"losses": added.sum(), "indices": None, "reduction_type": "already_reduced"}
        }


WEIGHTS = torch.ones(8)
MISTAKES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "a constant of the module": lambda e, _: (e.sum(1) * WEIGHTS).square(),
    "arange without a device": lambda e, _: e.sum(1).square() * torch.arange(len(e)),
    "a mask made on the CPU": lambda e, _: e.masked_fill(torch.ones(8, 1, dtype=torch.bool), 0.0),
    "numpy of the labels": lambda e, y: e.square() * float(np.unique(y).size),
    "gather by CPU labels": lambda e, y: e.gather(1, y.cpu()[:, None]),
    "a generator of the CPU": lambda e, _: (
        e * torch.rand(e.shape, device=e.device, generator=torch.Generator())
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_planted_mistake_is_found(
    mistake: str, make: Callable[..., Experiment], tmp_path: Path
) -> None:
    loss = type("Mistaken", (Planted,), {"mistake": staticmethod(MISTAKES[mistake])})
    experiment = make("triplet")
    method = replace(experiment.method, build_loss=lambda *sizes, **params: loss())
    experiment = replace(experiment, method=method)
    assert fit(experiment, CPU, tmp_path / "cpu.pt").steps == 4  # which says nothing
    with pretended_gpu(), pytest.raises((RuntimeError, TypeError), match=r"device|numpy"):
        fit(experiment, CUDA, tmp_path / "gpu.pt")
