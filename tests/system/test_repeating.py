"""Deterministic kernels on a GPU: asked for while training, told where there are none."""

from __future__ import annotations

import torch

from benchmarks.pretended_gpu import pretended_gpu
from harness.system.repeating import repeating

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


def test_sums_are_put_in_order_and_what_cannot_be_is_named() -> None:
    with pretended_gpu() as gpu:
        rows = torch.zeros(3, dtype=torch.int64, device="cuda")
        values = torch.ones(3, device="cuda")
        with repeating(CUDA) as unordered:
            torch.zeros(3, device="cuda").index_add_(0, rows, values)
            assert (unordered, gpu.unordered) == ([], [])
            for _ in range(2):
                values.cumsum(0)
            assert torch.backends.cudnn.deterministic
        assert unordered == ["aten.cumsum"]


def test_settings_are_afterwards_what_they_were() -> None:
    before = torch.backends.cudnn.deterministic, torch.are_deterministic_algorithms_enabled()
    for device in (CPU, CUDA):
        with repeating(device):
            assert torch.are_deterministic_algorithms_enabled() == (device == CUDA)
        assert not torch.are_deterministic_algorithms_enabled()
    assert (torch.backends.cudnn.deterministic, before[1]) == before
