"""Folders of the cache: built once, whole, and never so large that they fill the disk."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from pathlib import Path

from harness.errors import HarnessError
from harness.files import build_once

SPARE_BYTES = 2**30  # to leave free on the disk
ELSEWHERE = "give another folder: --cache-dir PATH, or HARNESS_CACHE=PATH"


def build_cache(folder: Path, build: Callable[[Path], None]) -> None:
    """`build_once`, with trouble of the disk in words."""
    try:
        build_once(folder, build)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _no_room(folder.parent, "the disk became full") from None
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR):
            raise HarnessError(
                f"cannot write the cache in {folder.parent}: {error.strerror}\n  {ELSEWHERE}"
            ) from None
        raise


def check_room(work: Path, needed: int, what: str, or_else: str = "") -> None:
    """Refuse to build what would fill the disk.

    Args:
        work: the folder that `build` was given.
        needed: bytes.
        what: takes them, for the message.
        or_else: what a user can do beside making room.
    """
    free = shutil.disk_usage(work).free
    if needed + SPARE_BYTES > free:
        reason = f"{what} take about {needed / 1e9:.1f} GB; {free / 1e9:.1f} GB are free"
        raise _no_room(work.parent, reason, or_else)


def _no_room(cache_dir: Path, reason: str, or_else: str = "") -> HarnessError:
    return HarnessError(
        f"no room for the cache in {cache_dir}: {reason}\n  make room, or {ELSEWHERE}{or_else}"
    )
