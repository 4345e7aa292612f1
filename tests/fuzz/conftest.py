"""No case waits for the disk: what a power cut leaves behind is tested elsewhere."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def hasty_disk() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", lambda handle: None)
        yield
