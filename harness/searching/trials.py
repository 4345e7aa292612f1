"""What became of the trials of a study: which count, and which will be run again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import optuna
from optuna.trial import FrozenTrial, TrialState

# What a trial says it was trained with: name -> version.
TRAINED_WITH = "trained_with"

# Of a trial that ended as it should.
DONE = (TrialState.COMPLETE, TrialState.PRUNED)


def index_of(trial: FrozenTrial) -> int:
    """Place of a trial in the search; a trial that is run again keeps it. -1 if it has none."""
    return trial.user_attrs.get("index", -1)


def trials_of(study: optuna.Study) -> list[FrozenTrial]:
    """All trials but those that ended without their scores, which a damaged journal may have.

    Such a trial is as if it had never been, and is run again.
    """
    trials = study.get_trials(deepcopy=False)
    lengths = Counter(len(t.user_attrs.get("folds", ())) for t in trials if _is_complete(t))
    usual = lengths.most_common(1)[0][0] if lengths else 0
    return [t for t in trials if t.state not in DONE or not _lacks_scores(t, usual)]


def _is_complete(trial: FrozenTrial) -> bool:
    return trial.state == TrialState.COMPLETE


def _lacks_scores(trial: FrozenTrial, folds: int) -> bool:
    if trial.state == TrialState.PRUNED:
        return not trial.values
    scores = trial.user_attrs.get("folds", ())
    return _is_complete(trial) and (not trial.values or not scores or len(scores) != folds)


def latest(trials: Iterable[FrozenTrial]) -> list[FrozenTrial]:
    """Of each place in the search the trial that alone says what became of it.

    The newest, unless an earlier one was done: a worker that lost the database while it claimed a
    trial may have taken, and left, one that another had taken.
    """
    by_place: dict[int, FrozenTrial] = {}
    for trial in sorted(trials, key=lambda trial: (trial.state in DONE, trial.number)):
        # One without a place is not ours to replace.
        by_place[trial.user_attrs.get("index", -1 - trial.number)] = trial
    return [by_place[place] for place in sorted(by_place)]


def has_failed(trial: FrozenTrial) -> bool:
    """Whether a trial failed, and not only its worker or the machine that it ran on."""
    return trial.state == TrialState.FAIL and "reason" in trial.user_attrs


def is_abandoned(trial: FrozenTrial) -> bool:
    """Whether a trial ended for no fault of its own, and is to be run again."""
    return trial.state == TrialState.FAIL and not has_failed(trial)


def spent(trials: Iterable[FrozenTrial]) -> list[FrozenTrial]:
    """Those that count, in the order of the search: complete, pruned, or failed with a reason."""
    return [trial for trial in latest(trials) if trial.state in DONE or has_failed(trial)]
