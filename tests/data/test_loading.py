"""Batches on their way to the device."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.pretended_gpu import pretended_gpu
from harness.config import RunConfig
from harness.data import loading
from harness.data.loading import Loader, open_loader, processes_beside

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


class Interrupted:
    """Items that are interrupted while they are made."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Tensor:
        os.kill(os.getpid(), signal.SIGINT)
        return torch.tensor(index)


def test_loader_processes_leave_ctrl_c_to_the_one_that_trains() -> None:
    assert [int(item) for item in Loader(CPU, processes=2).load(Interrupted())] == [0, 1, 2, 3]


@pytest.mark.parametrize(("device", "pinned"), [(CUDA, True), (CPU, False)])
def test_what_goes_to_a_gpu_is_pinned(
    device: torch.device, pinned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}
    monkeypatch.setattr(loading, "DataLoader", lambda items, **given: asked.update(given) or [])
    assert list(Loader(device, processes=2).load([1, 2])) == []
    assert asked["pin_memory"] is pinned


@dataclass
class Counted:
    """Items that are counted as they are made, and draw at random."""

    made: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.made.append(index)
        return torch.tensor(index), torch.rand(())


def test_without_processes_an_item_is_made_when_it_is_asked_for() -> None:
    items = Counted()
    loaded = Loader(CPU).load(items, order=[2, 0, 3])
    assert items.made == []
    assert next(loaded)[0] == 2
    assert items.made == [2]
    assert [int(number) for number, _ in loaded] == [0, 3]


def test_loading_draws_nothing_from_the_stream_of_the_loss() -> None:
    torch.manual_seed(0)
    expected = [float(torch.rand(())) for _ in range(4)]
    torch.manual_seed(0)
    assert [float(drawn) for _, drawn in Loader(CPU).load(Counted())] == expected


@pytest.mark.parametrize(
    ("device", "laborious", "asked", "processes"),
    [
        (CUDA, True, -1, 5),  # of six cores, one trains
        (CUDA, False, -1, 0),
        (CPU, True, -1, 0),
        (CPU, True, 3, 3),
        (CPU, False, 3, 0),
    ],
)
def test_processes_help_where_batches_are_laborious(
    device: torch.device,
    laborious: bool,
    asked: int,
    processes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loading, "cores", lambda: 6)
    loader = open_loader(RunConfig(loader_workers=asked), device, laborious)
    assert loader == Loader(device, processes)


@pytest.mark.parametrize(("cores", "workers", "each"), [(64, 4, 8), (16, 4, 3), (4, 8, 1)])
def test_processes_share_the_cores_among_workers(
    cores: int, workers: int, each: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "cores", lambda: cores)
    assert processes_beside(workers, CUDA) == each
    assert processes_beside(workers, CPU) == 0


def test_beside_a_card_items_are_made_ahead_in_their_order_and_pinned() -> None:
    third = threading.Event()

    class Told(Counted):
        def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
            item = super().__getitem__(index)
            if index == 3:
                third.set()
            return item

    items = Told()
    with pretended_gpu() as gpu:
        loaded = Loader(CUDA).load(items, order=[2, 0, 3, 1])
        assert next(loaded)[0].tolist() == 2
        assert third.wait(60)  # nobody asked for it
        gpu.waits.clear()
        rest = list(loaded)
        assert gpu.waits == []
        assert [number.tolist() for number, _ in rest] == [0, 3, 1]
    assert items.made == [2, 0, 3, 1]


def test_an_error_in_making_an_item_is_that_of_who_asks() -> None:
    class Broken:
        def __getitem__(self, index: int) -> Tensor:
            raise OSError("the disk is gone")

    with pretended_gpu(), pytest.raises(OSError, match="the disk is gone"):
        list(Loader(CUDA).load(Broken(), order=[0]))
