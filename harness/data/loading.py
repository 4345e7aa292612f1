"""Batches on their way to the device, prepared by other processes where that pays."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader

from harness.config import RunConfig
from harness.system.stopping import die_after_grace
from harness.system.workers import cores

MOST_PROCESSES = 8  # for one training process: a card is fed by fewer
AHEAD = 2  # batches that a thread prepares while the card computes


@dataclass(frozen=True)
class Loader:
    """Brings batches to a device.

    Attributes:
        processes: that prepare them ahead; 0 prepares each when it is asked for, beside a GPU a
            little earlier, in a thread.
    """

    device: torch.device
    processes: int = 0

    def load(self, dataset: Any, order: Sequence[int] | None = None) -> Iterator[Any]:
        """The items of a dataset, tensors or tuples of them; all, unless an order is given."""
        order = range(len(dataset)) if order is None else order
        if self.processes:
            items: Iterable[Any] = self._prepared(dataset, order)
        elif self.device.type == "cpu":
            # A DataLoader without processes adds nothing to the items but as much time as drawing
            # a batch of features takes.
            items = map(dataset.__getitem__, order)
        else:
            items = _in_a_thread(lambda index: _pinned(dataset[index]), order)
        for batch in items:
            if isinstance(batch, tuple | list):
                yield tuple(part.to(self.device, non_blocking=True) for part in batch)
            else:
                yield batch.to(self.device, non_blocking=True)

    def _prepared(self, dataset: Any, order: Sequence[int]) -> DataLoader[Any]:
        return DataLoader(
            dataset,
            batch_size=None,
            sampler=order,
            num_workers=self.processes,
            # They share the memory-mapped images; only a fork can take them along.
            multiprocessing_context="fork",
            worker_init_fn=_leave_signals_to_trainer,
            pin_memory=self.device.type == "cuda",  # else its copies would not be asynchronous
            generator=torch.Generator(),  # else creating the loader draws from the loss's stream
        )


def _in_a_thread(make: Callable[[int], Any], order: Sequence[int]) -> Iterator[Any]:
    """What is made of each number, in order, some ahead of who asks."""
    with ThreadPoolExecutor(max_workers=1) as thread:
        waiting: deque[Future[Any]] = deque()
        for index in order:
            waiting.append(thread.submit(make, index))
            if len(waiting) > AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _pinned(batch: Any) -> Any:
    """In memory that a card copies from by itself."""
    return batch.pin_memory() if not isinstance(batch, tuple) else tuple(map(_pinned, batch))


def open_loader(config: RunConfig, device: torch.device, laborious: bool) -> Loader:
    """The loader of some batches.

    Args:
        laborious: whether preparing a batch is more than copying it: random crops, or decoding.
    """
    processes = config.loader_workers
    if processes < 0:
        processes = processes_beside(1, device)
    return Loader(device, processes if laborious else 0)


def processes_beside(workers: int, device: torch.device) -> int:
    """That prepare batches for each of some training processes: as many as the cores allow."""
    if device.type != "cuda":
        return 0  # they would compete with training
    return max(1, min(MOST_PROCESSES, cores() // workers - 1))


def image_loader(config: RunConfig, device: torch.device) -> Loader:
    """Of images for evaluation, which are only cut out of the cache unless they must be decoded."""
    return open_loader(config, device, laborious=config.cache == "off")


def _leave_signals_to_trainer(process: int) -> None:
    """Ctrl-C and SIGTERM are for the process that trains, which ends its loaders itself."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_after_grace()
