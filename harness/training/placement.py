"""Where a search trains: the GPUs or the CPU, and how many workers share a card."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from harness.config import RunConfig
from harness.data.loading import processes_beside
from harness.experiment import Experiment
from harness.model.build import check_trunk
from harness.system import cards
from harness.system.device import device_count, explain_device
from harness.system.progress import Listener, Placed
from harness.system.workers import cores, worker_count

# Floating-point operations of a step that a CPU core does in the two milliseconds that it takes to
# ask a card for the hundred-odd small kernels of a step: with fewer, a card is not faster.
WORTH_A_CARD = 1e8

# A worker takes half a GiB for its CUDA context, and about as much for small models and features.
GIB_PER_WORKER = 1.5
# Without MPS the processes of a card take turns, which fills the pauses of two or three.
MOST_PER_CARD, MOST_WITH_MPS = 3, 8
SMALL_CROP = 64  # pixels; larger images fill a card alone


@dataclass(frozen=True)
class Placement:
    """Where jobs train.

    Attributes:
        per_gpu: workers that share a card.
        workers: processes in all.
        threads: of each worker.
        loader_workers: processes that prepare batches for each worker, unless its config says; -1
            on a CPU, where there are none.
    """

    device: torch.device
    per_gpu: int
    workers: int
    threads: int
    loader_workers: int


def place(experiments: Sequence[Experiment], most_workers: int, listener: Listener) -> Placement:
    """Settle every "auto" of where to train; the listener hears how, and why.

    Args:
        experiments: all that are trained; the config of the first says what the user asked for.
        most_workers: how many could be kept busy.
    """
    config = experiments[0].config
    device, reason = explain_device(config.device)
    frozen = all(experiment.protocol.frozen for experiment in experiments)
    if device.type == "cuda" and config.device == "auto" and frozen:
        work = max(_step_operations(experiment) for experiment in experiments)
        if work < WORTH_A_CARD:
            device = torch.device("cpu")
            reason = (
                f"a step on these features is {work / 1e6:.0f} million operations, which a core "
                f"has done before {reason} was asked for them; --device cuda insists"
            )
    per_gpu = 1
    if device.type != "cpu":
        light = all(_is_light(experiment) for experiment in experiments)
        per_gpu = _per_gpu(config, device, light)
        if per_gpu > 1:
            reason += f"; {per_gpu} workers on each card"
            reason += " share it by MPS" if cards.mps_runs() else " take turns: no MPS runs"
    listener(Placed(device=str(device), reason=reason))
    threads = max(experiment.protocol.threads for experiment in experiments)
    workers = worker_count(config, threads, most_workers, device, per_gpu)
    loader_workers = processes_beside(workers, device) if device.type == "cuda" else -1
    return Placement(device, per_gpu, workers, threads, loader_workers)


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


def _per_gpu(config: RunConfig, device: torch.device, light: bool) -> int:
    if config.per_gpu != "auto":
        return config.per_gpu
    if not light:
        return 1
    most = MOST_WITH_MPS if cards.mps_runs() else MOST_PER_CARD
    free = cards.free_memory()
    if free is not None:
        most = min(most, int(free / 2**30 / GIB_PER_WORKER))
    return max(1, min(most, cores() // device_count(device)))
