"""The Optuna study of one method: claim a trial, run it, tell the score; resumable at any point."""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from filelock import FileLock, Timeout
from optuna.distributions import distribution_to_json
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, Trial, TrialState

from harness.config import RunConfig
from harness.device import choose_device
from harness.errors import HarnessError
from harness.experiment import Experiment, build_experiment
from harness.files import write_text
from harness.progress import Event, Listener, ignore
from harness.samplers import check_sampler, make_sampler, on_bound, planned
from harness.seeds import derive_seed
from harness.trainer import Progress, TrainingFailed
from harness.trial import mean_score, run_trial
from harness.workers import run_workers, worker_count

# As many failures in a row, with nothing that worked before, mean that the set-up is wrong.
FAILURES_AT_START = 10

JOURNAL = "study.journal"
CONFIG = "config.yaml"


@dataclass(frozen=True)
class SearchSummary:
    """What a search has found so far.

    Attributes:
        best_params: of the best trial, with the fixed ones.
        fold_scores: best validation score of each fold in that trial.
        on_bound: parameter -> the end of its range that the best value lies on.
        reasons: why trials failed.
    """

    method: str
    trials: int
    failed: int
    best_trial: int
    best_score: float
    best_params: dict[str, Any]
    fold_scores: tuple[float, ...]
    on_bound: dict[str, str]
    reasons: tuple[str, ...]
    seconds: float


class _JournalLock:
    """A lock that the system releases when its holder dies; Optuna's own outlives it."""

    def __init__(self, path: Path) -> None:
        self._lock = FileLock(path)

    def acquire(self) -> bool:
        self._lock.acquire()
        return True

    def release(self) -> None:
        self._lock.release()


def _open_journal(path: Path) -> JournalStorage:
    """The journal, without the unfinished line that a power cut can leave at its end."""
    lock = _JournalLock(path.with_suffix(".lock"))
    lock.acquire()
    try:
        written = path.read_bytes() if path.exists() else b""
        if written and not written.endswith(b"\n"):
            os.truncate(path, written.rfind(b"\n") + 1)
    finally:
        lock.release()
    return JournalStorage(JournalFileBackend(str(path), lock_obj=lock))  # type: ignore[arg-type]


