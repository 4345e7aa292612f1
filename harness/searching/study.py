"""The Optuna study of one method: which trial is next, and what became of each; resumable."""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import optuna
from optuna.distributions import distribution_to_json, json_to_distribution
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, TrialState

from harness.errors import HarnessError
from harness.experiment import Experiment
from harness.losses.method import Method, Space
from harness.records.records import Identity, SearchFacts
from harness.searching.finalists import Finalist, finalists_in, is_finalist_key, key_of
from harness.searching.rebuild import finished_trials
from harness.searching.samplers import (
    LEARNING,
    check_sampler,
    planned,
    propose,
    spell_space,
)
from harness.searching.shared import WANTED, Storage
from harness.searching.shared_records import shared_records
from harness.searching.storage import open_storage
from harness.searching.summary import best_of, is_flat
from harness.searching.trials import (
    has_failed,
    index_of,
    is_abandoned,
    latest,
    spent,
    trials_of,
)
from harness.system.device import cpu_threads
from harness.system.seeds import derive_seed

logger = logging.getLogger(__name__)

# What trials say of themselves, beside their place, worker, folds, seconds and reason.
TROUBLE = "trouble"  # of the machine, that it met
RETRIED = "retried"  # why the trial before it at this place had failed

# As many failures in a row, with nothing that worked before, mean that the set-up is wrong.
FAILURES_AT_START = 10


@dataclass(frozen=True)
class ClaimedTrial:
    """A trial that a worker has taken.

    Attributes:
        id: in the storage.
        index: place in the search; a trial that is run again keeps it.
        params: all of them: those that are searched and those that are fixed.
    """

    id: int
    index: int
    params: dict[str, Any]


@dataclass(frozen=True)
class Place:
    """The next place in a search for which nobody knows parameters yet.

    Attributes:
        trials: all trials at that moment, which a proposal depends on.
    """

    index: int
    trials: Sequence[FrozenTrial]


@dataclass(frozen=True)
class Proposal:
    """Parameters for a place. They are valid as long as no other trial was claimed."""

    place: Place
    params: dict[str, Any]

    def fits(self, index: int, trials: Sequence[FrozenTrial]) -> bool:
        return index == self.place.index and len(trials) == len(self.place.trials)


