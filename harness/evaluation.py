"""Best parameters x seeds -> separated and concatenated scores on the test classes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock, Timeout

from harness import retrieval
from harness.config import RunConfig
from harness.device import choose_device
from harness.embed import concatenate, embed_with
from harness.errors import HarnessError
from harness.experiment import Experiment, build_experiment, digest_of
from harness.naive import evaluate_naive
from harness.progress import Event, Listener, ignore
from harness.records import FoldRecord, TestRecord, note_test_opening, provenance
from harness.searches import FILTERS, find_searches
from harness.study import Study
from harness.summary import summarize
from harness.trainer import Progress, TrainingFailed
from harness.trial import cpu_threads, find_fold, load_model, run_fold
from harness.workers import run_workers, worker_count


@dataclass(frozen=True)
class Job:
    """One method to reproduce: its config, its best parameters, what the search says of them."""

    config: RunConfig
    params: dict[str, Any]
    search: dict[str, Any]


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
    losses: Sequence[str], values: Mapping[str, Any], listener: Listener = ignore
) -> Evaluated:
    """Evaluate finished searches: those of `losses`, or all; finished work is not repeated.

    Args:
        values: config values the user gave; those in FILTERS pick, the others say how to run.
    """
    problems: list[str] = []
    jobs = list(_find_jobs(losses, values, problems))
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

    if any(not _finished(e, job.params) for e, job in zip(experiments, jobs, strict=True)):
        count = worker_count(config, threads, models)
        run_workers(work, jobs, config.device, count, threads, heard)
    tables = {e.results: e for e in experiments}
    for experiment in tables.values():
        evaluate_naive(experiment, lambda name: listener(Event("tested", name)))
    return Evaluated(list(tables), problems)


def _find_jobs(
    losses: Sequence[str], values: Mapping[str, Any], problems: list[str]
) -> Iterable[Job]:
    """The searches that were asked for and have a best trial."""
    for found in find_searches(losses, values):
        study = Study(build_experiment(found.config))
        best = study.best()
        if best is None:
            problems.append(f"{study.experiment.method.name}: no trial of its search is complete")
            continue
        summary = summarize(study.optuna, importance=False)
        facts = {
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
    digest = digest_of({"identity": experiment.identity(), "params": dict(params)})
    name = f"{digest}-{repetition:02d}.json"
    return experiment.results / "records" / experiment.method.name / name


def _finished(experiment: Experiment, params: Mapping[str, Any]) -> bool:
    repetitions = range(1, experiment.reproductions + 1)
    return all(record_path(experiment, params, r).exists() for r in repetitions)


def work(jobs: list[Job], device: str, listener: Listener) -> None:
    """One worker: every fold that nobody has trained or is training, then its test scores."""
    for job in jobs:
        experiment = build_experiment(job.config.updated({"device": device}))
        for repetition in range(1, experiment.reproductions + 1):
            if record_path(experiment, job.params, repetition).exists():
                continue
            for fold in range(len(experiment.split.folds)):
                _train(experiment, job, fold, repetition, listener)
            _test_if_ready(experiment, job, repetition, listener)


def _train(
    experiment: Experiment, job: Job, fold: int, repetition: int, listener: Listener
) -> None:
    name, total = experiment.method.name, experiment.reproductions

    def validated(fold: int, progress: Progress) -> None:
        listener(
            Event(
                "validation",
                name,
                unit=repetition,
                units=total,
                fold=fold,
                step=progress.step,
                max_steps=experiment.protocol.max_steps,
                score=progress.best_score,
            )
        )

    try:
        record = run_fold(
            experiment, job.params, fold, repetition, validated, keep_weights=True, wait=False
        )
    except Timeout:  # another worker is at it
        return
    except TrainingFailed as failure:
        listener(
            Event("model", name, unit=repetition, units=total, fold=fold, message=str(failure))
        )
        return
    listener(
        Event(
            "model",
            name,
            unit=repetition,
            units=total,
            fold=fold,
            score=record.best_score,
            seconds=record.seconds,
        )
    )


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
    score = record.scores["concatenated"]["map_at_r"]
    total = experiment.reproductions
    listener(Event("tested", experiment.method.name, unit=repetition, units=total, score=score))


def _test(experiment: Experiment, job: Job, repetition: int, folds: list[FoldRecord]) -> TestRecord:
    method, protocol = experiment.method, experiment.protocol
    identity = experiment.identity()
    digest = digest_of({"identity": identity, "params": job.params})
    note_test_opening(experiment.results, method.name, digest, repetition)
    device = choose_device(experiment.config.device)
    store = experiment.open_part("test")
    indices = experiment.indices_of(experiment.split.test)
    labels = torch.from_numpy(experiment.listing.labels[indices]).to(device)
    with cpu_threads(protocol.threads):
        embeddings = [
            embed_with(
                load_model(experiment, job.params, fold.fold, repetition, device),
                store,
                indices,
                protocol.crop,
                device,
                method.normalizer,
            )
            for fold in folds
        ]
        separated = [retrieval.evaluate(embedded, labels) for embedded in embeddings]
        together = retrieval.evaluate(concatenate(embeddings, method.normalizer), labels)
    return TestRecord(
        kind="reproduction",
        identity=identity,
        params=job.params,
        repetition=repetition,
        dims={
            "concatenated": protocol.embedding_size * len(folds),
            "separated": protocol.embedding_size,
        },
        scores={
            "concatenated": together.values,
            "separated": {
                metric: float(np.mean([scores.values[metric] for scores in separated]))
                for metric in together.values
            },
        },
        separated=[scores.values for scores in separated],
        queries=together.queries,
        queries_dropped=together.queries_dropped,
        test_fingerprint=store.fingerprint,
        folds=[_without(asdict(fold), "identity", "history", "params") for fold in folds],
        search=job.search,
        provenance=provenance(),
    )


def _without(values: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}