class Study:
    """The trials of one experiment, shared by any number of workers."""

    def __init__(self, experiment: Experiment) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.experiment = experiment
        self.sampler = experiment.config.sampler or experiment.method.sampler
        check_sampler(self.sampler)
        self.folder = experiment.runs
        self.folder.mkdir(parents=True, exist_ok=True)
        self.plan = planned(
            self.sampler,
            experiment.space,
            experiment.published_params,
            derive_seed(experiment.config.seed, "plan"),
        )
        name = f"{experiment.table.as_posix()}/{experiment.method.name}"
        with self._claiming():
            self.optuna = optuna.create_study(
                storage=_open_journal(self.folder / JOURNAL),
                study_name=name,
                direction="maximize",
                load_if_exists=True,
            )
            self._bind()

    @property
    def wanted(self) -> int:
        """Trials to end up with."""
        return self.limited(self.experiment.trials)

    def limited(self, trials: int) -> int:
        """So many trials, or as many as there are points in a grid."""
        exhaustible = self.sampler == "grid" or not self.experiment.space
        return min(trials, len(self.plan)) if exhaustible else trials

    def counted(self) -> list[FrozenTrial]:
        """Trials that count: completed, or failed for a reason of their own."""
        return [trial for trial in self._trials() if _counts(trial)]

    def completed(self) -> list[FrozenTrial]:
        return [trial for trial in self._trials() if trial.state == TrialState.COMPLETE]

    def best(self) -> FrozenTrial | None:
        """The first of the trials with the highest score."""
        done = self.completed()
        return max(done, key=lambda trial: (trial.values[0], -trial.number)) if done else None

    def params_of(self, trial: FrozenTrial | Trial) -> dict[str, Any]:
        """All parameters of a trial: those it searched and those that are fixed."""
        return {**self.experiment.published_params, **trial.params}

    def claim(self, worker: str) -> Trial | None:
        """Take the next trial to run, or nothing if enough are done or under way."""
        with self._claiming():
            abandoned = self._end_abandoned()
            trials = self._trials()
            self._check_failures(trials)
            taken = {index_of(t) for t in trials if _counts(t) or t.state == TrialState.RUNNING}
            index = next(i for i in range(len(taken) + 1) if i not in taken)
            if index >= self.wanted:
                return None
            # Any choice depends on the finished trials and this seed alone, so an interrupted
            # search proposes what an uninterrupted one would.
            seed = derive_seed(self.experiment.config.seed, "sampler", index)
            self.optuna.sampler = make_sampler(self.sampler, seed)
            known = abandoned.get(index) or (self.plan[index] if index < len(self.plan) else None)
            # One may be waiting already, if a worker died between these two steps.
            waiting = any(trial.state == TrialState.WAITING for trial in trials)
            if known is not None and not waiting:
                self.optuna.enqueue_trial(known)
            trial = self.optuna.ask(dict(self.experiment.space))
            trial.set_user_attr("index", index)
            trial.set_user_attr("worker", worker)
            return trial

    def summary(self) -> SearchSummary:
        best = self.best()
        counted = self.counted()
        failed = [trial for trial in counted if trial.state == TrialState.FAIL]
        reasons = tuple(trial.user_attrs["reason"] for trial in failed)
        if best is None:
            why = f": {reasons[-1]}" if reasons else ""
            raise HarnessError(f"no trial of {self.experiment.method.name} completed{why}")
        space = self.experiment.space
        ends = {name: on_bound(best.params[name], dist) for name, dist in space.items()}
        return SearchSummary(
            method=self.experiment.method.name,
            trials=len(counted),
            failed=len(failed),
            best_trial=index_of(best),
            best_score=best.values[0],
            best_params=self.params_of(best),
            fold_scores=tuple(best.user_attrs["folds"]),
            on_bound={name: end for name, end in ends.items() if end is not None},
            reasons=reasons,
            seconds=sum(trial.user_attrs.get("seconds", 0.0) for trial in counted),
        )

    @contextmanager
    def _claiming(self) -> Iterator[None]:
        with FileLock(self.folder / "claim.lock"):
            yield

    def _trials(self) -> list[FrozenTrial]:
        return self.optuna.get_trials(deepcopy=False)

    def _bind(self) -> None:
        """Refuse to add trials that measure something else than those that are there."""
        space, known = self.experiment.space, self.experiment.published_params
        ours = {
            **self.experiment.identity(),
            "space": {name: json.loads(distribution_to_json(d)) for name, d in space.items()},
            "fixed_params": {name: value for name, value in known.items() if name not in space},
        }
        ours = json.loads(json.dumps(ours))  # as it comes back from the journal
        theirs = self.optuna.user_attrs.get("identity")
        if theirs is None:
            self.optuna.set_user_attr("identity", ours)
        elif theirs != ours:
            raise HarnessError(
                f"the study in {self.folder} measures something else:\n"
                + "\n".join(_differences(theirs, ours))
                + "\n  repeat its settings to add trials, or give another --runs-dir"
            )

    def _end_abandoned(self) -> dict[int, dict[str, Any]]:
        """Fail the trials whose worker is gone; index -> parameters of those still to be run."""
        for trial in self._trials():
            if trial.state != TrialState.RUNNING:
                continue
            worker = trial.user_attrs.get("worker")
            if worker is None or not self._alive(worker):
                self.optuna.tell(trial.number, state=TrialState.FAIL)
        trials = self._trials()
        abandoned = {
            index_of(trial): trial.params
            for trial in trials
            if trial.state == TrialState.FAIL and "reason" not in trial.user_attrs
        }
        return {index: params for index, params in abandoned.items() if params}

    def _alive(self, worker: str) -> bool:
        """A worker holds its lock file for as long as it lives."""
        try:
            with FileLock(self._lock_file(worker), timeout=0):
                return False
        except Timeout:
            return True

    def _lock_file(self, worker: str) -> Path:
        return self.folder / "workers" / f"{worker}.lock"

    @contextmanager
    def joined(self) -> Iterator[str]:
        """Be a worker of this study: a name, alive until the block or the process ends."""
        name = f"{os.getpid()}-{secrets.token_hex(4)}"
        path = self._lock_file(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path):
            yield name
        path.unlink(missing_ok=True)

    def _check_failures(self, trials: Sequence[FrozenTrial]) -> None:
        ended = [trial for trial in trials if _counts(trial)]
        failed = [trial for trial in ended if trial.state == TrialState.FAIL]
        if len(failed) == len(ended) >= FAILURES_AT_START:
            raise HarnessError(
                f"the first {len(failed)} trials of {self.experiment.method.name} all failed, "
                f"the last with: {failed[-1].user_attrs['reason']}\n"
                f"  tracebacks: failure.txt in the folders of {self.folder / 'folds'}"
            )


