"""Trains configurations under each selection scheme and tests them, to see which rule chooses well.

`harness calibrate --selection` tests on a fifth of the trainval classes, so that the test classes
stay closed. `benchmarks/selection.py` does the same with the test classes.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from filelock import FileLock, Timeout
from optuna.trial import TrialState

from harness.calibration.selection_rules import (
    ROTATIONS,
    TARGETS,
    Outcome,
    describe,
    smoothed_best,
    spread,
)
from harness.config import RunConfig
from harness.errors import HarnessError
from harness.evaluation.kept_models import embed_test
from harness.experiment import (
    Experiment,
    build_benchmark,
    build_experiment,
    check_tested,
    check_validated,
    digest_of,
)
from harness.loss_file import absolute
from harness.model.build import check_method
from harness.protocols.protocol import with_change
from harness.protocols.splits import MIN_TRAINVAL_CLASSES
from harness.searching.found import find_searches
from harness.searching.samplers import planned
from harness.searching.trials import latest, trials_of
from harness.split_file import FEWEST
from harness.system.files import check_writable, read_json, write_json, write_text
from harness.system.progress import Begun, Listener, TrialEnded, ignore
from harness.system.seeds import derive_seed
from harness.system.workers import worker_count
from harness.training.fold import run_fold, tell_validations
from harness.training.jobs import Job, run_jobs
from harness.training.loss_check import check_loss_file
from harness.training.opened import open_experiment
from harness.training.trainer import TrainingFailed
from harness.training.trial import run_trial, trial_units, units_of
from harness.training.trial_score import score_trial

HELD_OUT = 5  # one class of so many is held out as a stand-in for the test
SPLIT = "stand-in.yaml"

Params = Mapping[str, Any]


@dataclass(frozen=True)
class SelectionPlan:
    """What to measure.

    Attributes:
        configs: one for each loss, on the same data set and protocol; their folders are not used.
        configurations: number for each loss.
        rotations: other partitions that finalists are scored on, one of ROTATIONS.
        seeds: test scores that a test score is the mean of.
        folder: for everything that is written; finished work is not repeated.
        trials_from: folder of runs with searches of the losses, whose trials are trained again;
            None for the points that a search begins with.
    """

    configs: Sequence[RunConfig]
    configurations: int
    rotations: int
    seeds: int
    folder: Path
    trials_from: Path | None = None


@dataclass(frozen=True)
class PoolJob(Job):
    """One configuration to train under each scheme and to test.

    Attributes:
        number: among the `total` configurations of its loss, from 1.
        outcome: file for what it scored.
    """

    params: Params
    number: int
    total: int
    rotations: int
    seeds: int
    outcome: Path


def calibrate_selection(plan: SelectionPlan, listener: Listener = ignore) -> list[str]:
    """Measure each rule without opening the test classes; return the report as Markdown lines."""
    if plan.configurations < 2:
        raise HarnessError(
            f"--configurations {plan.configurations}: a choice needs at least 2 configurations"
        )
    pools = {}
    for config in plan.configs:
        pool = (
            planned_pool(config, plan.configurations)
            if plan.trials_from is None
            else searched_pool(config, plan.trials_from, plan.configurations)
        )
        pools[config.loss] = pool
    held_out = [_hold_out(config, plan.folder) for config in plan.configs]
    tasks = [(config, pools[config.loss]) for config in held_out]
    found = measure_pools(tasks, plan.rotations, plan.seeds, listener)
    first = build_benchmark(held_out[0])
    split, table = first.split, f"{plan.configs[0].protocol}/{first.dataset_label}"
    lines = [
        f"# Selection rules on {table}-{first.trunk_label}",
        "",
        f"Trained on {len(split.trainval)} of the trainval classes and tested on the other "
        f"{len(split.test)}. The test classes of the data set were not opened.",
        *describe(found, plan.rotations),
    ]
    outcomes = [asdict(one) for pool in found.values() for one in pool]
    write_json(plan.folder / "selection.json", {"table": table, "outcomes": outcomes})
    write_text(plan.folder / "selection.md", "\n".join([*lines, ""]))
    return lines


def planned_pool(config: RunConfig, count: int) -> list[Params]:
    """The published configuration and points that fill the search space."""
    experiment = build_experiment(config)
    points = planned("random", experiment.space, experiment.published_params, seed=0)
    return [{**experiment.published_params, **point} for point in points[:count]]


def searched_pool(config: RunConfig, runs: Path, count: int) -> list[Params]:
    """Configurations that a search in a folder of runs tried: some of its better half."""
    keys = ("dataset", "protocol", *(["trunk"] if config.trunk else []))
    picked = {"runs_dir": str(runs), **{key: getattr(config, key) for key in keys}}
    for search in find_searches([config.loss], picked, in_database=False):
        experiment = build_experiment(search.config.updated({"loss": config.loss}))
        with search.study() as study:
            trials = [t for t in latest(trials_of(study)) if t.state == TrialState.COMPLETE]
        chosen = spread([trial.values[0] for trial in trials], count)
        return [{**experiment.published_params, **trials[place].params} for place in chosen]
    raise HarnessError(
        f"--trials-from {runs}: no search of {config.loss} with --dataset {config.dataset} "
        f"--protocol {config.protocol}; run it with `harness search`, or leave out --trials-from"
    )


def _hold_out(config: RunConfig, folder: Path) -> RunConfig:
    """The config with a fifth of its trainval classes, drawn from its seed, as its test classes."""
    classes = build_benchmark(config).split.trainval
    count = max(FEWEST, len(classes) // HELD_OUT)
    if len(classes) - count < MIN_TRAINVAL_CLASSES:
        raise HarnessError(
            f"--selection needs at least {MIN_TRAINVAL_CLASSES + FEWEST} trainval classes: a fifth "
            f"is held out, and the others are cut into quarters; {config.dataset} has "
            f"{len(classes)}"
        )
    drawn = sorted(classes, key=lambda label: derive_seed(config.seed, "stand-in test", label))
    parts = {"train": sorted(drawn[count:]), "test": sorted(drawn[:count])}
    check_writable(folder)
    text = yaml.safe_dump(parts, default_flow_style=None)
    file = folder / SPLIT
    if not file.exists() or file.read_text() != text:
        write_text(file, text)
    folders = {"runs_dir": str(folder / "runs"), "results_dir": str(folder / "results")}
    placed = config.updated({"split": str(file), **folders})
    return placed.updated({"protocol": build_benchmark(placed).protocol.name})


def measure_pools(
    tasks: Sequence[tuple[RunConfig, Sequence[Params]]],
    rotations: int,
    seeds: int,
    listener: Listener = ignore,
) -> dict[str, list[Outcome]]:
    """Loss -> what its configurations scored; finished ones are read back.

    A configuration whose training fails is left out.

    Args:
        tasks: config of each loss, and its configurations.
        rotations: other partitions to score by pairs, beside the first.
        seeds: test scores of each configuration.
    """
    for config, pool in tasks:
        _check(config, pool)
    jobs: list[PoolJob] = []
    for config, pool in tasks:
        opened = open_experiment(_with_folds(config), listener)
        for number, params in enumerate(pool, start=1):
            outcome = _outcome_path(config, opened.method, params, rotations, seeds)
            jobs.append(PoolJob(opened, params, number, len(pool), rotations, seeds, outcome))
        done = sum(job.outcome.exists() for job in jobs[-len(pool) :])
        listener(Begun(method=opened.method, done=done, total=len(pool), units="trials"))
    missing = sum(not job.outcome.exists() for job in jobs)
    if missing:
        run_jobs(work, jobs, missing, listener)
    pools: dict[str, list[Outcome]] = {}
    for job in jobs:
        if job.outcome.exists():
            pools.setdefault(job.opened.method, []).append(Outcome(**read_json(job.outcome)))
    if not pools:
        raise HarnessError("no configuration could be trained; see the reasons above")
    return pools


def _outcome_path(
    config: RunConfig, method: str, params: Params, rotations: int, seeds: int
) -> Path:
    """Named by a hash of everything that the scores depend on."""
    what = [method, config.dataset, config.protocol, config.trunk, dict(params), rotations, seeds]
    others = {key: getattr(config, key) for key in ("seed", "weights") if getattr(config, key)}
    digest = digest_of([*what, others] if others else what)
    return Path(config.runs_dir, "outcomes", f"{method}-{digest}.json")


def _with_folds(config: RunConfig) -> Experiment:
    protocol = with_change(config.protocol, "selection", "folds")
    return build_experiment(config.updated({"loss": absolute(config.loss), "protocol": protocol}))


def _with_pairs(config: RunConfig) -> Experiment:
    # The same protocol for any number of rotations, so that more of them reuse what is there.
    protocol = config.protocol
    for field, value in {"selection": "pairs", "rotations": ROTATIONS[-1]}.items():
        protocol = with_change(protocol, field, value)
    return build_experiment(config.updated({"protocol": protocol}))


def _check(config: RunConfig, pool: Sequence[Params]) -> None:
    """Refuse what cannot be trained or tested under one of the schemes, before any work."""
    if len(pool) < 2:
        raise HarnessError(
            f"{config.loss} has {len(pool)} configuration to choose from, and a choice needs 2; "
            "give a loss with a search space, or a search with more trials"
        )
    worker_count(config, threads=1, units=1)
    for experiment in (_with_folds(config), _with_pairs(config)):
        check_tested(experiment)
        check_validated(experiment)
        check_method(experiment)
        check_loss_file(experiment)


def work(jobs: Iterable[PoolJob], listener: Listener) -> None:
    """One worker: every configuration that nobody has measured or is measuring."""
    for job in jobs:
        lock = job.outcome.parent / ".locks" / f"{job.outcome.stem}.lock"
        lock.parent.mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(lock, timeout=0):
                if not job.outcome.exists():
                    _measure(job, listener)
        except Timeout:  # another worker is at it
            continue


def _measure(job: PoolJob, listener: Listener) -> None:
    started, method = time.perf_counter(), job.opened.method
    ended = partial(TrialEnded, method=method, trial=job.number, trials=job.total)
    try:
        outcome = _measured(job, listener)
    except TrainingFailed as failure:
        seconds = time.perf_counter() - started
        listener(ended(seconds=seconds, reason=str(failure), trace=failure.trace))
        return
    write_json(job.outcome, asdict(outcome))
    score, seconds = outcome.test["concatenated"], time.perf_counter() - started
    listener(ended(seconds=seconds, score=score))


def _measured(job: PoolJob, listener: Listener) -> Outcome:
    opened, values = job.opened, dict(job.params)
    tell = tell_validations(listener, opened.method, job.number)
    folds = run_trial(trial_units(opened.experiment, opened.trainval, values), tell)
    paired = open_experiment(_with_pairs(opened.experiment.config))
    partitions = []
    for number in range(1 + job.rotations):
        units = trial_units(
            paired.experiment, paired.trainval, values, of_search=True, partition=number
        )
        partitions.append(float(np.mean(score_trial(units, run_trial(units, tell)))))
    tests: dict[str, list[float]] = {target: [] for target in TARGETS}
    for repetition in range(1, 1 + job.seeds):
        models = units_of(opened.experiment, opened.trainval, values, repetition)
        for unit in models:
            run_fold(unit, tell, keep_weights=True)
        embedded = embed_test(opened, models)
        if embedded.queries is not None and not embedded.queries.any():
            # Trainval classes of In-Shop have no queries: each image searches all others.
            embedded = replace(embedded, queries=None)
        scores = embedded.scores()
        for target in TARGETS:
            tests[target].append(scores[target]["map_at_r"])
    return Outcome(
        loss=opened.method,
        params=values,
        folds=float(np.mean([fold.best_score for fold in folds])),
        smoothed=float(np.mean([smoothed_best(fold.history) for fold in folds])),
        partitions=partitions,
        test={target: float(np.mean(scores)) for target, scores in tests.items()},
    )
