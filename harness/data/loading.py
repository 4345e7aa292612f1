"""Batches on their way to the device, prepared by other processes where that pays."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from harness.config import RunConfig

PROCESSES_PER_GPU = 4


@dataclass(frozen=True)
class Loader:
    """Brings batches to a device.

    Attributes:
        processes: that prepare them ahead; 0 prepares each when it is asked for.
    """

    device: torch.device
    processes: int = 0

    def load(self, dataset: Any, order: Sequence[int] | None = None) -> Iterator[Any]:
        """The items of a dataset, tensors or tuples of them; all, unless an order is given."""
        order = range(len(dataset)) if order is None else order
        # On a CPU a DataLoader without processes adds nothing to the items but as much time as
        # drawing a batch of features takes.
        idle = self.device.type == "cpu" and not self.processes
        items = map(dataset.__getitem__, order) if idle else self._prepared(dataset, order)
        for batch in items:
            if isinstance(batch, Tensor):
                yield batch.to(self.device, non_blocking=True)
            else:
                yield tuple(part.to(self.device, non_blocking=True) for part in batch)

    def _prepared(self, dataset: Any, order: Sequence[int]) -> DataLoader[Any]:
        return DataLoader(
            dataset,
            batch_size=None,
            sampler=order,
            num_workers=self.processes,
            # They share the memory-mapped images; only a fork can take them along.
            multiprocessing_context="fork" if self.processes else None,
            worker_init_fn=_ignore_interrupts,
            pin_memory=self.device.type == "cuda",  # else its copies would not be asynchronous
            generator=torch.Generator(),  # else creating the loader draws from the loss's stream
        )


def open_loader(config: RunConfig, device: torch.device, laborious: bool) -> Loader:
    """The loader of some batches.

    Args:
        laborious: whether preparing a batch is more than copying it: random crops, or decoding.
    """
    processes = config.loader_workers
    if processes < 0:  # on a CPU they would compete with training
        processes = PROCESSES_PER_GPU if device.type == "cuda" else 0
    return Loader(device, processes if laborious else 0)


def image_loader(config: RunConfig, device: torch.device) -> Loader:
    """Of images for evaluation, which are only cut out of the cache unless they must be decoded."""
    return open_loader(config, device, laborious=config.cache == "off")


def _ignore_interrupts(process: int) -> None:
    """Ctrl-C is for the process that trains, which ends its loaders itself."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
