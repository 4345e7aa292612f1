"""One repetition of a job: its models are trained, then the test classes are opened."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from harness.errors import HarnessError
from harness.evaluation.extra_metrics import add_metrics, missing_metrics
from harness.evaluation.kept_models import embed_test
from harness.evaluation.scoring import TestEmbeddings, score
from harness.experiment import Experiment
from harness.records.layout import WEIGHTS, record_lock, record_path, single_path
from harness.records.records import (
    TEST_SELECTED,
    FoldFacts,
    FoldRecord,
    RecordError,
    SearchFacts,
    TestRecord,
)
from harness.system.device import cpu_threads
from harness.system.progress import Listener, ModelEnded, Tested
from harness.training.fold import BuildTrainer, run_fold, tell_validations
from harness.training.jobs import Job
from harness.training.opened import OpenedExperiment
from harness.training.single_model import SINGLE, build_single_trainer, without_folds
from harness.training.trainer import TrainingFailed
from harness.training.trial import units_of
from harness.training.unit import Unit


@dataclass(frozen=True)
class ReproductionJob(Job):
    """One method to reproduce and to test.

    Attributes:
        params: the best ones.
        search: what the search says of them.
        metrics: to be measured beside those of every test.
        single: whether one model of the size of all is wanted, too.
        shared: whether records travel through the database of the trials.
    """

    params: dict[str, Any]
    search: SearchFacts
    metrics: tuple[str, ...] = ()
    single: bool = False
    shared: bool = False

    @property
    def titles(self) -> list[str]:
        """Names of the rows that it makes, for people."""
        title = self.opened.title
        return [title, f"{title} ({SINGLE})"] if self.single else [title]

    @property
    def repetitions(self) -> range:
        return range(1, self.opened.experiment.reproductions + 1)

    def record_paths(self, repetition: int) -> list[Path]:
        """Every test record of a repetition."""
        opened, digest = self.opened, self.opened.digest(self.params)
        path = record_path(opened.experiment.results, opened.label, digest, repetition)
        return [path, single_path(path)] if self.single else [path]

    def units(self, repetition: int) -> list[Unit]:
        """The fold models of a repetition."""
        return units_of(self.opened.experiment, self.opened.trainval, self.params, repetition)

    def tested(self) -> int:
        """Repetitions that have their test record."""
        return sum(self.record_paths(number)[0].exists() for number in self.repetitions)

    def finished(self) -> bool:
        return all(map(self.has_finished, self.repetitions))

    def has_finished(self, repetition: int) -> bool:
        return all(
            path.exists() and not missing_metrics(path, self.metrics)
            for path in self.record_paths(repetition)
        )


@dataclass(frozen=True)
class Reproduction:
    """One repetition of a job: models to train, then to test."""

    job: ReproductionJob
    repetition: int
    listener: Listener

    kind = "reproduction"

    def finish(self) -> None:
        raise NotImplementedError

    @property
    def opened(self) -> OpenedExperiment:
        return self.job.opened

    @property
    def label(self) -> str:
        return self.job.titles[0]

    def units(self, experiment: Experiment) -> list[Unit]:
        return units_of(experiment, self.opened.trainval, self.job.params, self.repetition)

    @property
    def name(self) -> str:
        """Name of the run, as events have it."""
        return f"reproduction-{self.repetition}"

    def say_model(self, **facts: Any) -> None:
        self.listener(
            ModelEnded(
                method=self.label,
                run=self.name,
                reproduction=self.repetition,
                reproductions=self.opened.experiment.reproductions,
                **facts,
            )
        )

    def train(self, unit: Unit, build_trainer: BuildTrainer = Unit.build_trainer) -> None:
        # Where the best step is simply the last, there is no score.
        scored = bool(unit.classes.val) or self.kind == TEST_SELECTED
        on_validation = tell_validations(
            self.listener, self.label, self.repetition, scored, self.name
        )
        try:
            record = run_fold(
                unit, on_validation, keep_weights=True, wait=False, build_trainer=build_trainer
            )
        except Timeout:  # another worker is at it
            return
        except (TrainingFailed, RecordError) as failure:
            trace = getattr(failure, "trace", "")
            self.say_model(fold=unit.fold + 1, reason=str(failure), trace=trace)
        else:
            score = record.best_score if scored else math.nan
            self.say_model(fold=unit.fold + 1, score=score)

    def test(self, units: Sequence[Unit], path: Path) -> None:
        """Open the test classes once all models are there."""
        folds = finished_folds(units)
        if folds is None:
            return
        experiment = units[0].experiment
        try:
            with FileLock(record_lock(path), timeout=0):
                if path.exists():
                    return
                with cpu_threads(experiment.protocol.threads):
                    scored = self.score(units)
                record = TestRecord(
                    kind=self.kind,
                    identity=self.opened.identity,
                    params=self.job.params,
                    repetition=self.repetition,
                    folds=self.facts(folds),
                    search=self.job.search,
                    **scored,
                )
                record.write(path)
        except Timeout:  # another worker is at it
            return
        self.listener(
            Tested(
                method=self.label,
                run=self.name,
                reproduction=self.repetition,
                reproductions=experiment.reproductions,
                score=record.scores["concatenated"]["map_at_r"],
                scores=record.flat_scores,
                params=self.job.params,
            )
        )

    def score(self, units: Sequence[Unit]) -> dict[str, Any]:
        """Every field of a TestRecord that is measured."""
        return score(self.embed(units), self.opened.experiment.protocol.test_metrics or ())

    def facts(self, folds: Sequence[FoldRecord]) -> list[FoldFacts]:
        """What the record says of each model; one without validation classes has no score."""
        blind = self.kind == SINGLE or self.opened.experiment.protocol.folds == "none"
        return [fold.facts(scored=not blind) for fold in folds]

    def measure(self, units: Sequence[Unit], path: Path) -> None:
        """Metrics that were asked for beside those of every test."""
        experiment = units[0].experiment
        with cpu_threads(experiment.protocol.threads):
            add_metrics(path, self.job.metrics, lambda: self.embed(units))

    def embed(self, units: Sequence[Unit], weights: str = WEIGHTS) -> TestEmbeddings:
        return embed_test(self.opened, units, weights)


class FoldModels(Reproduction):
    """The models of all folds."""

    def finish(self) -> None:
        units = self.units(self.opened.experiment)
        path = self.job.record_paths(self.repetition)[0]
        if not path.exists():
            for unit in units:
                self.train(unit)
            self.test(units, path)
        self.measure(units, path)


class SingleModel(Reproduction):
    """One model instead of those of the folds, whose records it needs."""

    kind = SINGLE

    @property
    def label(self) -> str:
        return self.job.titles[-1]

    def finish(self) -> None:
        folds = finished_folds(self.units(self.opened.experiment))
        ensemble, path = self.job.record_paths(self.repetition)
        if folds is None:
            # Without a record they failed, and that was said; with one, they are gone.
            if ensemble.exists() and not path.exists():
                raise HarnessError(
                    f"one model is trained for as long as its fold models were, and those of "
                    f"{ensemble} are no longer in {self.opened.experiment.config.runs_dir}"
                )
            return
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
