"""Looks after a worker from outside: does it get on, how much memory does it take?"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from harness.system.heartbeat import Heartbeat

POLL = 1.0  # seconds between two looks at a worker
LONGEST_GAP = 5 * POLL  # a longer pause between two looks was a pause of this process, too
FIRST = 10  # times as long may the first piece of work take, which imports and opens everything
DUMP_SIGNAL = signal.SIGUSR1 if hasattr(signal, "SIGUSR1") else None
DUMP_PAUSE = 2.0  # seconds for a worker to write its stack
MIB = 2**20


@dataclass(frozen=True)
class Limits:
    """What a worker may take; 0 for no limit.

    Attributes:
        stall: seconds without a finished piece of work while a model is trained.
        memory: bytes of memory that no file stands behind.
    """

    stall: float = 0.0
    memory: float = 0.0


class Watch:
    """What was seen of one worker."""

    def __init__(self, pid: int, heartbeat: Heartbeat, limits: Limits, stack: Path) -> None:
        self.pid, self.heartbeat, self.limits, self.stack = pid, heartbeat, limits, stack
        self.beats, self.idle, self.looked = 0, 0.0, time.monotonic()

    def find_excess(self) -> str:
        """Which limit the worker exceeds, in words; empty if it keeps all."""
        now = time.monotonic()
        gap, self.looked = min(now - self.looked, LONGEST_GAP), now
        limit = self.limits.memory
        if limit and (used := anonymous_memory(self.pid)) > limit:
            return f"it took {used / MIB:.0f} MiB of memory; --memory-limit is {limit / MIB:.0f}"
        beats = self.heartbeat.beats.value
        resting = beats > 0 and self.heartbeat.note is None
        if beats != self.beats or resting:
            self.beats, self.idle = beats, 0.0
        elif not is_suspended(self.pid):
            self.idle += gap
        # The first beat says that a model is about to be trained, the second one that it is.
        longest = self.limits.stall * (1 if beats > 1 else FIRST)
        if self.limits.stall and self.idle > longest:
            return (
                f"it finished no training step, validation batch or loaded block for "
                f"{self.idle / 60:.3g} minutes (--stall-minutes)"
            )
        return ""

    def ask_for_stack(self) -> None:
        """Have the worker write where it is, in Python."""
        if DUMP_SIGNAL is not None:
            with contextlib.suppress(OSError):
                os.kill(self.pid, DUMP_SIGNAL)
            time.sleep(DUMP_PAUSE)

    def read_stack(self) -> str:
        """What it wrote, when asked to or as it crashed."""
        with contextlib.suppress(OSError):
            return self.stack.read_text(errors="replace")
        return ""


def anonymous_memory(pid: int) -> int:
    """Bytes of a process and its children that no file stands behind; 0 where that is not known."""
    found, waiting = 0, [pid]
    while waiting:
        folder = Path("/proc", str(waiting.pop()))
        with contextlib.suppress(OSError):
            status = (folder / "status").read_text()
            found += sum(int(n) for n in re.findall(r"^(?:RssAnon|VmSwap):\s+(\d+)", status, re.M))
            for children in folder.glob("task/*/children"):
                waiting += map(int, children.read_text().split())
    return found * 1024


def is_suspended(pid: int) -> bool:
    """Whether somebody stopped a process, as with Ctrl-Z."""
    with contextlib.suppress(OSError):
        stat = Path("/proc", str(pid), "stat").read_text()
        return stat.rpartition(")")[2].split()[0] in ("T", "t")
    return False
