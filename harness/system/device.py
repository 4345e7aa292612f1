"""The one place that decides where tensors live and how many threads work on them."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch

from harness.errors import HarnessError
from harness.system import cards

# Libraries read these when they are loaded, so they must be set before a worker starts.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")

NO_MPS = "Apple's MPS has no float64, which exact retrieval needs"

# Parameters of glibc's mallopt.
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4


def choose_device(name: str) -> torch.device:
    """The device called `name`; "auto" is a GPU where there is one, else the CPU."""
    return explain_device(name)[0]


def explain_device(name: str) -> tuple[torch.device, str]:
    """The device called `name`, and why it was taken."""
    if sys.platform == "linux":
        _keep_freed_memory()
    type_, _, number = name.partition(":")
    if type_ not in ("auto", "cuda", "mps", "cpu") or (number and type_ != "cuda"):
        raise HarnessError(f"no device named '{name}'; one of auto, cuda, cuda:N, cpu")
    if type_ == "mps":
        raise HarnessError(f"device 'mps' cannot be used: {NO_MPS}; give --device cpu")
    if type_ == "cpu":
        return torch.device("cpu"), "asked for"
    trouble = cards.trouble()
    if trouble is not None:
        raise HarnessError(f"the GPU here cannot be used: {trouble}\n  without it: --device cpu")
    if not torch.cuda.is_available():
        if type_ == "cuda":
            raise HarnessError(f"device '{name}' is not available here: {_why_none()}")
        return torch.device("cpu"), _why_none()
    count = torch.cuda.device_count()
    if number and not (number.isdigit() and int(number) < count):
        raise HarnessError(f"device '{name}' does not exist; there are {count}")
    device = torch.device(name if number else "cuda")
    shown = torch.cuda.get_device_name(device)
    return device, shown if number or count == 1 else f"{count} cards, the first {shown}"


def _why_none() -> str:
    if cards.are_hidden():
        return f"{cards.VISIBLE} hides the GPUs"
    if torch.backends.mps.is_available():
        return NO_MPS
    return "there is no GPU"


def device_count(device: torch.device) -> int:
    """How many such devices can train at the same time; 0 for the CPU."""
    if device.type == "cuda":
        return 1 if device.index is not None else torch.cuda.device_count()
    return 0


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


@contextmanager
def cpu_threads(count: int) -> Iterator[None]:
    """Run with the protocol's number of threads, so that workers never change a score."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def thread_limit(threads: int) -> Iterator[None]:
    """Processes that are started here use so many threads in every library."""
    before = {name: os.environ.get(name) for name in THREAD_VARIABLES}
    os.environ.update({name: str(threads) for name in THREAD_VARIABLES})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
