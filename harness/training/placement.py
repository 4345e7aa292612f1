"""Where a search trains: the GPUs or the CPU, and how many workers share a card."""

from __future__ import annotations

from collections.abc import Sequence

from harness.config import RunConfig
from harness.data.loading import processes_beside
from harness.experiment import Experiment
from harness.model.build import check_trunk
from harness.system import cards
from harness.system.device import choose_device, device_count, explain_device
from harness.system.progress import Listener, Placed
from harness.system.workers import cores

# Floating-point operations of a step that a CPU core does in the two milliseconds that it takes to
# ask a card for the hundred-odd small kernels of a step: with fewer, a card is not faster.
WORTH_A_CARD = 1e8

# A worker takes half a GiB for its CUDA context, and about as much for small models and features.
GIB_PER_WORKER = 1.5
# Without MPS the processes of a card take turns, which fills the pauses of two or three.
MOST_PER_CARD, MOST_WITH_MPS = 3, 8
SMALL_CROP = 64  # pixels; larger images fill a card alone


def settle(config: RunConfig, experiments: Sequence[Experiment], listener: Listener) -> RunConfig:
    """The config with every "auto" of where to train settled; the listener hears how, and why."""
    device, reason = explain_device(config.device)
    name = config.device if device.index is not None else device.type
    frozen = all(experiment.protocol.frozen for experiment in experiments)
    if device.type == "cuda" and config.device == "auto" and frozen:
        work = max(_step_operations(experiment) for experiment in experiments)
        if work < WORTH_A_CARD:
            name = "cpu"
            reason = (
                f"a step on these features is {work / 1e6:.0f} million operations, which a core "
                f"has done before {reason} was asked for them; --device cuda insists"
            )
    settled = config.updated({"device": name, "per_gpu": 1})
    if name != "cpu":
        per_gpu = _per_gpu(config, all(_is_light(experiment) for experiment in experiments))
        settled = settled.updated({"per_gpu": per_gpu})
        if per_gpu > 1:
            reason += f"; {per_gpu} workers on each card"
            reason += " share it by MPS" if cards.mps_runs() else " take turns: no MPS runs"
    listener(Placed(device=name, reason=reason))
    return settled


def feed(configs: Sequence[RunConfig], settled: RunConfig, count: int) -> list[RunConfig]:
    """The configs of so many workers, each with its share of the cores to prepare batches."""
    device = choose_device(settled.device)
    share = processes_beside(count, device) if device.type == "cuda" else -1
    own = [one.loader_workers if one.loader_workers >= 0 else share for one in configs]
    return [one.updated({"loader_workers": n}) for one, n in zip(configs, own, strict=True)]


def _is_light(experiment: Experiment) -> bool:
    """Whether one worker leaves a card idle most of the time."""
    return experiment.protocol.frozen or experiment.protocol.crop <= SMALL_CROP


def _step_operations(experiment: Experiment) -> float:
    """Of head and proxies, forward and backward, with the share of a validation."""
    protocol, split, width = experiment.protocol, experiment.split, check_trunk(experiment)
    size, classes = protocol.embedding_size, len(split.folds[0].train)
    head = 6 * protocol.batch_size * width * size
    proxies = 6 * protocol.batch_size * size * classes
    images = len(experiment.of_classes(range(len(experiment.listing.labels)), split.folds[0].val))
    validation = 2 * images * (width * size + images * size) / protocol.validate_every
    return head + proxies + validation


def _per_gpu(config: RunConfig, light: bool) -> int:
    if config.per_gpu != "auto":
        return config.per_gpu
    if not light:
        return 1
    most = MOST_WITH_MPS if cards.mps_runs() else MOST_PER_CARD
    free = cards.free_memory()
    if free is not None:
        most = min(most, int(free / 2**30 / GIB_PER_WORKER))
    return max(1, min(most, cores() // device_count(config.device)))
