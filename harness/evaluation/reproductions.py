"""Best parameters x seeds -> separated and concatenated scores on the test classes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from harness.config import RunConfig
from harness.data.sources import open_part
from harness.errors import HarnessError
from harness.evaluation.extra_metrics import add_metrics, missing_metrics
from harness.evaluation.kept_models import Opened, embed_test
from harness.evaluation.naive import evaluate_naive
from harness.evaluation.scoring import TestEmbeddings, score
from harness.experiment import Experiment, build_experiment
from harness.model.build import check_trunk
from harness.results.classes import note_test_classes
from harness.results.layout import record_lock, record_path, single_path
from harness.results.provenance import provenance
from harness.results.records import (
    FoldRecord,
    RecordError,
    SearchFacts,
    TestRecord,
    rounded,
)
from harness.searching.found import FILTERS, find_searches
from harness.searching.samplers import ends_of, grid_size
from harness.searching.study import check_measures, sampler_of, stored_space
from harness.searching.summary import SearchSummary, summarize
from harness.system.device import cpu_threads
from harness.system.progress import Event, Listener, ModelEnded, Tested, Validated, ignore
from harness.system.workers import run_workers, worker_count
from harness.training.fold import BuildTrainer, run_fold
from harness.training.placement import settle
from harness.training.single_model import KIND, build_single_trainer, without_folds
from harness.training.trainer import Progress, TrainingFailed
from harness.training.trial import units_of
from harness.training.unit import Unit
from losses.method import Space


@dataclass(frozen=True)
class Job:
    """One method to reproduce.

    Attributes:
        params: the best ones.
        search: what the search says of them.
        metrics: to be measured beside those of every test.
        single: whether one model of the size of all is wanted, too.
    """

    config: RunConfig
    params: dict[str, Any]
    search: SearchFacts
    metrics: tuple[str, ...] = ()
    single: bool = False


@dataclass(frozen=True)
class Evaluated:
    """What an evaluation did.

    Attributes:
        tables: folders of results that now have all records of their methods.
        problems: what could not be evaluated, and why.
    """

    tables: list[Path]
    problems: list[str]


def evaluate(
    losses: Sequence[str],
    values: Mapping[str, Any],
    listener: Listener = ignore,
    metrics: tuple[str, ...] = (),
    single: bool = False,
) -> Evaluated:
    """Evaluate finished searches: those of `losses`, or all; finished work is not repeated.

    Args:
        values: config values the user gave; those in FILTERS pick, the others say how to run.
        metrics: to be measured beside those of every test, from the weights that were kept.
        single: train one model of the concatenated size on all trainval classes, too.
    """
    problems: list[str] = []
    found = list(_find_jobs(losses, values, problems))
    if not found:
        raise HarnessError(_nothing_found(losses, values, problems))
    jobs = [replace(job, metrics=metrics, single=single) for job, _ in found]
    opened = [one for _, one in found]
    tables = {one.experiment.results: one for one in opened}
    models = sum(len(one.experiment.split.folds) * one.experiment.reproductions for one in opened)
    threads = max(one.experiment.protocol.threads for one in opened)
    config = jobs[0].config

    def heard(event: Event) -> None:
        if isinstance(event, ModelEnded) and event.reason:
            problem = f"{event.method}, reproduction {event.reproduction}: {event.reason}"
            if problem not in problems:
                problems.append(problem)
        listener(event)

    if not all(one.finished(job) for one, job in zip(opened, jobs, strict=True)):
        for one in tables.values():
            open_part(one.experiment, "test", listener)  # once, with all cores, not in each worker
        config = settle(config, [one.experiment for one in opened], listener)
        count = worker_count(config, threads, models)
        run_workers(work, jobs, config.device, count, threads, heard)
    for one in tables.values():
        evaluate_naive(one.experiment, one.trainval, listener, metrics)
        note_test_classes(one.experiment.results, **_test_classes(one))
    return Evaluated(list(tables), problems)


def _find_jobs(
    losses: Sequence[str], values: Mapping[str, Any], problems: list[str]
) -> Iterable[tuple[Job, _Opened]]:
    """The searches that were asked for and have a best trial, each with what it was made on."""
    for found in find_searches(losses, values, problems):
        try:
            experiment = build_experiment(found.config)
            if experiment.table != found.table:
                continue  # the weights that were asked for are not those it searched with
            check_trunk(experiment)
            trainval = open_part(experiment, "trainval")
            study = found.study()
            measured = experiment.identity(trainval.fingerprint)
            check_measures(study, measured, str(found.folder), "--runs-dir")
            summary = summarize(study, select=experiment.config.select)
        except HarnessError as error:  # of this search alone: the others are evaluated
            problems.append(f"{found.folder}: {error}")
            continue
        facts = _facts(experiment, summary, stored_space(study))
        job = Job(experiment.config, summary.best_params, facts)
        yield job, _Opened(experiment, trainval)


def _facts(experiment: Experiment, summary: SearchSummary, space: Space) -> SearchFacts:
    """What records say of the search that chose the parameters."""
    sampler, trials = sampler_of(experiment), experiment.protocol.trials
    if sampler == "grid" or not space:
        trials = min(trials, grid_size(space))
    return {
        "trials": summary.trials,
        "failed": summary.failed,
        "pruned": summary.pruned,
        "best_trial": summary.best_trial,
        "validation": summary.best_score,
        "validation_folds": list(summary.fold_scores),
        "on_bound": summary.on_bound,
        "sampler": sampler,
        "dimensions": summary.dimensions,
        "trial_scores": list(summary.trial_scores),
        "trial_folds": [None if folds is None else list(folds) for folds in summary.trial_folds],
        "space": experiment.config.space,
        "base": experiment.method.base.name if experiment.method.base else "",
        "select": experiment.config.select,
        "trial_params": {
            name: [_short(params.get(name)) for params in summary.trial_params] for name in space
        },
        "trial_seconds": [_short(seconds) for seconds in summary.trial_seconds],
        "importance": {name: rounded(share) for name, share in summary.importance.items()},
        "ranges": {name: ends_of(distribution) for name, distribution in space.items()},
        "asked": {"trials": trials, "reproductions": experiment.protocol.reproductions},
    }


def _test_classes(opened: _Opened) -> dict[str, Any]:
    """Those that records keep scores of: the classes of the queries."""
    experiment, listing = opened.experiment, opened.experiment.listing
    indices = np.array(experiment.listed("test"))
    if listing.queries is not None:
        indices = indices[listing.queries[indices]]
    classes = np.unique(listing.labels[indices])
    return {
        "split": opened.identity["split"],
        "names": [listing.class_names[label] for label in classes],
    }


def _short(value: Any) -> Any:
    return rounded(value) if isinstance(value, float) else value


def _nothing_found(
    losses: Sequence[str], values: Mapping[str, Any], problems: Sequence[str]
) -> str:
    flags = "".join(f" --{key} {values[key]}" for key in (*FILTERS, "weights") if key in values)
    names = " ".join(losses) or "NAME"
    reasons = "".join(f"\n  {problem}" for problem in problems)
    return (
        f"no finished search to evaluate{reasons}\n  search first: harness search --loss {names}"
        f"{flags}"
    )


@dataclass(frozen=True)
class _Opened(Opened):
    """What evaluation asks of an experiment beside."""

    def record_paths(self, job: Job, repetition: int) -> list[Path]:
        """Every test record that a job asks of a repetition."""
        digest = self.digest(job.params)
        path = record_path(self.experiment.results, self.label, digest, repetition)
        return [path, single_path(path)] if job.single else [path]

    def finished(self, job: Job) -> bool:
        return all(
            path.exists() and not missing_metrics(path, job.metrics)
            for repetition in range(1, self.experiment.reproductions + 1)
            for path in self.record_paths(job, repetition)
        )


def work(jobs: list[Job], device: str, listener: Listener) -> None:
    """One worker: every fold that nobody has trained or is training, then its test scores."""
    for job in jobs:
        experiment = build_experiment(job.config.updated({"device": device}))
        opened = _Opened(experiment, open_part(experiment, "trainval"))
        runs: list[type[_Run]] = [_Reproduction, _SingleModel] if job.single else [_Reproduction]
        for kind in runs:
            for repetition in range(1, experiment.reproductions + 1):
                run = kind(opened, job, repetition, listener)
                try:
                    run.finish()
                except HarnessError as error:  # of this run alone: the others go on
                    run.say_model(reason=str(error))


@dataclass(frozen=True)
class _Run:
    """One repetition of a job: models to train, then to test."""

    opened: _Opened
    job: Job
    repetition: int
    listener: Listener

    kind = "reproduction"

    def finish(self) -> None:
        raise NotImplementedError

    @property
    def label(self) -> str:
        return self.opened.label

    def units(self, experiment: Experiment) -> list[Unit]:
        return units_of(experiment, self.opened.trainval, self.job.params, self.repetition)

    def say_model(self, **facts: Any) -> None:
        self.listener(
            ModelEnded(
                method=self.label,
                reproduction=self.repetition,
                reproductions=self.opened.experiment.reproductions,
                **facts,
            )
        )

    def train(self, unit: Unit, build_trainer: BuildTrainer = Unit.build_trainer) -> None:
        def validated(fold: int, progress: Progress) -> None:
            self.listener(
                Validated(
                    method=self.label,
                    unit=self.repetition,
                    fold=fold + 1,
                    step=progress.step,
                    max_steps=progress.max_steps,
                    best=progress.best_score,
                )
            )

        try:
            record = run_fold(
                unit, validated, keep_weights=True, wait=False, build_trainer=build_trainer
            )
        except Timeout:  # another worker is at it
            return
        except (TrainingFailed, RecordError) as failure:
            self.say_model(fold=unit.fold + 1, reason=str(failure))
        else:
            self.say_model(fold=unit.fold + 1, score=record.best_score)

    def test(self, units: Sequence[Unit], path: Path) -> None:
        """Open the test classes once all models are there."""
        folds = finished_folds(units)
        if folds is None:
            return
        experiment = units[0].experiment
        try:
            with FileLock(record_lock(experiment.runs, path), timeout=0):
                if path.exists():
                    return
                with cpu_threads(experiment.protocol.threads):
                    scored = score(self.embed(units))
                record = TestRecord(
                    kind=self.kind,
                    identity=self.opened.identity,
                    params=self.job.params,
                    repetition=self.repetition,
                    # A single model is stopped by steps, and has no score.
                    folds=[fold.facts(scored=self.kind != KIND) for fold in folds],
                    search=self.job.search,
                    provenance=provenance(),
                    **scored,
                )
                record.write(path)
        except Timeout:  # another worker is at it
            return
        self.listener(
            Tested(
                method=self.label,
                reproduction=self.repetition,
                reproductions=experiment.reproductions,
                score=record.scores["concatenated"]["map_at_r"],
            )
        )

    def measure(self, units: Sequence[Unit], path: Path) -> None:
        """Metrics that were asked for beside those of every test."""
        experiment = units[0].experiment
        with cpu_threads(experiment.protocol.threads):
            add_metrics(path, self.job.metrics, lambda: self.embed(units), experiment.runs)

    def embed(self, units: Sequence[Unit]) -> TestEmbeddings:
        return embed_test(self.opened, units)


class _Reproduction(_Run):
    """The models of all folds."""

    def finish(self) -> None:
        units = self.units(self.opened.experiment)
        path = self.opened.record_paths(self.job, self.repetition)[0]
        if not path.exists():
            for unit in units:
                self.train(unit)
            self.test(units, path)
        self.measure(units, path)


class _SingleModel(_Run):
    """One model instead of those of the folds, whose records it needs."""

    kind = KIND

    @property
    def label(self) -> str:
        return f"{super().label} ({KIND})"

    def finish(self) -> None:
        folds = finished_folds(self.units(self.opened.experiment))
        if folds is None:
            return
        path = self.opened.record_paths(self.job, self.repetition)[-1]
        (unit,) = self.units(without_folds(self.opened.experiment, folds))
        if not path.exists():
            self.train(unit, partial(build_single_trainer, folds=folds))
            self.test([unit], path)
        self.measure([unit], path)


def finished_folds(units: Sequence[Unit]) -> list[FoldRecord] | None:
    """The records of all models, or nothing if one is missing."""
    found = [unit.find_record() for unit in units]
    folds = [fold for fold in found if fold is not None]
    return folds if len(folds) == len(found) else None
