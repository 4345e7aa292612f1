"""The work of a sweep: every point on its folds, with some seeds, by any number of workers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from harness.config import RunConfig
from harness.data.sources import open_part
from harness.errors import DeviceLost, HarnessError
from harness.evaluation import work as reproductions
from harness.evaluation.runs import ReproductionJob, finished_folds
from harness.experiment import Experiment, build_experiment, check_validated, digest_of
from harness.model.build import check_method
from harness.records.layout import PLAN, SWEEPS, record_lock, sweep_folder, validation_path
from harness.records.provenance import provenance
from harness.records.records import ValidationRecord
from harness.records.sweep_plan import Point, PublishedValue, SweepPlan, key_of, read_plan
from harness.sweeping.axes import (
    CONFIG_AXES,
    LOSS,
    PARAMS,
    PROTOCOL,
    VARIANT,
    Axis,
    check_variants,
    config_at,
    span,
)
from harness.system.files import check_writable
from harness.system.progress import (
    Event,
    Listener,
    ModelEnded,
    PointEnded,
    Tested,
    Validated,
    ignore,
)
from harness.system.trouble import forgiving
from harness.system.workers import worker_count
from harness.tables import sweeps
from harness.tables.sweeps import SweepTable
from harness.training.fold import run_fold, tell_validations
from harness.training.jobs import run_jobs
from harness.training.opened import open_experiment
from harness.training.trainer import TrainingFailed
from harness.training.trial import trial_units
from harness.training.unit import Unit

MAX_POINTS = 200

# Of a config, what all points of a sweep share unless it is an axis.
SHARED = (*CONFIG_AXES, "params")

_NAME = re.compile(r"[A-Za-z0-9][\w.+=-]*")


@dataclass(frozen=True, kw_only=True)
class PointJob(ReproductionJob):
    """One point to train, with each of its seeds, and perhaps to test.

    Attributes:
        number: among all points, from 0.
        points: how many there are.
        words: what it varies, for people.
    """

    number: int
    points: int
    words: str

    def run(self, repetition: int) -> str:
        """Name of the point with one seed, as events have it."""
        return f"point-{self.number + 1}-seed-{repetition}"

    def ended(self, method: str, repetition: int, **facts: Any) -> PointEnded:
        return PointEnded(
            method=method,
            run=self.run(repetition),
            point=self.number + 1,
            points=self.points,
            seed=repetition,
            seeds=len(self.repetitions),
            values=self.words,
            **facts,
        )


@dataclass(frozen=True)
class Sweep:
    """What is asked for.

    Attributes:
        losses: each at every point; a variant may name its own.
        axes: what varies, in all combinations.
        values: config values of all points.
        variants: name -> what it changes; each with all combinations.
        name: of the folder in results/sweeps; by default made of losses, axes and data set.
        zipped: the first value of every axis together, then the second, instead of all
            combinations; losses and variants are always combined with everything.
        test: open the test classes at every point.
        seeds: repetitions; from two on there are intervals.
        metrics: on the test classes, beside those of every test.
        published: what a paper printed of these points.
    """

    losses: Sequence[str] = ()
    axes: Sequence[Axis] = ()
    values: Mapping[str, Any] = field(default_factory=dict)
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    name: str = ""
    zipped: bool = False
    test: bool = False
    seeds: int = 1
    metrics: tuple[str, ...] = ()
    max_points: int = MAX_POINTS
    published: Sequence[PublishedValue] = ()

    @property
    def config(self) -> RunConfig:
        return RunConfig().updated({**self.values, "reproductions": self.seeds})

    @property
    def keys(self) -> list[str]:
        """Of a point's values."""
        named = [VARIANT] if self.variants else []
        return [LOSS, *named, *(axis.key for axis in self.axes)]

    @property
    def folder(self) -> Path:
        name = self.name
        if not name:
            keys = [key.rpartition(".")[2] for key in self.keys if key != LOSS]
            dataset = self.config.dataset.rstrip("/").rpartition("/")[2].replace(":", "_")
            name = "-".join([*(Path(loss).stem for loss in self.losses), *keys, dataset])
        if not _NAME.fullmatch(name):
            raise HarnessError(
                f"a sweep is named by letters, digits and . _ + = -, got '{name}'; --name gives one"
            )
        return sweep_folder(Path(self.config.results_dir), name)

    def points(self) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Of each: what tells it from the others, and all that it changes of the config."""
        check_variants(self.variants, self.axes)
        rows = [
            (loss, name, changes)
            for name, changes in (self.variants or {"": {}}).items()
            for loss in ([changes[LOSS]] if LOSS in changes else dict.fromkeys(self.losses))
        ]
        if not rows:
            raise HarnessError("which loss? Give --loss NAME; `harness list losses` shows them")
        found = []
        for loss, name, changes in rows:
            named = {VARIANT: name} if self.variants else {}
            for point in span(self.axes, self.zipped, self.max_points, len(rows)):
                found.append(({LOSS: loss, **named, **point}, {**changes, LOSS: loss, **point}))
        return found


def sweep(asked: Sweep, listener: Listener = ignore) -> SweepTable:
    """Train every point, write the table of all; finished work is never repeated."""
    if asked.seeds < 1:
        raise HarnessError(f"--seeds must be at least 1, got {asked.seeds}")
    spanned, folder = asked.points(), asked.folder
    worker_count(asked.config, threads=1, units=1)
    experiments = [_resolve(asked.config, changes, folder) for _, changes in spanned]
    if not asked.test:
        for experiment in experiments:
            check_validated(experiment)
    points = [_point(values, one) for (values, _), one in zip(spanned, experiments, strict=True)]
    plan = _plan(asked, points, experiments[0].protocol.metric)
    known = read_plan(folder)
    plan = plan if known is None else known.joined(plan, folder)
    check_writable(folder)
    jobs = [
        PointJob(
            open_experiment(experiment, listener),
            experiment.published_params,
            search={},
            metrics=asked.metrics,
            number=number,
            points=len(points),
            words=_words(points[number], asked),
        )
        for number, experiment in enumerate(experiments)
    ]
    plan.write(folder / PLAN)
    for job in jobs:
        listener(job.opened.experiment.configured(job.opened.title, f"{SWEEPS}/{folder.name}"))
    failures = _run(jobs, asked, listener)
    _note_failures(plan, points, failures).write(folder / PLAN)
    table = sweeps.build(folder)
    sweeps.write(table)
    told = (f"{jobs[n].opened.method} {jobs[n].words}: {failures[n]}" for n in sorted(failures))
    return replace(table, failed=tuple(told))


def _resolve(config: RunConfig, changes: Mapping[str, Any], folder: Path) -> Experiment:
    """The experiment of a point; a value that cannot be used is refused before any work."""
    at = config_at(config, {key: value for key, value in changes.items() if key != LOSS})
    at = at.updated({"loss": changes[LOSS], "results_dir": str(folder)})
    experiment = build_experiment(at)
    check_method(experiment)
    return experiment


def _point(values: Mapping[str, Any], experiment: Experiment) -> Point:
    """What the plan says of a point."""
    return {
        "values": {key: _used(experiment, key, given) for key, given in values.items()},
        "method": experiment.method.name,
        "table": experiment.table.as_posix(),
        "params": experiment.published_params,
        "seed": experiment.config.seed,
    }


def _used(experiment: Experiment, key: str, given: Any) -> Any:
    """The value of an axis as it is trained with, of its type."""
    if key == LOSS:
        return experiment.method.name
    if key.startswith(PARAMS):
        return experiment.published_params[key.removeprefix(PARAMS)]
    if key.startswith(PROTOCOL):
        value = getattr(experiment.protocol, key.removeprefix(PROTOCOL))
        return list(value) if isinstance(value, tuple) else value
    return given


def _plan(asked: Sweep, points: list[Point], metric: str) -> SweepPlan:
    shared = {key: value for key, value in asdict(asked.config).items() if key in SHARED}
    return SweepPlan(
        axes=asked.keys,
        settings={key: value for key, value in shared.items() if key not in asked.keys},
        metric=metric,
        points=points,
        published=list(asked.published),
    )


def _run(jobs: Sequence[PointJob], asked: Sweep, listener: Listener) -> dict[int, str]:
    """Train and perhaps test all points; returns number of a point -> why it failed."""
    failures: dict[int, str] = {}

    def heard(event: Event) -> None:
        if isinstance(event, PointEnded) and event.reason:
            failures[event.point - 1] = event.reason
        listener(event)

    experiments = [job.opened.experiment for job in jobs]
    if asked.test:
        for experiment in {one.table: one for one in experiments}.values():
            open_part(experiment, "test", listener)  # once, not in each worker
    models = asked.seeds * sum(len(experiment.split.folds) for experiment in experiments)
    run_jobs(work_on_tests if asked.test else work, jobs, models, heard)
    return failures


def _words(point: Point, asked: Sweep) -> str:
    """What a point varies, for people."""
    names = sweeps.short_names(asked.keys)
    return " ".join(f"{names[key]}={v}" for key, v in point["values"].items() if key != LOSS)


def _note_failures(plan: SweepPlan, ran: Sequence[Point], failures: Mapping[int, str]) -> SweepPlan:
    numbers = {key_of(point["values"]): number for number, point in enumerate(ran)}
    points: list[Point] = []
    for point in plan.points:
        noted = point.copy()
        number = numbers.get(key_of(point["values"]))
        if number is not None:
            noted.pop("failure", None)
            if number in failures:
                noted["failure"] = failures[number]
        points.append(noted)
    return replace(plan, points=points)


def work(jobs: Iterable[PointJob], listener: Listener) -> None:
    """One worker: every fold that nobody has trained or is training, then the points' records."""
    for job in jobs:
        for repetition in range(len(job.repetitions)):
            _validate(job, repetition, listener)