class Study:
    """The trials of one experiment, shared by any number of workers.

    Args:
        fingerprint: of the trainval images that its trials are measured on.
    """

    def __init__(
        self, experiment: Experiment, fingerprint: str, storage: Storage | None = None
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.experiment = experiment
        self.fingerprint = fingerprint
        self.sampler = sampler_of(experiment)
        self.folder = experiment.runs
        self.plan = planned(
            self.sampler,
            experiment.space,
            experiment.published_params,
            derive_seed(experiment.config.seed, "plan"),
        )
        self.storage = storage or storage_of(experiment)
        self.records = shared_records(experiment, self.storage)
        self.optuna = self.storage.insist(self._opened)
        self._id = self.storage.insist(self._find_id)
        if self.storage.lost:
            self._rebuild()

    def wanted(self, trials: Sequence[FrozenTrial] | None = None) -> int:
        """Trials to end up with, as far as is known by now, or by these trials."""
        asked, config = self.experiment.trials, self.experiment.config
        if config.until_flat:
            counted = self.counted() if trials is None else spent(trials)
            if len(counted) >= asked and not self._is_flat(counted):
                asked = max(asked, min(len(counted) + 1, config.max_trials))
        # A grid has no more points than it has.
        exhaustible = self.sampler == "grid" or not self.experiment.space
        return min(asked, len(self.plan)) if exhaustible else asked

    def note_wanted(self) -> None:
        """Keep with the study how many trials are wanted, for those who ask how far it is."""
        wanted = self.wanted()
        if self.optuna.user_attrs.get(WANTED) != wanted:
            self.storage.insist(lambda: self.optuna.set_user_attr(WANTED, wanted))

    def _is_flat(self, counted: Sequence[FrozenTrial]) -> bool:
        """Whether more trials are of no use; also as long as finalists do not say."""
        finalists = self.finalists(counted)
        return any(finalist.missing for finalist in finalists) or is_flat(counted, finalists)

    def finalists(self, trials: Sequence[FrozenTrial] | None = None) -> list[Finalist]:
        """The best trials, by now or among these, with their scores on other partitions."""

        def find() -> list[Finalist]:
            counted = spent(self._trials()) if trials is None else trials
            kept = self.optuna.user_attrs
            return finalists_in(counted, kept, kept["identity"]["protocol"])

        return self.storage.insist(find)

    def tell_finalist(self, trial: FrozenTrial, partition: int, **facts: Any) -> None:
        """Keep the scores of a finalist on another partition, or the reason why it has none."""
        kept = {"params": trial.params, **facts}
        self.storage.insist(lambda: self.optuna.set_user_attr(key_of(trial, partition), kept))

    def unfinished(self) -> int:
        """Pieces of work that are left: trials, and scores of finalists on other partitions."""
        missing, protocol = self.missing(), self.experiment.protocol
        if missing:
            return missing + protocol.finalists * protocol.rotations
        return sum(len(finalist.missing) for finalist in self.finalists())

    def missing(self) -> int:
        """Trials that are still to be counted."""
        return max(0, self.wanted() - len(self.counted()))

    def counted(self) -> list[FrozenTrial]:
        """Trials that are spent: complete, pruned, or failed for a reason of their own."""
        return spent(self.trials())

    def best(self) -> FrozenTrial | None:
        return best_of(self.trials())

    def completed(self) -> list[FrozenTrial]:
        return [trial for trial in self.trials() if trial.state == TrialState.COMPLETE]

    def fold_scores(self) -> list[list[float]]:
        """Of every complete trial."""
        return [trial.user_attrs["folds"] for trial in self.completed()]

    def params_of(self, searched: Mapping[str, Any]) -> dict[str, Any]:
        """All parameters of a trial: those it searched and those that are fixed."""
        return {**self.experiment.published_params, **searched}

    def claim(self, worker: str) -> ClaimedTrial | None:
        """Take the next trial to run, or nothing if enough are done or under way.

        A Gaussian process takes seconds for a proposal. It is computed while others may claim. If
        another worker was faster, its trial has to be considered: the proposal is computed again.
        """
        proposal = None
        while True:
            taken = self.storage.insist(partial(self._claim, worker, proposal))
            if not isinstance(taken, Place):
                return taken
            proposal = Proposal(taken, self._propose(taken))

    def _claim(self, worker: str, proposal: Proposal | None) -> ClaimedTrial | Place | None:
        """Take the next trial, or return its place if parameters have to be proposed first."""
        with self.storage.exclusive():
            # Looked through once: with thousands of trials and dozens of workers it takes time.
            trials = self._trials()
            if not self._end_abandoned(trials):
                return self._take(worker, trials, proposal)
        return self._claim(worker, proposal)

    def _take(
        self, worker: str, trials: Sequence[FrozenTrial], proposal: Proposal | None
    ) -> ClaimedTrial | Place | None:
        newest = latest(trials)
        counted = spent(newest)
        abandoned = {index_of(t): t.params for t in newest if is_abandoned(t)}
        self._check_failures(counted)
        running = [trial for trial in trials if trial.state == TrialState.RUNNING]
        taken = {index_of(trial) for trial in (*counted, *running)}
        index = next(i for i in range(len(taken) + 1) if i not in taken)
        if index >= self.wanted(trials):
            return None
        place = Place(index, trials)
        if index in abandoned:
            params = abandoned[index]
        elif index < len(self.plan):
            params = self.plan[index]
        elif proposal is not None and proposal.fits(index, trials):
            params = proposal.params
        elif self.sampler in LEARNING:
            return place
        else:  # within milliseconds
            params = self._propose(place)
        # In one go: a worker that dies has either taken a whole trial or none.
        taking = optuna.trial.create_trial(
            state=TrialState.RUNNING,
            params=params,
            distributions=dict(self.experiment.space),
            user_attrs={"index": index, "worker": worker},
        )
        number = self.storage.optuna.create_new_trial(self._id, template_trial=taking)
        return ClaimedTrial(number, index, self.params_of(params))

    def _propose(self, place: Place) -> dict[str, Any]:
        """Parameters for a place.

        They depend on the trials and a seed alone, so an interrupted search proposes what an
        uninterrupted one would.
        """
        seed = derive_seed(self.experiment.config.seed, "sampler", place.index)
        with cpu_threads(self.experiment.protocol.threads):
            return propose(self.sampler, seed, self.experiment.space, place.trials)

    def _rebuild(self) -> None:
        """Put back the trials that a damaged journal lost and whose folds are all finished."""
        with self.storage.exclusive():
            trials = self._trials()
            known = [trial.params for trial in trials]
            taken = {index_of(trial) for trial in trials}
            found = finished_trials(self.experiment, self.fingerprint)
            lost = [facts for facts in found if facts.params not in known]
            places = [self.plan.index(f.params) if f.params in self.plan else None for f in lost]
            free = (i for i in itertools.count() if i not in {*taken, *places})
            for facts, place in zip(lost, places, strict=True):
                index = next(free) if place is None or place in taken else place
                self.optuna.add_trial(facts.as_trial(self.experiment.space, index))
        if lost:
            logger.warning(
                "%s had lost trials: %d were rebuilt from their finished folds",
                *(self.storage.place, len(lost)),
            )

    def finish(
        self, claim: ClaimedTrial, state: TrialState, score: float | None = None, **facts: Any
    ) -> None:
        """Tell how a trial went; no effect if its worker had been given up for dead."""

        def tell() -> None:
            try:
                with self.storage.transaction():
                    for name, value in facts.items():
                        self.storage.optuna.set_trial_user_attr(claim.id, name, value)
                    values = None if score is None else [score]
                    self.storage.optuna.set_trial_state_values(claim.id, state, values)
            except UpdateFinishedTrialError:
                logger.warning(
                    "trial %d had been given to another worker; its folds are kept", claim.index
                )

        self.storage.insist(tell)

    def give_back(self, claim: ClaimedTrial, trouble: str) -> bool:
        """Return a trial that met trouble of the machine to the search, with its parameters.

        False if it did so before: then it is spent, and failed with this reason.
        """
        place = [trial for trial in self.trials() if index_of(trial) == claim.index]
        since = max((t.number for t in place if RETRIED in t.user_attrs), default=-1)
        again = any(TROUBLE in t.user_attrs for t in place if t.number > since)
        facts: dict[str, Any] = {TROUBLE: trouble, **({"reason": trouble} if again else {})}
        self.finish(claim, TrialState.FAIL, None, **facts)
        return not again

    def under_way(self) -> list[FrozenTrial]:
        """The trials that others are at; should one of them die, its trial is ours."""
        trials = self.trials()
        wanted = self.wanted(trials)
        return [t for t in trials if t.state == TrialState.RUNNING and index_of(t) < wanted]

    def _find_id(self) -> int:
        return self.storage.optuna.get_study_id_from_name(self.optuna.study_name)

    def trials(self) -> list[FrozenTrial]:
        """All of them, whatever became of them."""
        return self.storage.insist(self._trials)

    def _trials(self) -> list[FrozenTrial]:
        """Within a claim: who lost the connection has lost the claim with it."""
        return trials_of(self.optuna)

    def _opened(self) -> optuna.Study:
        storage, name = self.storage.optuna, self.experiment.name
        with self.storage.exclusive():
            # Optuna would create it and see whether the name is taken, which a database does not
            # notice if it was lost while its tables were made: their indexes come last.
            try:
                opened = optuna.load_study(study_name=name, storage=storage)
            except KeyError:
                opened = optuna.create_study(study_name=name, storage=storage, direction="maximize")
            self._bind(opened)
        return opened

    def _bind(self, opened: optuna.Study) -> None:
        """Refuse to add trials that measure something else than those that are there."""
        space, known = self.experiment.space, self.experiment.published_params
        searched = {
            "space": {name: json.loads(distribution_to_json(d)) for name, d in space.items()},
            "fixed_params": {name: value for name, value in known.items() if name not in space},
        }
        theirs = opened.user_attrs.get("identity")
        if theirs is None:
            base = base_facts(self.experiment.method)
            opened.set_user_attr("identity", {**self._measured(), **searched, **base})
            return
        elsewhere = "--storage" if self.experiment.config.storage else "--runs-dir"
        check_measures(opened, self._measured(), self.storage.place, elsewhere)
        lines = _differences({name: theirs.get(name) for name in searched}, searched)
        if lines:
            raise HarnessError(
                f"the study in {self.storage.place} was searched in another space, "
                f"{spell_space(stored_space(opened))}:\n"
                + "\n".join(lines)
                + "\n  `harness eval` works with it as it is; to search the space of today, give "
                f"another {elsewhere}"
            )

    def _measured(self) -> Identity:
        return self.experiment.identity(self.fingerprint)

    def _end_abandoned(self, trials: Sequence[FrozenTrial]) -> bool:
        """Fail those of the trials whose worker is gone; whether there were any."""
        running = [trial for trial in trials if trial.state == TrialState.RUNNING]
        workers = {t.user_attrs["worker"] for t in running if "worker" in t.user_attrs}
        living = self.storage.living(workers) if workers else set()
        abandoned = [t for t in running if t.user_attrs.get("worker") not in living]
        for trial in abandoned:
            with suppress(UpdateFinishedTrialError):  # alive after all, and just done
                self.optuna.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)
        return bool(abandoned)

    def _check_failures(self, ended: Sequence[FrozenTrial]) -> None:
        failed = [trial for trial in ended if trial.state == TrialState.FAIL]
        if len(failed) == len(ended) >= FAILURES_AT_START:
            raise HarnessError(
                f"the first {len(failed)} trials of {self.experiment.method.name} all failed, "
                f"the last with: {failed[-1].user_attrs['reason']}\n"
                f"  tracebacks: failure.txt in the folders of {self.folder / 'folds'}\n"
                "  once that is mended, `harness retry` returns them to the search"
            )


