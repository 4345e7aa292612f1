"""What a search has found, from its trials alone: neither data nor torch are needed to tell."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import optuna
import pandas as pd
from optuna.importance import FanovaImportanceEvaluator, get_param_importances
from optuna.trial import FrozenTrial, TrialState

from harness.errors import HarnessError
from harness.judgement.declared import base_near
from harness.judgement.fairness import not_flat, rises, spread, standard_error
from harness.metrics.names import METRICS, title_of
from harness.records.records import SearchFacts, SelectionFacts
from harness.records.rows import setting
from harness.searching.finalists import Finalist, finalists_in, partition_noise, winner_of
from harness.searching.samplers import ends_of, on_bound
from harness.searching.trials import index_of, spent, trials_of

# Fewer say nothing of what matters.
TRIALS_FOR_IMPORTANCE = 10


@dataclass(frozen=True)
class SearchSummary:
    """What a search has found so far.

    Attributes:
        trials: those that count; failed, pruned and repeated ones are among them.
        repeated: trials of parameters that an earlier one had.
        best_score: that it was chosen by: its mean over all partitions, if finalists were scored.
        best_params: of the best trial, with the fixed ones.
        fold_scores: what that score is the mean of: the best validation score of each fold, or the
            scores together, partition by partition.
        trial_scores: of all that count, in their order; None for those that failed.
        dimensions: how many parameters are searched.
        trial_folds: the scores of each on all folds; None for those that failed or were pruned.
        flat: whether the last fifth of the trials brought no more than noise.
        on_bound: parameter -> the end of its range that the best value lies on.
        almost_base: the base that the method trains almost as at its best; empty without any, or
            if the search was begun before its study named it.
        importance: parameter -> its share in the variance of the scores (fANOVA); empty if there
            are too few trials to tell.
        curve: (trial, score) of every trial that was better than all before it.
        trial_params: of all that count, in their order.
        trial_seconds: of training and validation, likewise; None for those that failed.
        reasons: why trials failed.
        selection: how the best trial was chosen; None if by the mean over folds.
        seed: of the search.
    """

    method: str
    metric: str
    trials: int
    failed: int
    pruned: int
    repeated: int
    best_trial: int
    best_score: float
    best_params: dict[str, Any]
    fold_scores: tuple[float, ...]
    trial_scores: tuple[float | None, ...]
    dimensions: int
    trial_folds: tuple[tuple[float, ...] | None, ...]
    flat: bool
    on_bound: dict[str, str]
    almost_base: str
    importance: dict[str, float]
    curve: tuple[tuple[int, float], ...]
    trial_params: tuple[dict[str, Any], ...]
    trial_seconds: tuple[float | None, ...]
    reasons: tuple[str, ...]
    selection: SelectionFacts | None = None
    seed: int = 0

    @property
    def fold_spread(self) -> float:
        """Standard deviation over the folds of the best trial."""
        return spread(self.fold_scores) or 0.0

    def _repr_html_(self) -> str:
        """What a notebook shows: the best score in percent, and the best hyper-parameters."""
        rows = pd.DataFrame(
            [
                (
                    name,
                    f"{value:.4g}" if isinstance(value, float) else str(value),
                    f"{self.importance[name]:.0%}" if name in self.importance else "",
                    f"at the {self.on_bound[name]} end" if name in self.on_bound else "",
                )
                for name, value in self.best_params.items()
            ],
            columns=["hyper-parameter", "best value", "importance", "of its range"],
        )
        folds = ", ".join(f"{score:.2%}" for score in self.fold_scores)
        return (
            f"<p><b>{html.escape(self.method)}</b>: {self.trials} trials, {self.failed} failed. "
            f"Best validation {title_of(self.metric)}: {self.best_score:.2%} (trial "
            f"{self.best_trial + 1}; {folds}).</p>{rows.to_html(index=False, border=0)}"
        )


def _less_error(trials: Sequence[FrozenTrial]) -> list[float]:
    """The mean over folds less its error, but for what the folds differ by in all trials alike."""
    folds = np.array([trial.user_attrs["folds"] for trial in trials])
    errors = [standard_error(row) for row in (folds - folds.mean(axis=0)).tolist()]
    return [trial.values[0] - error for trial, error in zip(trials, errors, strict=True)]


# How a trial is chosen among others: by a score of each.
SELECTIONS: dict[str, Callable[[Sequence[FrozenTrial]], list[float]]] = {
    "mean": lambda trials: [trial.values[0] for trial in trials],
    "mean-se": _less_error,
}


def best_of(trials: Sequence[FrozenTrial], select: str = "mean") -> FrozenTrial | None:
    """The first of the complete trials with the highest score."""
    done = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    if not done:
        return None
    done.sort(key=lambda trial: trial.number)
    return done[int(np.argmax(SELECTIONS[select](done)))]


def scores_of(trials: Sequence[FrozenTrial]) -> list[float | None]:
    """One per spent trial, in the order of the search; None for one that failed."""
    return [None if trial.state == TrialState.FAIL else trial.values[0] for trial in spent(trials)]


def folds_of(trials: Sequence[FrozenTrial]) -> list[tuple[float, ...] | None]:
    """The same on each fold; None for one that was not trained on all of them."""
    complete = TrialState.COMPLETE
    return [tuple(t.user_attrs["folds"]) if t.state == complete else None for t in spent(trials)]


def is_flat(trials: Sequence[FrozenTrial], finalists: Sequence[Finalist] = ()) -> bool:
    """Whether the last fifth of the trials brought no more than noise, or there is no search."""
    best = best_of(trials)
    if best is None or not best.distributions:
        return best is not None
    if "scores" in best.user_attrs:
        return not rises(scores_of(trials), partition_noise(finalists))
    return not not_flat(folds_of(trials))


def summarize(study: optuna.Study, select: str = "mean") -> SearchSummary:
    """Sum up a study.

    Args:
        select: a key of SELECTIONS.
    """
    identity = study.user_attrs["identity"]
    trials = spent(trials_of(study))
    complete = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    failed = [trial for trial in trials if trial.state == TrialState.FAIL]
    reasons = tuple(trial.user_attrs["reason"] for trial in failed)
    finalists = finalists_in(trials, study.user_attrs, identity["protocol"])
    winner = winner_of(finalists)
    best = best_of(trials, select) if winner is None else winner.trial
    if best is None:
        why = f": {reasons[-1]}" if reasons else ""
        raise HarnessError(f"no trial of {identity['method']} completed{why}")
    ends = {name: on_bound(best.params[name], dist) for name, dist in best.distributions.items()}
    search: SearchFacts = {
        "base": identity.get("base", ""),
        "corner": identity.get("corner", {}),
        "ranges": {
            name: ends_of(distribution) for name, distribution in best.distributions.items()
        },
    }
    return SearchSummary(
        method=identity["method"],
        metric=str(identity["protocol"].get("metric", METRICS[0])),
        trials=len(trials),
        failed=len(failed),
        pruned=len(trials) - len(complete) - len(failed),
        repeated=len(trials) - len({tuple(sorted(trial.params.items())) for trial in trials}),
        best_trial=index_of(best),
        best_score=best.values[0] if winner is None else winner.mean,
        best_params={**identity["fixed_params"], **best.params},
        fold_scores=_parts_of_score(best) if winner is None else winner.parts,
        trial_scores=tuple(scores_of(trials)),
        dimensions=len(best.distributions),
        trial_folds=tuple(folds_of(trials)),
        flat=is_flat(trials, finalists),
        on_bound={name: end for name, end in ends.items() if end is not None},
        almost_base=base_near(identity["method"], best.params, search),
        importance=_importance(complete),
        curve=_curve(complete),
        trial_params=tuple(trial.params for trial in trials),
        trial_seconds=tuple(trial.user_attrs.get("seconds") for trial in trials),
        reasons=reasons,
        selection=_selection(identity["protocol"], finalists),
        seed=identity.get("seed", 0),
    )


def _parts_of_score(trial: FrozenTrial) -> tuple[float, ...]:
    """What the score of a trial is the mean of."""
    return tuple(trial.user_attrs.get("scores", trial.user_attrs["folds"]))


def _selection(protocol: Mapping[str, Any], finalists: Sequence[Finalist]) -> SelectionFacts | None:
    scheme = setting(protocol, "selection")
    if scheme == "folds":
        return None
    return {
        "scheme": scheme,
        "finalists": [index_of(finalist.trial) for finalist in finalists],
        "partition_scores": [finalist.means for finalist in finalists],
        "partition_noise": partition_noise(finalists),
    }


def _curve(complete: Sequence[FrozenTrial]) -> tuple[tuple[int, float], ...]:
    steps: list[tuple[int, float]] = []
    for trial in complete:
        if not steps or trial.values[0] > steps[-1][1]:
            steps.append((index_of(trial), trial.values[0]))
    return tuple(steps)


def _importance(complete: Sequence[FrozenTrial]) -> dict[str, float]:
    same = len({trial.values[0] for trial in complete}) == 1
    if len(complete) < TRIALS_FOR_IMPORTANCE or same or not complete[0].params:
        return {}
    memory = optuna.create_study(direction="maximize")
    memory.add_trials(complete)
    return dict(get_param_importances(memory, evaluator=FanovaImportanceEvaluator(seed=0)))
