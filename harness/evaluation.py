"""Best parameters x seeds -> separated and concatenated scores on the test classes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from harness import registry
from harness.config import RunConfig, load_config
from harness.device import choose_device
from harness.embed import concatenate, embed_with
from harness.errors import HarnessError
from harness.experiment import Experiment, build_experiment, digest_of
from harness.heads import Model
from harness.naive import evaluate_naive
from harness.on_demand import add_metrics, missing_metrics
from harness.progress import Event, Listener, ignore
from harness.records import (
    FoldRecord,
    RecordError,
    TestRecord,
    note_test_opening,
    provenance,
)
from harness.scoring import TestEmbeddings, score
from harness.study import CONFIG, JOURNAL, Study
from harness.trainer import Progress, TrainingFailed
from harness.trial import cpu_threads, find_fold, load_model, run_fold
from harness.workers import run_workers, worker_count

# Config keys that pick among the searches; all others say how to run.
FILTERS = ("loss", "dataset", "protocol", "trunk")


@dataclass(frozen=True)
class Job:
    """One method to reproduce.

    Attributes:
        params: the best ones.
        search: what the search says of them.
        metrics: to be measured beside those of every test.
    """

    config: RunConfig
    params: dict[str, Any]
    search: dict[str, Any]
    metrics: tuple[str, ...] = ()


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
) -> Evaluated:
    """Evaluate finished searches: those of `losses`, or all; finished work is not repeated.

    Args:
        values: config values the user gave; those in FILTERS pick, the others say how to run.
        metrics: to be measured beside those of every test, from the weights that were kept.
    """
    problems: list[str] = []
    jobs = [replace(job, metrics=metrics) for job in _find_jobs(losses, values, problems)]
    if not jobs:
        raise HarnessError(_nothing_found(losses, values, problems))
    experiments = [build_experiment(job.config) for job in jobs]
    models = sum(e.reproductions * len(e.split.folds) for e in experiments)
    threads = max(e.protocol.threads for e in experiments)
    config = jobs[0].config

    def heard(event: Event) -> None:
        if event.kind == "model" and event.message:
            problems.append(f"{event.method}, reproduction {event.unit}: {event.message}")
        listener(event)

    if any(not _finished(e, job) for e, job in zip(experiments, jobs, strict=True)):
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
    runs = Path(RunConfig().updated(values).runs_dir)
    wanted = {registry.load_method(loss).name for loss in losses}
    for path in sorted(runs.glob(f"*/*/*/{CONFIG}")):
        if not path.with_name(JOURNAL).exists() or (wanted and path.parent.name not in wanted):
            continue
        saved = RunConfig().updated(load_config(path))
        if any(key in values and values[key] != getattr(saved, key) for key in FILTERS):
            continue
        how = {key: value for key, value in values.items() if key not in FILTERS}
        # Which trials there are was settled by the search; its folder is where it was found.
        study = Study(build_experiment(saved.updated({**how, "runs_dir": str(runs)})))
        best = study.best()
        if best is None:
            problems.append(f"{study.experiment.method.name}: no trial of its search is complete")
            continue
        summary = study.summary()
        facts = {
            "trials": summary.trials,
            "failed": summary.failed,
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
        yield Job(study.experiment.config, summary.best_params, facts)


def _nothing_found(
    losses: Sequence[str], values: Mapping[str, Any], problems: Sequence[str]
) -> str:
    flags = "".join(f" --{key} {values[key]}" for key in FILTERS if key in values)
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
        record_path(experiment, job.params, repetition)
        for repetition in range(1, experiment.reproductions + 1)
    ]
    return all(path.exists() and not missing_metrics(path, job.metrics) for path in paths)


def work(jobs: list[Job], device: str, listener: Listener) -> None:
    """One worker: every fold that nobody has trained or is training, then its test scores."""
    for job in jobs:
        experiment = build_experiment(job.config.updated({"device": device}))
        for repetition in range(1, experiment.reproductions + 1):
            try:
                _reproduce(experiment, job, repetition, listener)
            except HarnessError as error:  # of this run alone: the others go on
                _say(experiment, "model", repetition, listener, message=str(error))


def _reproduce(experiment: Experiment, job: Job, repetition: int, listener: Listener) -> None:
    path = record_path(experiment, job.params, repetition)
    if not path.exists():
        for fold in range(len(experiment.split.folds)):
            _train(experiment, job, fold, repetition, listener)
        _test_if_ready(experiment, job, repetition, listener)
    with cpu_threads(experiment.protocol.threads):
        add_metrics(
            path,
            job.metrics,
            lambda: embed_test(experiment, job.params, repetition),
            experiment.runs,
        )


def _say(
    experiment: Experiment, kind: str, repetition: int, listener: Listener, **values: Any
) -> None:
    name, total = experiment.method.name, experiment.reproductions
    listener(Event(kind, name, unit=repetition, units=total, **values))


def _train(
    experiment: Experiment, job: Job, fold: int, repetition: int, listener: Listener
) -> None:
    def validated(fold: int, progress: Progress) -> None:
        _say(
            experiment,
            "validation",
            repetition,
            listener,
            fold=fold,
            step=progress.step,
            max_steps=experiment.protocol.max_steps,
            score=progress.best_score,
        )

    done: dict[str, Any]
    try:
        record = run_fold(
            experiment, job.params, fold, repetition, validated, keep_weights=True, wait=False
        )
        done = {"score": record.best_score, "seconds": record.seconds}
    except Timeout:  # another worker is at it
        return
    except (TrainingFailed, RecordError) as failure:
        done = {"message": str(failure)}
    _say(experiment, "model", repetition, listener, fold=fold, **done)


def _test_if_ready(experiment: Experiment, job: Job, repetition: int, listener: Listener) -> None:
    """Open the test classes once all fold models of a repetition are there."""
    folds = [
        find_fold(experiment, job.params, fold, repetition)
        for fold in range(len(experiment.split.folds))
    ]
    path = record_path(experiment, job.params, repetition)
    if any(fold is None for fold in folds):
        return
    try:
        with FileLock(experiment.runs / f"{path.stem}.lock", timeout=0):
            if path.exists():
                return
            record = _test(experiment, job, repetition, [f for f in folds if f is not None])
            record.write(path)
    except Timeout:  # another worker is at it
        return
    reached = record.scores["concatenated"]["map_at_r"]
    _say(experiment, "tested", repetition, listener, score=reached)


def _test(experiment: Experiment, job: Job, repetition: int, folds: list[FoldRecord]) -> TestRecord:
    with cpu_threads(experiment.protocol.threads):
        scored = score(embed_test(experiment, job.params, repetition))
    return TestRecord(
        kind="reproduction",
        identity=experiment.identity(),
        params=job.params,
        repetition=repetition,
        folds=[_without(asdict(fold), "identity", "history", "params") for fold in folds],
        search=job.search,
        provenance=provenance(),
        **scored,
    )


def embed_test(
    experiment: Experiment, params: Mapping[str, Any], repetition: int
) -> TestEmbeddings:
    """Open the test classes, as the fold models of a reproduction see them."""
    method, protocol = experiment.method, experiment.protocol
    device = choose_device(experiment.config.device)
    models = [
        _load(experiment, params, fold, repetition, device)
        for fold in range(len(experiment.split.folds))
    ]
    note_test_opening(experiment.results, method.name, _run_digest(experiment, params), repetition)
    store = experiment.open_part("test")
    indices = experiment.indices_of(experiment.split.test)
    embeddings = [
        embed_with(model, store, indices, protocol.crop, device, method.normalizer)
        for model in models
    ]
    return TestEmbeddings(
        kinds={
            "concatenated": [concatenate(embeddings, method.normalizer)],
            "separated": embeddings,
        },
        labels=experiment.listing.labels[indices],
        fingerprint=store.fingerprint,
    )


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
            "move that folder away to train it again"
        ) from None


def _without(values: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}
