"""Best parameters x seeds -> separated and concatenated scores on the test classes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from harness.config import RunConfig
from harness.errors import HarnessError
from harness.evaluation.extra_metrics import add_metrics, missing_metrics
from harness.evaluation.naive import evaluate_naive
from harness.evaluation.scoring import TestEmbeddings, score, see_test
from harness.experiment import Experiment, build_experiment, digest_of
from harness.model.build import check_trunk
from harness.model.network import Model
from harness.results.records import (
    FoldRecord,
    RecordError,
    TestRecord,
    note_test_opening,
    provenance,
)
from harness.searching.found import FILTERS, find_searches
from harness.searching.study import Study
from harness.searching.summary import summarize
from harness.system.device import choose_device
from harness.system.progress import Event, Listener, ignore
from harness.system.workers import run_workers, worker_count
from harness.training.embed import concatenate, embed_with
from harness.training.single_model import KIND, stop_by_steps, without_folds
from harness.training.trainer import Progress, Trainer, TrainingFailed
from harness.training.trial import cpu_threads, evaluation_loader, find_fold, load_model, run_fold


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
    search: dict[str, Any]
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
    jobs = [
        replace(job, metrics=metrics, single=single) for job in _find_jobs(losses, values, problems)
    ]
    if not jobs:
        raise HarnessError(_nothing_found(losses, values, problems))
    experiments = [build_experiment(job.config) for job in jobs]
    models = sum(e.reproductions * len(e.split.folds) for e in experiments)
    threads = max(e.protocol.threads for e in experiments)
    config = jobs[0].config

    def heard(event: Event) -> None:
        problem = f"{event.method}, reproduction {event.unit}: {event.message}"
        if event.kind == "model" and event.message and problem not in problems:
            problems.append(problem)
        listener(event)

    if any(not _finished(e, job) for e, job in zip(experiments, jobs, strict=True)):
        for experiment in {e.results: e for e in experiments}.values():
            experiment.open_part("test", listener)  # once, with all cores, not in each worker
        count = worker_count(config, threads, models)
        run_workers(work, jobs, config.device, count, threads, heard)
    tables = {e.results: e for e in experiments}
    for experiment in tables.values():
        evaluate_naive(experiment, lambda name: listener(Event("tested", name)), metrics)
    return Evaluated(list(tables), problems)


def _find_jobs(
    losses: Sequence[str], values: Mapping[str, Any], problems: list[str]
) -> Iterable[Job]:
    """The searches that were asked for and have a best trial."""
    for found in find_searches(losses, values, problems):
        try:
            experiment = build_experiment(found.config)
            if experiment.table != Path(*found.folder.parts[-3:-1]):
                continue  # the weights that were asked for are not those it searched with
            check_trunk(experiment)
            study = Study(experiment)
        except HarnessError as error:  # of this search alone: the others are evaluated
            problems.append(f"{found.folder}: {error}")
            continue
        if study.best() is None:
            problems.append(f"{found.folder}: no trial of its search is complete")
            continue
        facts = _facts(study)
        yield Job(experiment.config, facts.pop("best_params"), facts)


def _facts(study: Study) -> dict[str, Any]:
    """The best parameters, and what records say of the search that chose them."""
    summary = summarize(study.optuna, importance=False)
    return {
        "best_params": summary.best_params,
        "trials": summary.trials,
        "failed": summary.failed,
        "pruned": summary.pruned,
        "best_trial": summary.best_trial,
        "validation": summary.best_score,
        "validation_folds": list(summary.fold_scores),
        "on_bound": summary.on_bound,
        "sampler": study.sampler,
        "asked": {
            "trials": study.limited(study.experiment.protocol.trials),
            "reproductions": study.experiment.protocol.reproductions,
        },
    }


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


def record_path(experiment: Experiment, params: Mapping[str, Any], repetition: int) -> Path:
    name = f"{_run_digest(experiment, params)}-{repetition:02d}.json"
    return experiment.results / "records" / experiment.method.name / name


def _run_digest(experiment: Experiment, params: Mapping[str, Any]) -> str:
    return digest_of({"identity": experiment.identity(), "params": dict(params)})


def _finished(experiment: Experiment, job: Job) -> bool:
    paths = [
        path
        for repetition in range(1, experiment.reproductions + 1)
        for path in record_paths(experiment, job, repetition)
    ]
    return all(path.exists() and not missing_metrics(path, job.metrics) for path in paths)


def record_paths(experiment: Experiment, job: Job, repetition: int) -> list[Path]:
    """Every test record that a job asks of a repetition."""
    path = record_path(experiment, job.params, repetition)
    return [path, path.with_suffix(f".{KIND}.json")] if job.single else [path]


def work(jobs: list[Job], device: str, listener: Listener) -> None:
    """One worker: every fold that nobody has trained or is training, then its test scores."""
    for job in jobs:
        experiment = build_experiment(job.config.updated({"device": device}))
        name, total = experiment.method.name, experiment.reproductions
        kinds = {"reproduction": name} | ({KIND: f"{name} ({KIND})"} if job.single else {})
        for kind, label in kinds.items():
            for repetition in range(1, total + 1):
                event = Event("model", label, unit=repetition, units=total)
                run = _Run(kind, experiment, job, repetition, listener, event)
                act = run.train_alone if kind == KIND else run.reproduce
                try:
                    act()
                except HarnessError as error:  # of this run alone: the others go on
                    listener(replace(event, message=str(error)))


@dataclass(frozen=True)
class _Run:
    """One repetition of a job, by the models of all folds or by a single one."""

    kind: str
    experiment: Experiment
    job: Job
    repetition: int
    listener: Listener
    event: Event

    def reproduce(self) -> None:
        path = record_path(self.experiment, self.job.params, self.repetition)
        if not path.exists():
            for fold in range(len(self.experiment.split.folds)):
                self._train(self.experiment, fold)
            self._test(self.experiment, self._folds(self.experiment), path)
        self._measure(self.experiment, path)

    def train_alone(self) -> None:
        """One model instead of those of the folds, whose records it needs."""
        folds = self._folds(self.experiment)
        if folds is None:
            return
        path = record_paths(self.experiment, self.job, self.repetition)[-1]
        alone = without_folds(self.experiment, folds)
        if not path.exists():
            self._train(alone, 0, lambda trainer: stop_by_steps(trainer, folds))
            self._test(alone, self._folds(alone), path)
        self._measure(alone, path)

    def _folds(self, experiment: Experiment) -> list[FoldRecord] | None:
        """The records of all models, or nothing if one is missing."""
        found = [
            find_fold(experiment, self.job.params, fold, self.repetition)
            for fold in range(len(experiment.split.folds))
        ]
        folds = [fold for fold in found if fold is not None]
        return folds if len(folds) == len(found) else None

    def _train(
        self,
        experiment: Experiment,
        fold: int,
        adapt: Callable[[Trainer], None] = lambda trainer: None,
    ) -> None:
        def validated(fold: int, progress: Progress) -> None:
            self._say(
                "validation",
                fold=fold,
                step=progress.step,
                max_steps=experiment.protocol.max_steps,
                score=progress.best_score,
            )

        done: dict[str, Any]
        try:
            record = run_fold(
                *(experiment, self.job.params, fold, self.repetition, validated),
                keep_weights=True,
                wait=False,
                adapt=adapt,
            )
            done = {"score": record.best_score, "seconds": record.seconds}
        except Timeout:  # another worker is at it
            return
        except (TrainingFailed, RecordError) as failure:
            done = {"message": str(failure)}
        self._say("model", fold=fold, **done)

    def _test(self, experiment: Experiment, folds: list[FoldRecord] | None, path: Path) -> None:
        """Open the test classes once all models are there."""
        if folds is None:
            return
        try:
            with FileLock(experiment.runs / f"{path.stem}.lock", timeout=0):
                if path.exists():
                    return
                with cpu_threads(experiment.protocol.threads):
                    scored = score(self._embed(experiment))
                record = TestRecord(
                    kind=self.kind,
                    identity=self.experiment.identity(),
                    params=self.job.params,
                    repetition=self.repetition,
                    folds=[_without(asdict(fold), *self._untold()) for fold in folds],
                    search=self.job.search,
                    provenance=provenance(),
                    **scored,
                )
                record.write(path)
        except Timeout:  # another worker is at it
            return
        self._say("tested", score=record.scores["concatenated"]["map_at_r"])

    def _untold(self) -> tuple[str, ...]:
        """Fields of a model's record that its test record does without."""
        # A single model is stopped by steps: it has no score.
        return ("identity", "history", "params", *(["best_score"] if self.kind == KIND else []))

    def _measure(self, experiment: Experiment, path: Path) -> None:
        with cpu_threads(experiment.protocol.threads):
            add_metrics(path, self.job.metrics, lambda: self._embed(experiment), experiment.runs)

    def _embed(self, experiment: Experiment) -> TestEmbeddings:
        """Open the test classes, as the models see them."""
        method, params = experiment.method, self.job.params
        device = choose_device(experiment.config.device)
        models = [
            _load(experiment, params, fold, self.repetition, device)
            for fold in range(len(experiment.split.folds))
        ]
        digest = _run_digest(self.experiment, params)
        note_test_opening(experiment.results, method.name, digest, self.repetition)
        source = experiment.open_part("test")
        loader = evaluation_loader(experiment, device)
        embeddings = [
            embed_with(model, source, source.indices, loader, method.normalizer) for model in models
        ]
        kinds = {"concatenated": [concatenate(embeddings, method.normalizer)]}
        if len(embeddings) > 1:
            kinds["separated"] = embeddings
        return see_test(experiment, source, kinds)

    def _say(self, kind: str, **values: Any) -> None:
        self.listener(replace(self.event, kind=kind, **values))


def _load(
    experiment: Experiment,
    params: Mapping[str, Any],
    fold: int,
    repetition: int,
    device: torch.device,
) -> Model:
    try:
        return load_model(experiment, params, fold, repetition, device)
    except Exception as error:  # whatever torch makes of a broken file
        folder = experiment.run_dir(params, fold, repetition)
        raise HarnessError(
            f"the weights of fold {fold} in {folder} cannot be read ({type(error).__name__}); "
            "with the folder moved away, a run that was not tested yet is trained again"
        ) from None


def _without(values: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}
