"""The pretended GPU refuses, waits and draws as a card does."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks.pretended_gpu import pretended_gpu

ROOT = Path(__file__).parents[1]

REFUSED: dict[str, Callable[[Tensor], object]] = {
    "operands": lambda there: there + torch.ones(3),
    "matrices": lambda there: torch.ones(2, 3) @ there,
    "indices of another operation": lambda there: there.index_select(0, torch.tensor([0])),
    "a target": lambda there: torch.zeros(3).add_(there),
    "a single number as a target": lambda there: torch.zeros(()).add_(there.sum()),
    "parts": lambda there: torch.cat([there, torch.ones(3)]),
    "numpy": lambda there: there.numpy(),
    "a generator": lambda there: there.normal_(generator=torch.Generator()),
}

# What makes the CPU wait for the card, and how often.
WAITING: dict[str, tuple[Callable[[Tensor], object], int]] = {
    "item": (lambda there: there.sum().item(), 1),
    "float": (lambda there: float(there[0]), 1),
    "a condition": (lambda there: bool((there > 0).all()), 1),
    "nonzero": (lambda there: there.nonzero(), 1),
    "a mask": (lambda there: there[there > 0], 1),
    "cpu": (lambda there: there.cpu(), 1),
    "tolist": (lambda there: there.tolist(), 1),
    "unique": (lambda there: there.unique(), 1),
    "a new tensor": (lambda there: torch.tensor([1.0, 2.0], device=there.device), 1),
    "a blocking copy": (lambda there: torch.ones(3).to("cuda"), 1),
    "a copy of pageable memory": (lambda there: torch.ones(3).to("cuda", non_blocking=True), 1),
    "indices of the CPU": (lambda there: there[torch.tensor([0, 1])], 1),
    "repeat_interleave": (lambda there: there.repeat_interleave(there.long()), 1),
    "synchronize": (lambda there: torch.cuda.synchronize(), 1),
}

PROMPT: dict[str, Callable[[Tensor], object]] = {
    "arithmetic": lambda there: (there * 2).sum().exp(),
    "a single number of the CPU": lambda there: there + torch.tensor(1.0),
    "masked_fill": lambda there: there.masked_fill(there > 0, 0.0),
    "a filled mask": lambda there: there.clone().__setitem__(there > 0, 0.0),
    "slices": lambda there: there[1:][None],
    "indices": lambda there: there[torch.arange(2, device="cuda")],
    "where": lambda there: torch.where(there > 0, there, 0.0),
    "a new tensor": lambda there: torch.zeros(3, device=there.device),
    "pinned memory": lambda there: torch.ones(3).pin_memory().to("cuda", non_blocking=True),
    "randomness": lambda there: torch.rand_like(there),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_card_refuses_is_refused(name: str) -> None:
    with pretended_gpu():
        there = torch.ones(3, device="cuda")
        with pytest.raises((RuntimeError, TypeError), match=r"same device|to numpy|generator"):
            REFUSED[name](there)


@pytest.mark.parametrize("name", WAITING)
def test_what_a_card_is_waited_for_is_noted_with_its_line(name: str) -> None:
    ask, times = WAITING[name]
    with pretended_gpu() as gpu:
        there = torch.ones(3, device="cuda")
        gpu.waits.clear()
        ask(there)
    assert len(gpu.waits) == times
    assert gpu.waits[0].line.startswith(f"tests/{Path(__file__).name}:")


@pytest.mark.parametrize("name", PROMPT)
def test_what_needs_no_answer_does_not_wait(name: str) -> None:
    with pretended_gpu() as gpu:
        there = torch.ones(3, device="cuda")
        gpu.waits.clear()
        PROMPT[name](there)
    assert gpu.waits == []


def test_python_sees_a_card_and_real_values() -> None:
    with pretended_gpu(count=2):
        there = torch.arange(3.0).to("cuda")
        assert (there.device, there.is_cuda, there.is_cpu) == (torch.device("cuda", 0), True, False)
        assert (there + 1).tolist() == [1.0, 2.0, 3.0]
        assert torch.cuda.device_count() == 2
    assert not torch.cuda.is_available()


def test_gradients_are_those_of_the_cpu_and_stay_on_the_card() -> None:
    layer, points = torch.nn.Linear(3, 2), torch.randn(4, 3)
    layer(points).square().sum().backward()
    assert layer.weight.grad is not None
    expected = layer.weight.grad.clone()
    with pretended_gpu():
        layer.zero_grad()
        layer.to("cuda")
        layer(points.to("cuda")).square().sum().backward()
        assert layer.weight.grad.is_cuda
        assert torch.equal(layer.weight.grad.cpu(), expected)


def test_random_numbers_of_the_card_are_a_stream_of_their_own() -> None:
    torch.manual_seed(0)
    expected = torch.rand(2)
    torch.manual_seed(0)
    with pretended_gpu():
        torch.cuda.manual_seed(1)
        state = torch.cuda.get_rng_state()
        first = torch.rand(2, device="cuda").tolist()
        assert torch.equal(torch.rand(2), expected)
        torch.cuda.set_rng_state(state)
        assert torch.rand(2, device="cuda").tolist() == first


def test_files_hold_values_and_are_loaded_where_they_are_asked_for(tmp_path: Path) -> None:
    with pretended_gpu():
        torch.save({"a": [torch.ones(2, device="cuda")]}, tmp_path / "f.pt")
        assert torch.load(tmp_path / "f.pt", map_location="cuda")["a"][0].is_cuda
    assert torch.load(tmp_path / "f.pt")["a"][0].tolist() == [1.0, 1.0]


def test_sums_in_no_fixed_order_are_noted_unless_torch_puts_them_in_order() -> None:
    with pretended_gpu() as gpu:
        rows = torch.zeros(3, dtype=torch.int64, device="cuda")
        torch.zeros(3, device="cuda").index_add_(0, rows, torch.ones(3, device="cuda"))
        assert [asked.operation for asked in gpu.unordered] == ["aten.index_add_"]
        gpu.unordered.clear()
        torch.use_deterministic_algorithms(True)
        try:
            torch.zeros(3, device="cuda").index_add_(0, rows, torch.ones(3, device="cuda"))
        finally:
            torch.use_deterministic_algorithms(False)
        assert gpu.unordered == []


def test_a_tensor_does_not_outlive_its_card() -> None:
    with pretended_gpu():
        there = torch.ones(3, device="cuda")
    with pytest.raises(RuntimeError, match="that is gone"):
        there + 1


def test_the_benchmark_counts_without_a_card_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)  # benchmarks are no part of the package
    monkeypatch.syspath_prepend(str(ROOT))
    benchmark = importlib.import_module("benchmarks.gpu")
    output = tmp_path / "gpu.md"
    monkeypatch.setattr(sys, "argv", ["gpu", "--quick", "--losses", "c2", "--output", str(output)])
    with warnings.catch_warnings():
        benchmark.main()
    written = output.read_text()
    assert "pretended one, nothing was timed" in written
    assert "| c2 | 0 |" in written
    assert written.count("Only a card can show it.") == 5


def test_the_benchmark_counts_the_queries_that_faiss_orders_differently() -> None:
    benchmark = importlib.import_module("benchmarks.gpu")
    points = torch.randn(300, 4, generator=torch.Generator().manual_seed(0))
    found = benchmark.faiss_neighbours(points, card=None)
    distances = torch.cdist(points.double(), points.double()).fill_diagonal_(torch.inf)
    assert torch.equal(found, distances.argsort(dim=1)[:, : benchmark.NEIGHBOURS])
    assert benchmark.differently_ordered(points, found) == 0
    assert benchmark.differently_ordered(points, found.flip(1)) == 300
