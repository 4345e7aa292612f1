"""Processes that a loss forks: they must not go on with the work of the harness."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from os import _exit  # which code of others may have replaced


@contextmanager
def ending_forks() -> Iterator[None]:
    """End every process that code in this block forks and that leaves the block.

    Without this, both processes would train on, and write the same files.
    """
    process = os.getpid()
    try:
        yield
    finally:
        if os.getpid() != process:
            _exit(0)
