"""Signs of life of a worker, in memory that it shares with the process that started it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LONGEST = 4096  # bytes of a path


@dataclass
class Heartbeat:
    """What a worker shares.

    Attributes:
        stop: not 0 once the worker is asked to stop.
        beats: how many pieces of work it has finished, such as training steps.
        place: see `note`, as UTF-8; empty while no model is trained.
    """

    stop: Any
    beats: Any
    place: Any

    @property
    def note(self) -> Path | None:
        """File for the reason, should the worker be ended: of the model that it trains now."""
        return Path(self.place.value.decode()) if self.place.value else None


def make_heartbeat(context: Any, stop: Any) -> Heartbeat:
    """Shared memory without a lock, which a killed process would keep."""
    return Heartbeat(stop, context.RawValue("Q", 0), context.RawArray("c", LONGEST))


class _Own:
    """The heartbeat of this process, if it is a worker."""

    heartbeat: Heartbeat | None = None


def use(heartbeat: Heartbeat) -> None:
    """From now on, this process tells its signs of life there."""
    _Own.heartbeat = heartbeat


def beat() -> None:
    """A piece of work is done: a training step, a validation batch, a loaded block."""
    if _Own.heartbeat is not None:
        _Own.heartbeat.beats.value += 1


@contextmanager
def training(note: Path) -> Iterator[None]:
    """A model is trained: from here on, a worker that does nothing is noticed.

    Args:
        note: file for the reason, should the worker be ended.
    """
    own, path = _Own.heartbeat, str(note.absolute()).encode()
    if own is None or len(path) >= LONGEST:
        yield
        return
    beat()
    own.place.value = path
    try:
        yield
    finally:
        own.place.value = b""
        beat()
