"""The same bits again: kernels of a GPU that add up in one order, and which of them did not."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

# cuBLAS repeats itself with workspaces of a fixed size; it reads this when it is first used.
WORKSPACE = ("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

# What torch warns with, where it was asked to repeat itself and cannot.
_UNORDERED = re.compile(r"^(\S+) does not have a deterministic implementation")


@contextmanager
def repeating(device: torch.device) -> Iterator[list[str]]:
    """Run with deterministic kernels where torch has them; yields the names of those it has not.

    On a CPU with a fixed number of threads all have a fixed order, and nothing is changed.
    """
    unordered: list[str] = []
    if device.type != "cuda":
        yield unordered
        return
    os.environ.setdefault(*WORKSPACE)
    cudnn = torch.backends.cudnn
    settings: Any = torch.utils.deterministic  # whose types leave out what it has
    before = cudnn.deterministic, cudnn.benchmark, settings.fill_uninitialized_memory
    asked = torch.are_deterministic_algorithms_enabled()
    warned_only = torch.is_deterministic_algorithms_warn_only_enabled()
    show = warnings.showwarning

    def note(message: Warning | str, *details: Any, **more: Any) -> None:
        found = _UNORDERED.match(str(message))
        if found is None:
            show(message, *details, **more)
        elif found[1] not in unordered:
            unordered.append(found[1])

    with warnings.catch_warnings():
        warnings.filterwarnings("default", message=_UNORDERED.pattern)
        warnings.showwarning = note
        cudnn.deterministic, cudnn.benchmark = True, False
        settings.fill_uninitialized_memory = False  # which costs time and serves debugging
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            yield unordered
        finally:
            torch.use_deterministic_algorithms(asked, warn_only=warned_only)
            cudnn.deterministic, cudnn.benchmark, settings.fill_uninitialized_memory = before
