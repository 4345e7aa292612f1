"""When a trial is hopeless: not even the luckiest folds still to come would bring it to the front.

Folds are paired: every trial trains a fold from the same seeds, so the difference of two trials on
one fold says more than two scores. A Wilcoxon test over four folds cannot tell before the last.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

MIN_TRIALS = 5  # complete ones, to see how far folds can mislead


def is_hopeless(scores: Sequence[float], complete: Sequence[Sequence[float]]) -> bool:
    """Whether to stop a trial after its first folds.

    Two trials differ by more on some folds than on others. The largest deviation that any two
    complete trials show, on any fold, from their mean difference is what luck can do. A trial is
    stopped if it would end behind the best one even if each fold to come were better for it, by
    twice that, than those that are done: once for their bad luck, once for good luck to come.

    Args:
        scores: of the folds that are done.
        complete: (trials, folds) scores of the trials that were run to the end.
    """
    if len(complete) < MIN_TRIALS:
        return False
    to_come = 1 - len(scores) / len(complete[0])
    return to_come > 0 and _lag(scores, complete) > 2 * _luck(complete) * to_come


def expected_score(scores: Sequence[float], complete: Sequence[Sequence[float]]) -> float:
    """Score of a trial if it lags behind the best on the other folds as on those that are done.

    The mean of its folds alone would not do: some folds are easier than others.
    """
    return float(_best(complete).mean() - _lag(scores, complete))


def _luck(complete: Sequence[Sequence[float]]) -> float:
    trials = np.array(complete)
    centred = trials - trials.mean(axis=1, keepdims=True)
    return float(np.ptp(centred, axis=0).max())


def _best(complete: Sequence[Sequence[float]]) -> np.ndarray:
    return np.array(max(complete, key=lambda folds: float(np.mean(folds))))


def _lag(scores: Sequence[float], complete: Sequence[Sequence[float]]) -> float:
    """Mean difference from the best trial over the folds that are done."""
    return float((_best(complete)[: len(scores)] - np.array(scores)).mean())
