"""The work of a search: trial after trial, by any number of workers, until none is left."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from filelock import Timeout
from optuna.trial import TrialState

from harness.config import RunConfig
from harness.errors import DeviceLost, EnvironmentFault, HarnessError, MachineError, OutOfMemory
from harness.experiment import Experiment, build_experiment, check_validated
from harness.loss_file import absolute, keep_sources
from harness.model.build import check_method
from harness.records.layout import CONFIG, FOLD_RECORD
from harness.records.records import FoldRecord
from harness.searching.finalist_work import score_finalists
from harness.searching.pruning import expected_score, is_hopeless
from harness.searching.repeated import repeated
from harness.searching.samplers import check_first
from harness.searching.shared import Storage
from harness.searching.study import ClaimedTrial, Study, sampler_of, storage_of
from harness.searching.summary import SearchSummary, summarize
from harness.system.files import check_writable, write_text
from harness.system.progress import Begun, Listener, TrialEnded, TrialReturned, Waiting, ignore
from harness.system.workers import WorkerLost, worker_count
from harness.training.fold import run_fold, tell_validations
from harness.training.jobs import Job, run_jobs
from harness.training.loss_check import check_loss_file
from harness.training.opened import OpenedExperiment, open_experiment
from harness.training.trainer import Progress, TrainingFailed
from harness.training.trial import records_of, run_trial, trial_units
from harness.training.trial_score import score_trial
from harness.training.unit import Unit

logger = logging.getLogger(__name__)

WAIT = 2.0  # seconds between looks at the trials of others

# So much trouble of the machine, with nothing that went well between, will not pass by itself.
TROUBLES_IN_A_ROW = 6


@dataclass(frozen=True)
class OpenedStudy:
    """A study and what its trials train on."""

    study: Study
    opened: OpenedExperiment

    @property
    def experiment(self) -> Experiment:
        return self.opened.experiment

    @property
    def method(self) -> str:
        return self.opened.method + self.experiment.seed_note

    def units(self, params: Mapping[str, Any], partition: int = 0) -> list[Unit]:
        trainval = self.opened.trainval
        return trial_units(self.experiment, trainval, params, of_search=True, partition=partition)


def search(configs: Sequence[RunConfig], listener: Listener = ignore) -> list[SearchSummary]:
    """Search every config in turn, with workers that move on together; finished work is kept.

    Returns one summary per search: several for a config that asks for several searches.
    """
    searches = [prepare(config, listener) for config in repeated(configs)]
    studies = [one.study for one in searches]
    for study in studies:
        study.note_wanted()
    missing = sum(study.unfinished() for study in studies)
    if missing:
        for one in searches:
            listener(one.experiment.configured(one.method))
            done, total = len(one.study.counted()), one.study.wanted()
            listener(Begun(method=one.method, done=done, total=total, units="trials"))
        try:
            run_jobs(work, [Job(one.opened) for one in searches], missing, listener)
        except HarnessError as error:
            if any(study.unfinished() for study in studies):
                raise
            if isinstance(error, WorkerLost):  # nobody has said so yet
                logger.warning("%s; the others did its part", str(error).partition(";")[0])
    return [study.storage.insist(partial(summarize, study.optuna)) for study in studies]


def check(config: RunConfig) -> tuple[Experiment, Storage]:
    """Everything that can be wrong with a search on whatever machine is found here, at once."""
    experiment = build_experiment(config)
    check_validated(experiment)
    check_until_flat(experiment)
    sampler_of(experiment)
    check_first(experiment.space, experiment.published_params, config.preset)
    check_method(experiment)
    check_loss_file(experiment)
    check_writable(experiment.runs)
    return experiment, storage_of(experiment)


def check_until_flat(experiment: Experiment) -> None:
    """Refuse to go on until a search is flat where nothing says how noisy its scores are."""
    protocol = experiment.protocol
    if experiment.config.until_flat and experiment.partitions[0].scored and not protocol.finalists:
        raise HarnessError(
            f"--until-flat needs finalists with selection={protocol.selection}: how their scores "
            "differ between partitions says what is noise; give --finalists 2 or more, or --trials"
        )


def prepare(config: RunConfig, listener: Listener = ignore) -> OpenedStudy:
    """Everything that can be wrong with a search here is found here, before any training."""
    worker_count(config, threads=1, units=1)
    experiment, storage = check(config)
    opened = open_experiment(experiment, listener)
    study = Study(experiment, opened.trainval.fingerprint, storage)
    # A loss file is found again from whatever folder the next command is given in.
    found = config.updated({"loss": absolute(config.loss)})
    write_text(study.folder / CONFIG, found.to_yaml())
    study.records.keep_config(study.optuna, found)
    keep_sources(config.loss, study.folder)
    return OpenedStudy(study, opened)


def work(jobs: Iterable[Job], listener: Listener) -> None:
    """One worker: trial after trial of every study, until none is left to start or to inherit."""
    waiting = []
    for job in jobs:
        fingerprint = job.opened.trainval.fingerprint
        one = OpenedStudy(Study(job.opened.experiment, fingerprint), job.opened)
        if not _work_on(one, listener):
            waiting.append(one)
    while waiting:
        time.sleep(WAIT)
        listener(Waiting(method=waiting[0].method))
        waiting = [one for one in waiting if not _work_on(one, listener)]


def _work_on(one: OpenedStudy, listener: Listener) -> bool:
    """Run trials while there are any to start, then help, then score the finalists.

    Returns False if other workers are still at some of it, or if more trials are needed.
    """
    study = one.study
    in_a_row = 0
    with study.storage.joined() as worker:
        while (claim := study.claim(worker)) is not None:
            trouble = _run(one, claim, listener)
            in_a_row = in_a_row + 1 if trouble else 0
            if trouble and in_a_row == TROUBLES_IN_A_ROW:
                raise HarnessError(
                    f"{one.method} meets the same again and again: {trouble}\n"
                    "  that is no fault of its; once it is mended, repeat the command, and "
                    f"`harness retry {one.experiment.method.name}` for trials that failed of it"
                )
    others = study.under_way()
    for trial in others:
        if study.storage.is_beside(trial.user_attrs.get("worker", "")):
            _help(one, study.params_of(trial.params), listener)
    if others:
        return False
    if study.unfinished():
        with study.storage.joined():
            score_finalists(study, one.units, listener)
    # With --until-flat the scores of the finalists may ask for more trials.
    return not study.unfinished()


def _help(one: OpenedStudy, params: Mapping[str, Any], listener: Listener) -> None:
    """Train the last folds of another worker's trial, for it to find them done."""
    if one.experiment.protocol.prune:
        return  # its last folds may never be needed
    units = one.units(params)
    if not any(unit.folder.exists() for unit in units):
        return  # it works in another directory, and would not find them

    def alive(fold: int, progress: Progress) -> None:
        listener(Waiting(method=one.method))

    for unit in reversed(units):
        try:
            run_fold(unit, alive, wait=False)
        except DeviceLost:
            raise
        except (Timeout, TrainingFailed, MachineError):
            continue  # somebody is at it, or its own worker will tell


