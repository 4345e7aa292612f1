"""Progress events to the loggers of `--log`: one listener for each."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.config import RunConfig
from harness.errors import HarnessError
from harness.loggers.logger import Log, Run
from harness.registry import load_item
from harness.system.progress import (
    Configured,
    Event,
    FinalistScored,
    Listener,
    ModelEnded,
    PointEnded,
    Tested,
    TrialEnded,
    Validated,
)

logger = logging.getLogger(__name__)

LOGS = "logs"  # folder of the loggers' files in the folder of runs

INSTALL = "pip install 'metric-harness[log]'"


@contextmanager
def with_logs(config: RunConfig, shown: Listener) -> Iterator[Listener]:
    """A listener that passes every event to another one and to the loggers of a config.

    Raises HarnessError if a logger cannot be used.

    Args:
        shown: hears each event first.
    """
    folder = Path(config.runs_dir, LOGS)
    logs = [EventLog(name, open_log(name, folder / name)) for name in dict.fromkeys(config.log)]

    def tell(event: Event) -> None:
        shown(event)
        for log in logs:
            log(event)

    try:
        yield tell
    finally:
        for log in logs:
            log.close()


def open_log(name: str, folder: Path) -> Log:
    """Open a logger, before any work; say in one sentence why it cannot be used."""
    found = load_item("logger", name)
    try:
        return found.open(folder)
    except ImportError as error:
        raise HarnessError(
            f"--log {name} needs a package that is not installed ({error}); {INSTALL}"
        ) from None
    except Exception as error:  # of somebody else's package or server
        raise HarnessError(f"--log {name} cannot be used: {_first_line(error)}") from error


class EventLog:
    """A listener that turns events into curves and final scores of a logger.

    A logger that fails is turned off with one warning: a search never ends because of it.
    """

    def __init__(self, name: str, log: Log) -> None:
        self.name = name
        self.log: Log | None = log
        self.configured: dict[str, Configured] = {}  # by method
        self.ended: set[Run] = set()  # a run with two failed models ends with the first

    def __call__(self, event: Event) -> None:
        self._attempt(lambda log: self._tell(log, event))

    def close(self) -> None:
        self._attempt(lambda log: log.close())
        self.log = None

    def _attempt(self, action: Callable[[Log], None]) -> None:
        if self.log is None:
            return
        try:
            action(self.log)
        except Exception as error:
            self.log = None
            logger.warning(
                "--log %s failed and is off from here, the work goes on: %s",
                self.name,
                _first_line(error),
            )

    def _tell(self, log: Log, event: Event) -> None:
        match event:
            case Configured():
                self.configured[event.method] = event
            case Validated() if event.run and self._run(event) not in self.ended:
                curves = {self._metric(event): event.current, "loss": event.loss}
                for name, value in _finite(curves).items():
                    log.add_score(self._run(event), f"{name}/fold-{event.fold}", value, event.step)
            case TrialEnded():
                self._end(log, event, {event.metric: event.score}, event.params, event.reason)
            case FinalistScored():
                self._end(log, event, {self._metric(event): event.score}, {}, event.reason)
            case PointEnded():
                scores = {"score": event.score}
                self._end(log, event, scores, {"values": event.values}, event.reason)
            case ModelEnded() if event.reason:
                self._end(log, event, {}, {}, event.reason)
            case Tested():
                self._end(log, event, event.scores, event.params)

    def _end(
        self,
        log: Log,
        event: Event,
        scores: Mapping[str, float | None],
        params: Mapping[str, Any],
        failure: str = "",
    ) -> None:
        run = self._run(event)
        if run not in self.ended:
            self.ended.add(run)
            log.end_run(run, params, _finite(scores), failure)

    def _metric(self, event: Event) -> str:
        about = self.configured.get(event.method)
        return about.metric if about else "score"

    def _run(self, event: Event) -> Run:
        about = self.configured.get(event.method)
        if about is None:
            return Run(event.method, event.run)
        return Run(f"{about.table}/{event.method}", event.run, about.config)


def _finite(scores: Mapping[str, float | None]) -> dict[str, float]:
    return {
        name: score for name, score in scores.items() if score is not None and math.isfinite(score)
    }


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__
