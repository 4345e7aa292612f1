"""Logger: what a file of this folder, or a plug-in, offers as a name of `--log`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True)
class Run:
    """What numbers belong to: a trial, a reproduction or a point of a sweep.

    Attributes:
        group: the search, evaluation or sweep, such as mlrc/glyphs-glyphnet/proxyanchor.
        name: its name in the group, such as trial-3.
        config: settings that all runs of the group share, by name.
    """

    group: str
    name: str
    config: Mapping[str, Any] = field(default_factory=dict, compare=False)


class Log(Protocol):
    """An open logger. If a method raises an exception, the harness goes on without the logger.

    Scores are fractions between 0 and 1. They are finite.
    """

    def add_score(self, run: Run, name: str, score: float, step: int) -> None:
        """Add a point to a curve of a run, such as the validation score of one fold."""

    def end_run(
        self, run: Run, params: Mapping[str, Any], scores: Mapping[str, float], failure: str
    ) -> None:
        """Note the hyper-parameters and final scores of a run, or why it failed."""

    def close(self) -> None:
        """Finish writing. Some runs may not have ended."""


@dataclass(frozen=True)
class Logger:
    """One name of `--log`.

    Attributes:
        open: takes the folder that the log may write files to, and returns the open log. Raises
            ImportError if a package is missing, and ValueError if the log cannot be used.
    """

    name: str
    summary: str
    open: Callable[[Path], Log]
