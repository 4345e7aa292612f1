"""SIGTERM: the machine is about to be taken away, so save the work and leave.

Slurm, Kubernetes and spot machines send it, and kill the processes half a minute or more later.
Training looks after every step whether it came; everything else is interrupted at once.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

TERMINATED = 128 + signal.SIGTERM  # exit code of a command that was stopped by SIGTERM

GRACE_SECONDS = 15.0  # that a step or a validation may take before it is interrupted, too


class Terminated(KeyboardInterrupt):
    """SIGTERM was heard: like Ctrl-C, but nobody waits for the next validation."""


@dataclass
class _State:
    """What this process knows.

    Attributes:
        heard: when SIGTERM came first; None if it did not.
        patient: whether the work looks itself whether it came.
    """

    heard: float | None = None
    patient: bool = False


_state = _State()


def asked_to_stop() -> bool:
    """Whether SIGTERM came."""
    return _state.heard is not None


def hear_sigterm() -> None:
    """Answer SIGTERM from now on. It may come several times: to a group, and from a parent."""
    _state.heard = None
    signal.signal(signal.SIGTERM, _hear)


@contextmanager
def hearing_sigterm() -> Iterator[None]:
    """Answer SIGTERM within a block; only the main thread hears of signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    hear_sigterm()
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        _state.heard = None


@contextmanager
def looking_for_sigterm() -> Iterator[None]:
    """A block that calls `asked_to_stop` often, and is interrupted only if it takes too long."""
    _state.patient = True
    try:
        yield
    finally:
        _state.patient = False


def die_after_grace() -> None:
    """Outlive SIGTERM long enough for the process that this one serves to save its work."""

    def hear(number: int, frame: FrameType | None) -> None:
        _after_grace(lambda: os._exit(TERMINATED))

    signal.signal(signal.SIGTERM, hear)


def _hear(number: int, frame: FrameType | None) -> None:
    now = time.monotonic()
    if _state.heard is None:
        _state.heard = now
        if _state.patient:
            _after_grace(_remind)
    if not _state.patient or now - _state.heard >= GRACE_SECONDS:
        raise Terminated


def _remind() -> None:
    if asked_to_stop():
        os.kill(os.getpid(), signal.SIGTERM)


def _after_grace(action: Callable[[], None]) -> None:
    timer = threading.Timer(GRACE_SECONDS, action)
    timer.daemon = True
    timer.start()
