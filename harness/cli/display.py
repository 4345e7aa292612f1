"""How progress looks: bars on a terminal, plain lines elsewhere. Used by the command line alone."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from harness.system.progress import Event

# Events that end a unit of work, and what the unit is called.
UNITS = {"trial": "trial", "pruned": "trial", "tested": "reproduction"}

STOPPING = "stopping at the next validation; Ctrl-C again stops at once"

# Work on the images of a part before any training, and what they are afterwards.
PREPARATIONS = {"decoding": "decoded", "encoding": "encoded by the trunk"}


class Pace:
    """Guesses the time left from how fast the units of a method have come in."""

    def __init__(self) -> None:
        self.started = self.last = time.monotonic()
        self.method = ""
        self.done = 0

    def left(self, event: Event) -> str:
        """Call it once for every finished unit."""
        if event.method != self.method:
            self.method, self.started, self.done = event.method, self.last, 0
        self.done += 1
        self.last = time.monotonic()
        # Of all workers together: units that overlap come in twice as fast.
        remaining = event.units - _place(event)
        seconds = (self.last - self.started) / self.done * remaining
        return f"about {spell_seconds(seconds)} left" if remaining > 0 else "last one"


def _place(event: Event) -> int:
    """Trials count from 0, reproductions from 1; people count from 1."""
    return event.unit + 1 if event.kind in ("trial", "pruned", "validation") else event.unit


def spell_seconds(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _score(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


class Lines:
    """One line per finished unit, for logs."""

    def __init__(self, verbose: bool) -> None:
        self.verbose = verbose
        self.pace = Pace()
        self.console = Console(stderr=True, highlight=False, soft_wrap=True, markup=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def __call__(self, event: Event) -> None:
        text = self._text(event)
        if text:
            self.console.print(text)

    def _text(self, event: Event) -> str:
        if event.kind == "stopping":
            return STOPPING
        if event.kind in PREPARATIONS:
            text = f"{event.method}: {event.units} images {PREPARATIONS[event.kind]}"
            return text if event.unit == event.units else ""
        if event.kind == "validation":
            where = f"fold {event.fold}, step {event.step}/{event.max_steps}"
            text = f"{event.method}: {where}, best so far {_score(event.score)}"
            return text if self.verbose else ""
        if event.kind == "model":
            text = f"{event.method}: reproduction {event.unit}/{event.units}, fold {event.fold}"
            if event.message:
                return f"{text} failed: {event.message}"
            return f"{text}, validation {_score(event.score)}" if self.verbose else ""
        return self._finished(event) if event.kind in UNITS else ""

    def _finished(self, event: Event) -> str:
        if not event.units:  # a naive baseline
            return f"{event.method}: tested"
        place = f"{UNITS[event.kind]} {_place(event)}/{event.units}"
        if event.message:
            return f"{event.method}: {place} failed: {event.message}"
        parts = [f"{event.method}: {place}", f"map@r {_score(event.score)}"]
        if event.kind == "pruned":
            parts[1] += f" expected: hopeless after fold {len(event.scores)}"
        if event.kind != "tested":
            parts.append(f"best {_score(event.best)}")
            parts.append(f"{event.seconds:.0f} s")
        return ", ".join([*parts, self.pace.left(event)])


class Bars:
    """A bar per method and one per worker, for people."""

    def __init__(self) -> None:
        self.bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TextColumn("{task.fields[note]}"),
            TimeRemainingColumn(compact=True),
            console=Console(stderr=True),
        )
        self.tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self.bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.bars.stop()

    def __call__(self, event: Event) -> None:
        if event.kind in PREPARATIONS:
            self._show(f"{event.kind} {event.method}", event.unit, event.units, "images")
        elif event.kind == "validation":
            description = f"  worker {event.worker}: {event.method} {_place(event)}"
            note = f"fold {event.fold}, best so far {_score(event.score)}"
            key = f"worker {event.worker}"
            self._show(description, event.step, event.max_steps, note, key)
        elif event.kind == "stopping":
            self.bars.print(STOPPING)
        elif event.message:
            self.bars.print(f"{event.method} {_place(event)} failed: {event.message}")
        elif event.kind in UNITS and event.units:
            best = f"best {_score(event.best)}" if event.kind != "tested" else ""
            note = f"{UNITS[event.kind]}s, last {_score(event.score)} {best}"
            self._show(event.method, _place(event), event.units, note)

    def _show(self, text: str, done: int, total: int, note: str, key: str = "") -> None:
        key = key or text
        if key not in self.tasks:
            self.tasks[key] = self.bars.add_task(text, total=total, note=note)
        self.bars.update(self.tasks[key], description=text, completed=done, total=total, note=note)


def spell(params: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={short(value)}" for name, value in params.items()) or "none"


def short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
