"""How much memory is left on this machine."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")  # of a container, or of a job of a cluster


def available_memory() -> int | None:
    """Bytes that new work can use without swapping; None where the system does not say."""
    found = []
    with suppress(OSError, TypeError):
        free = re.search(r"^MemAvailable:\s+(\d+) kB", MEMINFO.read_text(), re.MULTILINE)
        found.append(1024 * int(free[1]))  # type: ignore[index]  # other systems have no such line
    with suppress(OSError, TypeError, ValueError):  # a limit of "max" is none
        limit, used = (int((CGROUP / f"memory.{name}").read_text()) for name in ("max", "current"))
        # Cached files count as used, though they make room for new work.
        files = re.search(r"^inactive_file (\d+)", (CGROUP / "memory.stat").read_text(), re.M)
        found.append(limit - used + int(files[1]))  # type: ignore[index]
    return min(found, default=None)
