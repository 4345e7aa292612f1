"""The one place that decides where tensors live."""

from __future__ import annotations

import ctypes
import sys
from functools import cache

import torch

from harness.errors import HarnessError

# Parameters of glibc's mallopt.
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4


def choose_device(name: str) -> torch.device:
    """The device called `name`; "auto" is the first of cuda, mps and cpu that is there."""
    available = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    torch.backends.cudnn.deterministic = True  # kernels that add up in the same order every time
    if sys.platform == "linux":
        _keep_freed_memory()
    if name == "auto":
        return torch.device(next(kind for kind, there in available.items() if there))
    kind, _, number = name.partition(":")
    if kind not in available or (number and kind != "cuda"):
        raise HarnessError(f"no device named '{name}'; one of auto, cuda, cuda:N, mps, cpu")
    if not available[kind]:
        raise HarnessError(f"device '{name}' is not available here; use --device auto or cpu")
    if number and not (number.isdigit() and int(number) < torch.cuda.device_count()):
        raise HarnessError(f"device '{name}' does not exist; there are {torch.cuda.device_count()}")
    return torch.device(name)


def device_count(name: str) -> int:
    """How many devices of that kind can train at the same time; 0 for the CPU."""
    device = choose_device(name)
    if device.type == "cuda":
        return 1 if device.index is not None else torch.cuda.device_count()
    return 1 if device.type == "mps" else 0


def device_name(device: torch.device) -> str:
    """What a record says of the device."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


@cache
def _keep_freed_memory() -> None:
    """Stop glibc from giving every large block back to the system when it is freed.

    Getting it again costs a page fault per 4 KiB: 105 of 143 ms per image of EfficientNet-Lite0
    in batches of 64 on one core.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):  # other C libraries have none
        libc.mallopt(M_MMAP_MAX, 0)
        libc.mallopt(M_TRIM_THRESHOLD, -1)
