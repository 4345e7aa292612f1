"""Trials from the finished folds that they left behind, for a study that has lost them."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import optuna
from optuna.trial import FrozenTrial, TrialState

from harness.experiment import Experiment
from harness.losses.method import Space
from harness.records.layout import FOLD_RECORD, FOLDS, TRIAL_RECORD
from harness.records.records import FoldRecord, RecordError, TrialRecord


@dataclass(frozen=True)
class FinishedTrial:
    """A trial all of whose models are trained.

    Attributes:
        params: those that are searched.
        folds: best validation score of each model.
        scores: those that the trial's score is the mean of, if models are scored together.
        ended: when, for sorting.
    """

    params: dict[str, Any]
    folds: list[float]
    seconds: float
    ended: str
    scores: list[float] | None = None

    def as_trial(self, space: Space, index: int) -> FrozenTrial:
        """The trial as the study would hold it.

        Args:
            index: its place in the search.
        """
        facts = {"index": index, "folds": self.folds, "seconds": self.seconds}
        if self.scores is not None:
            facts["scores"] = self.scores
        return optuna.trial.create_trial(
            state=TrialState.COMPLETE,
            params=self.params,
            distributions=dict(space),
            values=[float(np.mean(self.folds if self.scores is None else self.scores))],
            user_attrs=facts,
        )


def finished_trials(experiment: Experiment, fingerprint: str) -> list[FinishedTrial]:
    """Those that a search of this experiment could have run, oldest first."""
    together = bool(experiment.partitions[0].scored)
    found = (
        _scored_together(experiment, fingerprint)
        if together
        else _by_folds(experiment, fingerprint)
    )
    return sorted(found, key=lambda trial: (trial.ended, json.dumps(trial.params, sort_keys=True)))


def _scored_together(experiment: Experiment, fingerprint: str) -> Iterator[FinishedTrial]:
    """Trials with a record of their own, which says all that the study knew."""
    for record in _records(TrialRecord, TRIAL_RECORD, experiment, fingerprint):
        searched = _searched(experiment, record.params)
        if record.partition == 0 and searched is not None:
            time = record.provenance["time"]
            yield FinishedTrial(searched, record.folds, record.seconds, time, record.scores)


def _by_folds(experiment: Experiment, fingerprint: str) -> Iterator[FinishedTrial]:
    """Trials that are scored by single models, from the records of these."""
    by_params: dict[str, dict[int, FoldRecord]] = defaultdict(dict)
    for record in _records(FoldRecord, FOLD_RECORD, experiment, fingerprint):
        # `harness train` leaves its folds there, too; what is older does not say.
        if record.repetition == 0 and record.of_search is not False:
            by_params[json.dumps(record.params, sort_keys=True)][record.fold] = record
    for models in by_params.values():
        searched = _searched(experiment, models[min(models)].params)
        if searched is not None and sorted(models) == list(range(len(experiment.split.folds))):
            folds = [models[number] for number in sorted(models)]
            yield FinishedTrial(
                params=searched,
                folds=[fold.best_score for fold in folds],
                seconds=sum(fold.seconds for fold in folds),
                ended=max(fold.provenance["time"] for fold in folds),
            )


AnyRecord = TypeVar("AnyRecord", FoldRecord, TrialRecord)


def _records(
    kind: type[AnyRecord], name: str, experiment: Experiment, fingerprint: str
) -> Iterator[AnyRecord]:
    """The readable records of one kind that measure what the experiment does."""
    identity = _plain(experiment.identity(fingerprint))
    for path in (experiment.runs / FOLDS).glob(f"*/{name}"):
        try:
            record = kind.read(path)
        except RecordError:
            continue
        if _plain(record.identity) == identity:
            yield record


def _plain(value: Any) -> Any:
    """As from a file of JSON."""
    return json.loads(json.dumps(value))


def _searched(experiment: Experiment, params: dict[str, Any]) -> dict[str, Any] | None:
    """The searched ones among all parameters; None if they are not of this search."""
    space, fixed = experiment.space, experiment.published_params
    others = {name: value for name, value in params.items() if name not in space}
    expected = {name: value for name, value in fixed.items() if name not in space}
    if _plain(expected) != others or not space.keys() <= params.keys():
        return None
    inside = all(
        distribution._contains(distribution.to_internal_repr(params[name]))
        for name, distribution in space.items()
    )
    return {name: params[name] for name in space} if inside else None