def base_facts(method: Method) -> SearchFacts:
    """What a method adds something to, where it is almost that, and what else it claims to beat."""
    base = method.base
    return {
        "base": base.name if base else "",
        "corner": dict(base.almost_base_at) if base else {},
        "compared_with": list(method.compared_with),
    }


def sampler_of(experiment: Experiment) -> str:
    """The one that was asked for, or the method's.

    A method that is searched on a grid of one parameter is searched like the others where the
    protocol adds one: FastAP's 31 numbers of bins would be a grid of 155 points.
    """
    own = experiment.method.sampler
    usual = "gp" if own == "grid" and len(experiment.space) > 1 else own
    name = experiment.config.sampler or usual
    check_sampler(name)
    return name


def retry_failed(study: optuna.Study, storage: Storage) -> list[str]:
    """Return the failed trials of a study to the search, with their parameters; their reasons."""

    def retry() -> list[str]:
        with storage.exclusive():
            failed = list(filter(has_failed, latest(trials_of(study))))
            for trial in failed:
                # A trial that has ended cannot be changed, so that another one takes its place.
                study.add_trial(
                    optuna.trial.create_trial(
                        state=TrialState.FAIL,
                        params=trial.params,
                        distributions=trial.distributions,
                        user_attrs={"index": index_of(trial), RETRIED: trial.user_attrs["reason"]},
                    )
                )
            again = [trial.user_attrs["reason"] for trial in failed]
            for name, kept in study.user_attrs.items():
                if is_finalist_key(name) and "reason" in kept:
                    study.set_user_attr(name, {})
                    again.append(kept["reason"])
        return again

    return storage.insist(retry)


