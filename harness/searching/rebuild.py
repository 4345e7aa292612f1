"""Trials from the finished folds that they left behind, for a study that has lost them."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from harness.experiment import Experiment
from harness.losses.method import Space
from harness.records.layout import FOLD_RECORD, FOLDS
from harness.records.records import FoldRecord, RecordError
from harness.training.trial import mean_score


@dataclass(frozen=True)
class FinishedTrial:
    """A trial all of whose folds are done.

    Attributes:
        params: those that are searched.
        folds: in their order.
    """

    params: dict[str, Any]
    folds: list[FoldRecord]

    def as_trial(self, space: Space, index: int) -> FrozenTrial:
        """As it would stand in the study.

        Args:
            index: its place in the search.
        """
        facts = {
            "index": index,
            "folds": [fold.best_score for fold in self.folds],
            "seconds": sum(fold.seconds for fold in self.folds),
        }
        return optuna.trial.create_trial(
            state=TrialState.COMPLETE,
            params=self.params,
            distributions=dict(space),
            values=[mean_score(self.folds)],
            user_attrs=facts,
        )


def finished_trials(experiment: Experiment, fingerprint: str) -> list[FinishedTrial]:
    """Those that a search of this experiment could have run, oldest first."""
    identity = _plain(experiment.identity(fingerprint))
    by_params: dict[str, dict[int, FoldRecord]] = defaultdict(dict)
    for path in (experiment.runs / FOLDS).glob(f"*/{FOLD_RECORD}"):
        try:
            record = FoldRecord.read(path)
        except RecordError:
            continue
        # `harness train` leaves its folds there, too; what is older does not say.
        proposed = record.repetition == 0 and record.of_search is not False
        if proposed and _plain(record.identity) == identity:
            by_params[json.dumps(record.params, sort_keys=True)][record.fold] = record
    found = []
    for folds in by_params.values():
        searched = _searched(experiment, folds[min(folds)].params)
        if searched is not None and sorted(folds) == list(range(len(experiment.split.folds))):
            found.append(FinishedTrial(searched, [folds[number] for number in sorted(folds)]))
    return sorted(found, key=_ended)


def _plain(value: Any) -> Any:
    """As from a file of JSON."""
    return json.loads(json.dumps(value))


def _ended(trial: FinishedTrial) -> tuple[str, str]:
    times = [fold.provenance["time"] for fold in trial.folds]
    return max(times), json.dumps(trial.params, sort_keys=True)


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
