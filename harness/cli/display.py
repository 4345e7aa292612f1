"""How things look: progress as bars on a terminal and as plain lines elsewhere; numbers; times."""

from __future__ import annotations

import codecs
import errno
import io
import logging
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from harness.metrics.names import title_of
from harness.plain_text import printable
from harness.system.progress import (
    Begun,
    Event,
    FinalistScored,
    ModelEnded,
    Placed,
    PointEnded,
    Prepared,
    Stopping,
    Tested,
    TrialEnded,
    TrialReturned,
    Validated,
)

STOPPING = "stopping at the next validation; Ctrl-C again stops at once"

# Work on images before any training, and what they are afterwards.
PREPARED = {
    "decoding": "decoded",
    "encoding": "encoded by the trunk",
    "embedding": "embedded",
}


class _PlainConsole(Console):
    """One that leaves it to us what becomes of a run that nobody listens to any more."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))  # not SystemExit


def plain_console(**options: Any) -> Console:
    """A terminal to which text is text: neither markup nor emoji, whoever wrote it."""
    return _PlainConsole(markup=False, emoji=False, highlight=False, **options)


def is_for_people() -> bool:
    """Whether somebody watches: a terminal, or a notebook."""
    return sys.stderr.isatty() or plain_console(stderr=True).is_jupyter


def say(text: str = "", **how: Any) -> None:
    """Print text, whoever wrote it: all that a command says goes through here.

    Args:
        how: as `print` takes it.
    """
    print(printable(text), **how)


# What a terminal without these letters gets instead of a question mark.
IN_ASCII = {"±": "+-", "×": "x", "–": "-", "…": "...", "’": "'", "→": "->"}
IN_ASCII |= dict(zip("▁▂▃▄▅▆▇█", "_.:-=+*#", strict=True))


def _spelt_out(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    letters = error.object[error.start : error.end]
    escaped = (char.encode("ascii", "backslashreplace").decode() for char in letters)
    return "".join(
        IN_ASCII.get(char) or text for char, text in zip(letters, escaped, strict=True)
    ), (error.end)


def replace_closed_streams() -> None:
    """Discard what a command prints to a stream that its caller has closed, as by `2>&-`.

    Otherwise the next file that is opened would get the number of that stream, and whatever a
    library prints would be written into it.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode)  # noqa: SIM115 (open until the process ends)
            os.set_inheritable(stream.fileno(), True)  # workers need one, too
            setattr(sys, name, stream)


def write_on_any_terminal() -> None:
    """No text ends a command because a terminal, or UTF-8 itself, has no letters for it."""
    codecs.register_error("spelt_out", _spelt_out)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            with suppress(OSError, ValueError):  # closed, or put in the place of another one
                stream.reconfigure(errors="spelt_out")