def storage_of(experiment: Experiment) -> Storage:
    config = experiment.config
    return open_storage(config.storage, experiment.runs, experiment.name, config.heartbeat)


def check_measures(
    study: optuna.Study, measured: Mapping[str, Any], place: str, elsewhere: str
) -> None:
    """Refuse a study of another method, data set, protocol, trunk or seed.

    Args:
        measured: what is to be measured, as an experiment's identity.
        place: of the study, for the message.
        elsewhere: the flag that leads to another one.
    """
    theirs = study.user_attrs["identity"]
    lines = _differences({name: theirs.get(name) for name in measured}, measured)
    if lines:
        raise HarnessError(
            f"the study in {place} measures something else:\n"
            + "\n".join(lines)
            + f"\n  repeat its settings to add trials, or give another {elsewhere}"
        )


def stored_space(study: optuna.Study) -> Space:
    """What its trials were searched in, whatever the method's space is today."""
    try:
        stored = study.user_attrs["identity"]["space"]
        return {name: json_to_distribution(json.dumps(value)) for name, value in stored.items()}
    except (ValueError, KeyError, TypeError):
        raise HarnessError(
            f"study {study.study_name} does not say in what it was searched"
        ) from None


def _differences(theirs: Mapping[str, Any], ours: Mapping[str, Any], at: str = "") -> list[str]:
    theirs, ours = (json.loads(json.dumps(side)) for side in (theirs, ours))  # as from a journal
    lines: list[str] = []
    for key in sorted({*theirs, *ours}):
        old, new = theirs.get(key), ours.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            lines.extend(_differences(old, new, f"{at}{key}."))
        elif old != new:
            lines.append(f"  {at}{key}: {old} there, {new} here")
    return lines
