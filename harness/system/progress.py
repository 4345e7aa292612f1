"""What long work says about itself while it runs, in whatever process it runs.

All numbers count from 1, as people do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Event:
    """One thing that happened.

    Attributes:
        method: what it happened to, as a table calls it.
        worker: number of the process.
        run: what is trained or tested, among all of the method, such as trial-3.
    """

    method: str = ""
    worker: int = 1
    run: str = ""


@dataclass(frozen=True, kw_only=True)
class Prepared(Event):
    """So many images of a data set were decoded, or encoded by the trunk, before any training."""

    dataset: str
    action: str
    done: int
    total: int


@dataclass(frozen=True, kw_only=True)
class Placed(Event):
    """It was decided on which device to train.

    Attributes:
        device: cpu, cuda or cuda:N.
        reason: why, in words.
    """

    device: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Configured(Event):
    """The settings of a method, before its first run.

    Attributes:
        table: folder of its table, such as mlrc/glyphs-glyphnet; sweeps/NAME for a sweep.
        metric: name of the validation score.
        config: config keys, and fields of the protocol as protocol.NAME; no passwords.
    """

    table: str
    metric: str
    config: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Begun(Event):
    """Work on a method begins, some of which may be done already.

    Attributes:
        units: what is counted, as "trials".
    """

    done: int
    total: int
    units: str


@dataclass(frozen=True, kw_only=True)
class Validated(Event):
    """A model in training was validated.

    Attributes:
        unit: number of its trial or reproduction.
        best: the best score so far.
        current: the score at this step; NaN if there is none.
        loss: mean training loss since the validation before; NaN if there is none.
    """

    unit: int = 1
    fold: int
    step: int
    max_steps: int
    best: float
    current: float = math.nan
    loss: float = math.nan


@dataclass(frozen=True, kw_only=True)
class TrialEnded(Event):
    """A trial is complete, or failed if there is a reason.

    Attributes:
        metric: of the scores.
        score: of this trial; the one that is expected of it, if it was pruned.
        best: of all trials.
        folds: how many of them were trained.
        trace: file with the traceback, if it failed.
        params: hyper-parameters of the trial.
    """

    trial: int
    trials: int
    seconds: float
    metric: str = "map_at_r"
    score: float | None = None
    best: float | None = None
    folds: int = 0
    pruned: bool = False
    reason: str = ""
    trace: str = ""
    params: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class FinalistScored(Event):
    """A finalist of a search has its score on another partition, or failed if there is a reason.

    Attributes:
        finalist: its number, of all finalists.
        partition: number of the other partition, from 1.
    """

    finalist: int
    finalists: int
    partition: int
    score: float | None = None
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class TrialReturned(Event):
    """A trial met trouble of the machine; it will be run again, with its finished folds."""

    trial: int
    trials: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class ModelEnded(Event):
    """A fold model of a reproduction is trained, or failed if there is a reason.

    Attributes:
        trace: file with the traceback, if it failed.
    """

    reproduction: int
    reproductions: int
    fold: int = 0
    score: float | None = None
    reason: str = ""
    trace: str = ""


@dataclass(frozen=True, kw_only=True)
class Tested(Event):
    """A reproduction was scored on the test classes; a naive row is none of several.

    Attributes:
        score: MAP@R of the concatenated embeddings.
        scores: all test scores, such as concatenated/map_at_r.
        params: hyper-parameters that it was trained with.
    """

    reproduction: int = 1
    reproductions: int = 0
    score: float | None = None
    scores: Mapping[str, float] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PointEnded(Event):
    """A point of a sweep has its score with one seed, or failed if there is a reason.

    Attributes:
        point: its number, of all points.
        seed: its number, of all seeds.
        values: what it varies, in words.
        score: on the validation classes, or on the test classes if these were opened.
    """

    point: int
    points: int
    seed: int = 1
    seeds: int = 1
    values: str
    score: float | None = None
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Waiting(Event):
    """A worker has nothing to do until others are done."""


@dataclass(frozen=True, kw_only=True)
class Stopping(Event):
    """Ctrl-C was heard; the next report of each worker is its last."""


Listener = Callable[[Event], None]


def ignore(event: Event) -> None:
    """The listener of who does not listen."""
