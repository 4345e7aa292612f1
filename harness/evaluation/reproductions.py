"""Best parameters x seeds -> separated and concatenated scores on the test classes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from harness.data.sources import open_part
from harness.errors import HarnessError
from harness.evaluation.fixed import fixed_jobs
from harness.evaluation.naive import evaluate_naive
from harness.evaluation.runs import ReproductionJob
from harness.evaluation.work import exchange, one_machine, records_of, work
from harness.experiment import Experiment, build_experiment, check_tested
from harness.loss_file import check_unchanged
from harness.losses.method import Space
from harness.model.build import check_trunk
from harness.records.classes import note_test_classes
from harness.records.records import SearchFacts, rounded
from harness.searching.found import FILTERS, find_searches
from harness.searching.samplers import ends_of, grid_size
from harness.searching.study import base_facts, check_measures, sampler_of, stored_space
from harness.searching.summary import SearchSummary, summarize
from harness.system.files import check_writable
from harness.system.progress import Begun, Event, Listener, ModelEnded, ignore
from harness.training.jobs import run_jobs
from harness.training.opened import OpenedExperiment, open_experiment


@dataclass(frozen=True)
class Evaluated:
    """What an evaluation did.

    Attributes:
        tables: folders of results that now have all records of their methods.
        problems: what could not be evaluated, and why.
        unnamed: paths of loss files whose searches were left out because the user did not name
            them.
    """

    tables: list[Path]
    problems: list[str]
    unnamed: list[str] = field(default_factory=list)


def evaluate(
    losses: Sequence[str],
    values: Mapping[str, Any],
    listener: Listener = ignore,
    metrics: tuple[str, ...] = (),
    single: bool = False,
) -> Evaluated:
    """Evaluate finished searches: those of `losses`, or all; finished work is not repeated.

    Or fixed configurations, where a preset is given or the protocol leaves nothing to search.

    Args:
        values: config values the user gave; those in FILTERS pick, the others say how to run.
        metrics: to be measured beside those of every test, from the weights that were kept.
        single: train one model of the concatenated size on all trainval classes, too.
    """
    problems: list[str] = []
    unnamed: list[str] = []
    jobs = list(fixed_jobs(losses, values) or _find_jobs(losses, values, problems, unnamed))
    if unnamed and not jobs and not problems:
        return Evaluated([], [], unnamed)
    if not jobs:
        raise HarnessError(_nothing_found(losses, values, problems))
    experiments = [job.opened.experiment for job in jobs]
    if single and any(len(experiment.split.folds) == 1 for experiment in experiments):
        raise HarnessError("--single-512 is for protocols of several folds; this one has one model")
    jobs = [
        replace(
            job,
            metrics=_extra(job, metrics),
            single=single,
            shared=bool(job.opened.experiment.config.storage),
        )
        for job in jobs
    ]
    shared = [(job, records_of(job)) for job in jobs]
    tables = {job.opened.experiment.results: (job, records) for job, records in shared}

    def heard(event: Event) -> None:
        if isinstance(event, ModelEnded) and event.reason:
            problem = f"{event.method}, reproduction {event.reproduction}: {event.reason}"
            if problem not in problems:
                problems.append(problem)
        listener(event)

    for job, records in shared:
        exchange(job, records)
    if not all(job.finished() for job in jobs):
        for experiment in experiments:  # before anything is trained that could not be kept
            check_writable(experiment.runs)
            check_writable(experiment.results)
        for job in jobs:
            for title in job.titles:
                listener(job.opened.experiment.configured(title))
            done, total = job.tested(), len(job.repetitions)
            listener(Begun(method=job.opened.title, done=done, total=total, units="reproductions"))
        for job, _ in tables.values():
            # Once, with all cores, not in each worker.
            open_part(job.opened.experiment, "test", listener)
        models = sum(len(one.split.folds) * one.reproductions for one in experiments)
        run_jobs(work, jobs, models, heard)
        for job, records in shared:
            exchange(job, records)
    for table, (job, records) in tables.items():
        first = _of_first_search(job.opened.experiment)
        with one_machine(table, "no training", records):
            evaluate_naive(first, job.opened.trainval, listener, job.metrics)
        note_test_classes(table, **_test_classes(job.opened))
    return Evaluated(list(tables), problems, unnamed)


def _extra(job: ReproductionJob, metrics: Sequence[str]) -> tuple[str, ...]:
    """Those that are not measured by every test of the protocol anyway."""
    always = job.opened.experiment.protocol.test_metrics or ()
    return tuple(metric for metric in metrics if metric not in always)


def _find_jobs(
    losses: Sequence[str], values: Mapping[str, Any], problems: list[str], unnamed: list[str]
) -> Iterable[ReproductionJob]:
    """The searches that were asked for and have a best trial."""
    for found in find_searches(losses, values, problems):
        try:
            if found.runs_unnamed_code and not losses:
                unnamed.append(found.config.loss)
                continue
            found.check_named()
            check_unchanged(found.config.loss, found.folder)
            experiment = _with_share(build_experiment(found.config), found.repeats)
            if experiment.table != found.table:
                continue  # the weights that were asked for are not those it searched with
            check_trunk(experiment)
            check_tested(experiment)
            found.keep_config()
            opened = open_experiment(experiment)
            measured = experiment.identity(opened.trainval.fingerprint)
            with found.study() as study:
                check_measures(study, measured, str(found.folder), "--runs-dir")
                summary = summarize(study, select=experiment.config.select)
                space = stored_space(study)
        except HarnessError as error:  # of this search alone: the others are evaluated
            problems.append(f"{found.folder}: {error}")
            continue
        facts = _facts(experiment, summary, space, found.repeats)
        yield ReproductionJob(opened, summary.best_params, facts)


def _share(reproductions: int, searches: int) -> int:
    """The reproductions of one of several searches of a method."""
    return math.ceil(reproductions / searches)


def _of_first_search(experiment: Experiment) -> Experiment:
    """The experiment with the seed of the first of several searches, for no-training rows."""
    config = experiment.config
    return replace(
        experiment, config=config.updated({"seed": config.seed - config.repeat, "repeat": 0})
    )


def _with_share(experiment: Experiment, searches: int) -> Experiment:
    """An experiment that asks for the reproductions of one of several searches."""
    share = _share(experiment.reproductions, searches)
    return replace(experiment, config=experiment.config.updated({"reproductions": share}))


def _facts(
    experiment: Experiment, summary: SearchSummary, space: Space, searches: int
) -> SearchFacts:
    """What records say of the search that chose the parameters.

    Args:
        searches: of the same method, which share its reproductions.
    """
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
        **base_facts(experiment.method),
        "select": experiment.config.select,
        "trial_params": {
            name: [_short(params.get(name)) for params in summary.trial_params] for name in space
        },
        "trial_seconds": [_short(seconds) for seconds in summary.trial_seconds],
        "importance": {name: rounded(share) for name, share in summary.importance.items()},
        "ranges": {name: ends_of(distribution) for name, distribution in space.items()},
        "asked": {
            "trials": trials,
            "reproductions": _share(experiment.protocol.reproductions, searches),
        },
        **({} if summary.selection is None else {"selection": summary.selection}),
    }


def _test_classes(opened: OpenedExperiment) -> dict[str, Any]:
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