class _Printable(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def log_on_terminal() -> None:
    """What modules warn of, whoever wrote the names in it."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Printable("%(levelname)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])


def _placed(event: Placed) -> str:
    return f"trains on {event.device}: {event.reason}"


class Pace:
    """Guesses the time left from how fast the units of a method have come in."""

    def __init__(self) -> None:
        self.started = self.last = time.monotonic()
        self.method = ""
        self.done = 0

    def left(self, method: str, number: int, total: int) -> str:
        """Call it once for every finished unit, with its number of how many."""
        if method != self.method:
            self.method, self.started, self.done = method, self.last, 0
        self.done += 1
        self.last = time.monotonic()
        # Of all workers together: units that overlap come in twice as fast.
        seconds = (self.last - self.started) / self.done * (total - number)
        return f"about {spell_seconds(seconds)} left" if number < total else "last one"


def _failed(place: str, event: TrialEnded | ModelEnded) -> str:
    trace = f"\n  traceback: {event.trace}" if event.trace else ""
    return f"{place} failed: {event.reason}{trace}"


def _finalist(event: FinalistScored) -> str:
    place = f"{event.method}: finalist {event.finalist}/{event.finalists}"
    outcome = f"failed: {event.reason}" if event.reason else f"score {spell_score(event.score)}"
    return f"{place}, other partition {event.partition}, {outcome}"


class Lines:
    """One line per finished unit, for logs."""

    def __init__(self, verbose: bool) -> None:
        self.verbose = verbose
        self.pace = Pace()
        self.console = plain_console(stderr=True, soft_wrap=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def __call__(self, event: Event) -> None:
        text = self._text(event)
        if text:
            self.console.print(printable(text))

    def _text(self, event: Event) -> str:
        match event:
            case Stopping():
                return STOPPING
            case Placed():
                return _placed(event)
            case Prepared() if event.done == event.total:
                return f"{event.dataset}: {event.total} images {PREPARED[event.action]}"
            case Validated() if self.verbose:
                where = f"fold {event.fold}, step {event.step}/{event.max_steps}"
                return f"{event.method}: {where}, best so far {spell_score(event.best)}"
            case TrialReturned():
                place = f"{event.method}: trial {event.trial}/{event.trials}"
                return f"{place} will be run again: {event.reason}"
            case TrialEnded():
                return self._trial(event)
            case FinalistScored():
                return _finalist(event)
            case ModelEnded():
                return self._model(event)
            case Tested():
                return self._tested(event)
            case PointEnded():
                return self._point(event)
        return ""

    def _point(self, event: PointEnded) -> str:
        place = f"{event.method} {event.values}: point {event.point}/{event.points}"
        if event.seeds > 1:
            place += f", seed {event.seed}/{event.seeds}"
        if event.reason:
            return f"{place} failed: {event.reason}"
        done = (event.point - 1) * event.seeds + event.seed
        left = self.pace.left("", done, event.points * event.seeds)
        return f"{place}, score {spell_score(event.score)}, {left}"

    def _trial(self, event: TrialEnded) -> str:
        place = f"{event.method}: trial {event.trial}/{event.trials}"
        if event.reason:
            return _failed(place, event)
        score = f"{title_of(event.metric).lower()} {spell_score(event.score)}"
        if event.pruned:
            score += f" expected: hopeless after fold {event.folds}"
        best, seconds = f"best {spell_score(event.best)}", f"{event.seconds:.0f} s"
        left = self.pace.left(event.method, event.trial, event.trials)
        return ", ".join([place, score, best, seconds, left])

    def _model(self, event: ModelEnded) -> str:
        place = f"{event.method}: reproduction {event.reproduction}/{event.reproductions}"
        if event.fold:
            place += f", fold {event.fold}"
        if event.reason:
            return _failed(place, event)
        return f"{place}, validation {spell_score(event.score)}" if self.verbose else ""

    def _tested(self, event: Tested) -> str:
        if not event.reproductions:  # a naive baseline
            return f"{event.method}: tested"
        number, total = event.reproduction, event.reproductions
        place = f"{event.method}: reproduction {number}/{total}"
        left = self.pace.left(event.method, number, total)
        return f"{place}, map@r {spell_score(event.score)}, {left}"


class Bars:
    """A bar per method and one per worker, for people."""

    def __init__(self) -> None:
        self.bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[count]}"),
            TextColumn("{task.fields[note]}", markup=False),
            TimeRemainingColumn(compact=True),
            console=plain_console(stderr=True),
        )
        self.tasks: dict[str, TaskID] = {}
        self.done: Counter[str] = Counter()  # by method

    def __enter__(self) -> Self:
        self.bars.start()
        self.begun = self.bars.add_task("preparing", total=None, count="", note="")
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.bars.stop()

    def __call__(self, event: Event) -> None:
        self.bars.update(self.begun, visible=False)
        match event:
            case Stopping():
                self._say(STOPPING)
            case Placed():
                self._say(_placed(event))
            case Prepared():
                title = f"{event.action} {event.dataset}"
                self._show(title, event.done, event.total, "images")
            case Validated():
                title = f"  worker {event.worker}: {event.method} {event.unit}"
                note = f"fold {event.fold}, best so far {spell_score(event.best)}"
                self._show(title, event.step, event.max_steps, note, f"worker {event.worker}")
            case TrialReturned():
                self._say(f"{event.method} {event.trial} will be run again: {event.reason}")
            case Begun():
                self.done[event.method] = event.done
                self._show(event.method, event.done, event.total, event.units)
            case TrialEnded() if event.reason:
                self._say(_failed(f"{event.method} {event.trial}", event))
                self._count(event.method, event.trials, "trials")
            case ModelEnded() if event.reason:
                self._say(_failed(f"{event.method} {event.reproduction}", event))
            case PointEnded() if event.reason:
                self._say(f"{event.method} {event.values} failed: {event.reason}")
            case PointEnded():
                note = f"points, last {spell_score(event.score)}"
                self._show("sweep", event.point, event.points, note)
            case FinalistScored():
                self._say(_finalist(event))
            case TrialEnded():
                note = f"trials, last {spell_score(event.score)} best {spell_score(event.best)}"
                self._count(event.method, event.trials, note)
            case Tested() if event.reproductions:
                note = f"reproductions, last {spell_score(event.score)}"
                self._count(event.method, event.reproductions, note)

    def _count(self, method: str, total: int, note: str) -> None:
        """One more is done, whatever its number: workers end in any order."""
        self.done[method] = min(total, self.done[method] + 1)
        self._show(method, self.done[method], total, note)

    def _say(self, text: str) -> None:
        self.bars.print(printable(text))

    def _show(self, text: str, done: int, total: int, note: str, key: str = "") -> None:
        text = printable(text)
        key = key or text
        if key not in self.tasks:
            self.tasks[key] = self.bars.add_task(text, total=total, count="", note="")
        self.bars.update(self.tasks[key], description=text, completed=done, total=total)
        self.bars.update(self.tasks[key], count=f"{done}/{total}", note=note)


def spell_seconds(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def spell(params: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={short(value)}" for name, value in params.items()) or "none"


def spell_adjusted(adjusted: Mapping[str, Any]) -> list[str]:
    """What a method used with other values than it was given, a line each."""
    return [
        f"{name}: {short(note['used'])} used, {short(note['given'])} given ({note['reason']})"
        for name, note in adjusted.items()
    ]


def short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def spell_score(score: float | None) -> str:
    """A score between 0 and 1 in percent, as tables have it; a dash for none."""
    return f"{score:.2%}" if score is not None and math.isfinite(score) else "-"
