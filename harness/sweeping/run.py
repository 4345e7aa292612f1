"""The work of a sweep: every point on its folds, with some seeds, by any number of workers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from harness.config import RunConfig
from harness.data.batches import Source
from harness.data.sources import open_part
from harness.errors import DeviceLost, HarnessError
from harness.evaluation import reproductions
from harness.evaluation.runs import Job, finished_folds
from harness.experiment import Experiment, build_experiment, check_validated, digest_of
from harness.model.build import check_method
from harness.records.layout import PLAN, record_lock, sweep_folder, validation_path
from harness.records.provenance import provenance
from harness.records.records import ValidationRecord
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
from harness.system.workers import run_workers, worker_count
from harness.tables import sweeps
from harness.tables.sweeps import Plan, Point, PublishedValue, SweepTable, read_plan
from harness.training.fold import run_fold
from harness.training.placement import feed, settle
from harness.training.trainer import Progress, TrainingFailed
from harness.training.trial import trial_units
from harness.training.unit import Unit

MAX_POINTS = 200

# Of a config, what all points of a sweep share unless it is an axis.
SHARED = (*CONFIG_AXES, "params")

_NAME = re.compile(r"[A-Za-z0-9][\w.+=-]*")


@dataclass(frozen=True)
class PointJob:
    """One point to train.

    Attributes:
        number: among all points, from 0.
        config: of the point.
        params: all of them.
        words: what it varies, for people.
        metrics: of a test, beside the usual ones.
        method: its name when the work began.
    """

    number: int
    points: int
    config: RunConfig
    params: dict[str, Any]
    seeds: int
    words: str
    metrics: tuple[str, ...] = ()
    method: str = ""

    def ended(self, method: str, repetition: int, **facts: Any) -> PointEnded:
        return PointEnded(
            method=method,
            point=self.number + 1,
            points=self.points,
            seed=repetition,
            seeds=self.seeds,
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
    points, folder = asked.points(), asked.folder
    worker_count(asked.config, threads=1, units=1)
    opened = [_opened(asked.config, point, changes, folder) for point, changes in points]
    if not asked.test:
        for one in opened:
            check_validated(one.experiment)
    plan = _plan(asked, opened)
    known = read_plan(folder)
    plan = plan if known is None else known.joined(plan, folder)
    check_writable(folder)
    for one in {one.source: one for one in opened}.values():
        open_part(one.experiment, "trainval", listener)  # once, not in each worker
    plan.write(folder / PLAN)
    failures = _run(opened, asked, listener)
    _note_failures(plan, opened, failures).write(folder / PLAN)
    table = sweeps.build(folder)
    sweeps.write(table)
    return replace(table, failed=tuple(_told(opened, asked, failures)))


@dataclass(frozen=True)
class _Opened:
    """A point and its experiment."""

    values: Mapping[str, Any]
    experiment: Experiment

    @property
    def source(self) -> tuple[Any, ...]:
        """Those of one are made from the same images, for the same eyes."""
        protocol = self.experiment.protocol
        return self.experiment.dataset_label, self.experiment.table, protocol.resize

    @property
    def point(self) -> Point:
        experiment = self.experiment
        return {
            "values": {key: _used(experiment, key, given) for key, given in self.values.items()},
            "method": experiment.method.name,
            "table": experiment.table.as_posix(),
            "params": experiment.published_params,
            "seed": experiment.config.seed,
        }


def _opened(
    config: RunConfig, values: Mapping[str, Any], changes: Mapping[str, Any], folder: Path
) -> _Opened:
    """A point whose every value can be used; else it is refused here, before any work."""
    at = config_at(config, {key: value for key, value in changes.items() if key != LOSS})
    at = at.updated({"loss": changes[LOSS], "results_dir": str(folder)})
    experiment = build_experiment(at)
    check_method(experiment)
    return _Opened(values, experiment)


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


def _plan(asked: Sweep, opened: Sequence[_Opened]) -> Plan:
    shared = {key: value for key, value in asdict(asked.config).items() if key in SHARED}
    return Plan(
        axes=asked.keys,
        settings={key: value for key, value in shared.items() if key not in asked.keys},
        metric=opened[0].experiment.protocol.metric,
        points=[one.point for one in opened],
        published=list(asked.published),
    )


def _run(opened: Sequence[_Opened], asked: Sweep, listener: Listener) -> dict[int, str]:
    """Train and perhaps test all points; returns number of a point -> why it failed."""
    seeds = asked.seeds
    jobs = []
    for number, one in enumerate(opened):
        words = _words(one, asked)
        params = one.experiment.published_params
        config = one.experiment.config
        name = one.experiment.method.name
        point = PointJob(number, len(opened), config, params, seeds, words, asked.metrics, name)
        jobs.append(point)
    threads = max(one.experiment.protocol.threads for one in opened)
    models = seeds * sum(len(one.experiment.split.folds) for one in opened)
    config = settle(jobs[0].config, [one.experiment for one in opened], listener)
    count = worker_count(config, threads, models)
    failures: dict[int, str] = {}

    def heard(event: Event) -> None:
        if isinstance(event, PointEnded) and event.reason:
            failures[event.point - 1] = event.reason
        listener(event)

    if asked.test:
        for one in {one.experiment.table: one for one in opened}.values():
            open_part(one.experiment, "test", listener)  # once, not in each worker
    fed = feed([job.config for job in jobs], config, count)
    jobs = [replace(job, config=own) for job, own in zip(jobs, fed, strict=True)]
    run_workers(work_on_tests if asked.test else work, jobs, config.device, count, threads, heard)
    return failures


def _words(one: _Opened, asked: Sweep) -> str:
    """What a point varies, for people."""
    names = sweeps.short_names(asked.keys)
    return " ".join(f"{names[key]}={v}" for key, v in one.point["values"].items() if key != LOSS)


def _told(opened: Sequence[_Opened], asked: Sweep, failures: Mapping[int, str]) -> Iterator[str]:
    for number, reason in sorted(failures.items()):
        one = opened[number]
        yield f"{one.experiment.method.name} {_words(one, asked)}: {reason}"


def _note_failures(plan: Plan, opened: Sequence[_Opened], failures: Mapping[int, str]) -> Plan:
    ran = {sweeps.key_of(one.point["values"]): number for number, one in enumerate(opened)}
    points: list[Point] = []
    for point in plan.points:
        noted = point.copy()
        number = ran.get(sweeps.key_of(point["values"]))
        if number is not None:
            noted.pop("failure", None)
            if number in failures:
                noted["failure"] = failures[number]
        points.append(noted)
    return replace(plan, points=points)


def work(jobs: list[PointJob], device: str, listener: Listener) -> None:
    """One worker: every fold that nobody has trained or is training, then the points' records."""
    for job in jobs:
        experiment = build_experiment(job.config.updated({"device": device}), job.method)
        trainval = open_part(experiment, "trainval")
        for repetition in range(job.seeds):
            _validate(job, experiment, trainval, repetition, listener)