def _run(one: OpenedStudy, claim: ClaimedTrial, listener: Listener) -> MachineError | None:
    """Run a claimed trial and tell the study how it went; what trouble the machine made, if any.

    Memory that is short is no such trouble: some parameters need more of it than others.
    """
    study, protocol = one.study, one.experiment.protocol
    started = time.perf_counter()
    run = f"trial-{claim.index + 1}"
    on_validation = tell_validations(listener, one.method, claim.index + 1, run=run)

    def hopeless(folds: list[FoldRecord]) -> bool:
        study.records.send([units[len(folds) - 1].folder / FOLD_RECORD])
        scores = [fold.best_score for fold in folds]
        return protocol.prune and is_hopeless(scores, study.fold_scores())

    def ended(**facts: Any) -> TrialEnded:
        best = study.best()
        return TrialEnded(
            method=one.method,
            run=run,
            params=claim.params,
            trial=claim.index + 1,
            trials=study.wanted(),
            metric=protocol.metric,
            seconds=time.perf_counter() - started,
            best=best.values[0] if best else None,
            **facts,
        )

    units = one.units(claim.params)
    study.records.fetch(records_of(units))  # of the worker that had the trial before
    try:
        folds = run_trial(units, on_validation, hopeless)
        pruned = len(folds) < len(units)
        scores = () if pruned else score_trial(units, folds)
        study.records.send([units[0].trial_path])
    except TrainingFailed as failure:
        study.finish(claim, TrialState.FAIL, reason=str(failure))
        listener(ended(reason=str(failure), trace=failure.trace))
        return None
    except EnvironmentFault:
        raise  # the trial goes back to the search as soon as this worker has ended
    except MachineError as trouble:
        if study.give_back(claim, str(trouble)):
            trial, trials = claim.index + 1, study.wanted()
            listener(
                TrialReturned(method=one.method, trial=trial, trials=trials, reason=str(trouble))
            )
        else:
            listener(ended(reason=f"{trouble}, twice"))
        if isinstance(trouble, DeviceLost):
            raise  # for a new process to go on
        return None if isinstance(trouble, OutOfMemory) else trouble
    single = tuple(fold.best_score for fold in folds)
    score = expected_score(single, study.fold_scores()) if pruned else float(np.mean(scores))
    state = TrialState.PRUNED if pruned else TrialState.COMPLETE
    facts: dict[str, Any] = {"folds": single, "seconds": sum(fold.seconds for fold in folds)}
    if units[0].cut.scored:
        facts["scores"] = scores
    study.finish(claim, state, score, **facts)
    listener(ended(score=score, folds=len(folds), pruned=pruned))
    return None