def index_of(trial: FrozenTrial) -> int:
    """Place of a trial in the search; a trial that is run again keeps it. -1 if it has none."""
    return trial.user_attrs.get("index", -1)


def _counts(trial: FrozenTrial) -> bool:
    failed = trial.state == TrialState.FAIL and "reason" in trial.user_attrs
    return trial.state == TrialState.COMPLETE or failed


def _differences(theirs: Mapping[str, Any], ours: Mapping[str, Any], at: str = "") -> list[str]:
    lines: list[str] = []
    for key in sorted({*theirs, *ours}):
        old, new = theirs.get(key), ours.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            lines.extend(_differences(old, new, f"{at}{key}."))
        elif old != new:
            lines.append(f"  {at}{key}: {old} there, {new} here")
    return lines


def search(configs: Sequence[RunConfig], listener: Listener = ignore) -> list[SearchSummary]:
    """Search every config in turn, with workers that move on together; finished work is kept."""
    studies = [prepare(config, listener) for config in configs]
    missing = sum(max(0, study.wanted - len(study.counted())) for study in studies)
    if missing:
        threads = max(study.experiment.protocol.threads for study in studies)
        count = worker_count(configs[0], threads, missing)
        run_workers(work, list(configs), configs[0].device, count, threads, listener)
    return [study.summary() for study in studies]


def prepare(config: RunConfig, listener: Listener = ignore) -> Study:
    """Everything that can be wrong with a search is found here, before any training."""
    choose_device(config.device)
    experiment = build_experiment(config)
    experiment.open_part("trainval", listener)
    study = Study(experiment)
    write_text(study.folder / CONFIG, config.to_yaml())
    return study


def work(configs: list[RunConfig], device: str, listener: Listener) -> None:
    """One worker: trial after trial of every study, until none is left to start."""
    for config in configs:
        study = Study(build_experiment(config.updated({"device": device})))
        with study.joined() as worker:
            while (trial := study.claim(worker)) is not None:
                _run(study, trial, listener)


def _run(study: Study, trial: Trial, listener: Listener) -> None:
    """Run a claimed trial and tell the study how it went."""
    experiment, index = study.experiment, trial.user_attrs["index"]
    started = time.perf_counter()

    def say(kind: str, **values: Any) -> None:
        best = study.best()
        listener(
            Event(
                kind,
                experiment.method.name,
                unit=index,
                units=study.wanted,
                best=best.values[0] if best else None,
                **values,
            )
        )

    def validated(fold: int, progress: Progress) -> None:
        say(
            "validation",
            fold=fold,
            step=progress.step,
            max_steps=experiment.protocol.max_steps,
            score=progress.best_score,
        )

    try:
        folds = run_trial(experiment, study.params_of(trial), validated)
    except TrainingFailed as failure:
        trial.set_user_attr("reason", str(failure))
        study.optuna.tell(trial, state=TrialState.FAIL)
        say("trial", message=str(failure), seconds=time.perf_counter() - started)
        return
    scores = tuple(fold.best_score for fold in folds)
    trial.set_user_attr("folds", scores)
    trial.set_user_attr("seconds", sum(fold.seconds for fold in folds))
    study.optuna.tell(trial, mean_score(folds))
    say(
        "trial",
        score=mean_score(folds),
        scores=scores,
        seconds=time.perf_counter() - started,
    )