def work_on_tests(jobs: list[PointJob], device: str, listener: Listener) -> None:
    """One worker: the reproductions of every point, and their tests."""
    for job in jobs:

        def heard(event: Event, job: PointJob = job) -> None:
            match event:
                case ModelEnded() if event.reason:
                    listener(job.ended(event.method, event.reproduction, reason=event.reason))
                case Tested():
                    listener(job.ended(event.method, event.reproduction, score=event.score))
                case _:
                    listener(event)

        tests = [Job(job.config, job.params, {}, metrics=job.metrics, method=job.method)]
        reproductions.work(tests, device, heard)


def _validate(
    job: PointJob,
    experiment: Experiment,
    trainval: Source,
    repetition: int,
    listener: Listener,
) -> None:
    identity = experiment.identity(trainval.fingerprint)
    digest = digest_of({"identity": identity, "params": job.params})
    path = validation_path(experiment.results, experiment.method.name, digest, repetition)
    if path.exists():
        return
    ended = partial(job.ended, experiment.method.name, repetition + 1)

    def validated(fold: int, progress: Progress) -> None:
        listener(
            Validated(
                method=experiment.method.name,
                unit=job.number + 1,
                fold=fold + 1,
                step=progress.step,
                max_steps=progress.max_steps,
                best=progress.best_score,
            )
        )

    units = trial_units(experiment, trainval, job.params, repetition)
    for unit in units:
        try:
            forgiving(partial(run_fold, unit, validated, wait=False))
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
        provenance=provenance(),
    )
    try:
        with FileLock(record_lock(path, "validation"), timeout=0):
            if path.exists():
                return None
            record.write(path)
    except Timeout:  # another worker is at it
        return None
    return record
