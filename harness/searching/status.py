"""How far a search is: who works on what, what failed, and how long the rest will take."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from optuna.trial import FrozenTrial, TrialState

from harness.metrics.names import METRICS
from harness.searching.found import FoundSearch
from harness.searching.shared import WANTED, worker_place
from harness.searching.summary import best_of
from harness.searching.trials import has_failed, index_of, spent, trials_of

RECENT = 20  # trials whose time says how long the next ones will take


@dataclass(frozen=True)
class RunningTrial:
    """A trial that a worker has claimed.

    Attributes:
        index: place in the search, from 0.
        place: host and process of its worker.
        seconds: since it was claimed.
        alive: whether its worker lives. Otherwise the next worker that claims takes it over.
    """

    index: int
    place: str
    seconds: float
    alive: bool


@dataclass(frozen=True)
class SearchStatus:
    """How far a search is.

    Attributes:
        wanted: number of trials to end up with, as the last `harness search` said; 0 if unknown.
        done: trials that count, failed ones among them.
        best: highest score so far; None without any.
        running: trials that are under way, in the order of the search.
        failures: place of a failed trial, from 0 -> why it failed.
        seconds_left: until the last trial ends; None if that cannot be told.
    """

    method: str
    seed: int
    metric: str
    wanted: int
    done: int
    best: float | None
    running: tuple[RunningTrial, ...]
    failures: dict[int, str]
    seconds_left: float | None


def search_status(found: FoundSearch) -> SearchStatus:
    """Read how far a search is; nothing is written."""
    storage = found.storage(reads_only=True)
    with found.study(storage) as study:
        trials, facts = trials_of(study), study.user_attrs
        started = [trial for trial in trials if trial.state == TrialState.RUNNING]
        workers = {trial.user_attrs.get("worker", "") for trial in started}
        living = storage.living(workers) if workers else set()
    identity, counted = facts["identity"], spent(trials)
    wanted = facts.get(WANTED, 0)
    running = tuple(_running(trial, living) for trial in sorted(started, key=index_of))
    at_work = sum(one.alive for one in running)
    best = best_of(trials)
    return SearchStatus(
        method=identity["method"],
        seed=identity.get("seed", 0),
        metric=str(identity["protocol"].get("metric", METRICS[0])),
        wanted=wanted,
        done=len(counted),
        best=None if best is None else best.values[0],
        running=running,
        failures={index_of(t): t.user_attrs["reason"] for t in counted if has_failed(t)},
        seconds_left=_seconds_left(counted, wanted - len(counted), at_work),
    )


def _running(trial: FrozenTrial, living: set[str]) -> RunningTrial:
    worker = trial.user_attrs.get("worker", "")
    started = trial.datetime_start or datetime.now()
    seconds = max(0.0, (datetime.now() - started).total_seconds())
    return RunningTrial(index_of(trial), worker_place(worker), seconds, worker in living)


def _seconds_left(counted: Sequence[FrozenTrial], missing: int, workers: int) -> float | None:
    """The usual time of a trial, for those that are left, shared among the workers."""
    times = [trial.duration.total_seconds() for trial in counted if trial.duration is not None]
    if missing <= 0 or not times or not workers:
        return None
    return statistics.median(times[-RECENT:]) * missing / min(workers, missing)