def work_on_tests(jobs: Iterable[PointJob], listener: Listener) -> None:
    """One worker: the reproductions of every point, and their tests."""
    for job in jobs:

        def heard(event: Event, job: PointJob = job) -> None:
            match event:
                case ModelEnded() if event.reason:
                    listener(job.ended(event.method, event.reproduction, reason=event.reason))
                case Tested():
                    listener(job.ended(event.method, event.reproduction, score=event.score))
                case Validated():
                    listener(replace(event, run=job.run(event.unit)))
                case _:
                    listener(event)

        reproductions.work([job], heard)


def _validate(job: PointJob, repetition: int, listener: Listener) -> None:
    opened, experiment = job.opened, job.opened.experiment
    identity = experiment.identity(opened.trainval.fingerprint)
    digest = digest_of({"identity": identity, "params": job.params})
    path = validation_path(experiment.results, opened.method, digest, repetition)
    if path.exists():
        return
    ended = partial(job.ended, opened.method, repetition + 1)
    run = job.run(repetition + 1)
    on_validation = tell_validations(listener, opened.method, job.number + 1, run=run)
    units = trial_units(experiment, opened.trainval, job.params, repetition)
    for unit in units:
        try:
            forgiving(partial(run_fold, unit, on_validation, wait=False))
        except Timeout:  # another worker is at it
            continue
        except DeviceLost:  # for a new process to go on
            raise
        except (TrainingFailed, HarnessError) as failure:
            listener(ended(reason=str(failure)))
            return
    record = _write_record(units, path)
    if record is not None:
        scores = [fold["best_score"] for fold in record.folds]
        listener(ended(score=float(np.mean(scores))))


def _write_record(units: Sequence[Unit], path: Path) -> ValidationRecord | None:
    """Once the models of all folds are there, whoever trained them; None if it is not for us."""
    folds = finished_folds(units)
    if folds is None:
        return None
    first = units[0]
    record = ValidationRecord(
        identity=first.identity,
        params=dict(first.params),
        repetition=first.repetition,
        folds=[fold.facts(scored=True) for fold in folds],
        provenance=provenance(first.experiment.weights_sha256),
    )
    try:
        with FileLock(record_lock(path, "validation"), timeout=0):
            if path.exists():
                return None
            record.write(path)
    except Timeout:  # another worker is at it
        return None
    return record
