"""When a trial is hopeless: its first folds lie further back than first folds have ever misled.

Folds are paired: every trial trains a fold from the same seeds, so the difference of two trials on
one fold says more than two scores. A Wilcoxon test over four folds cannot tell before the last.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

MIN_TRIALS = 5  # complete ones that show how far folds can mislead
FACTOR = 2.0  # and twice that must be exceeded


def is_hopeless(scores: Sequence[float], complete: Sequence[Sequence[float]]) -> bool:
    """Whether to stop a trial after its first folds.

    A trial lags behind the best one by the mean difference of their scores, fold by fold. For every
    complete trial, the lag after as many folds can be compared with the one at its end. The largest
    such error, doubled, is what this trial must lag by.

    Args:
        scores: of the folds that are done.
        complete: (trials, folds) scores of the trials that were run to the end.
    """
    done = len(scores)
    if len(complete) < MIN_TRIALS or done >= len(complete[0]):
        return False
    lags = _best(complete) - np.array(complete)
    misled = np.abs(lags[:, :done].mean(axis=1) - lags.mean(axis=1))
    return bool(_lag(scores, complete) > FACTOR * misled.max())


def expected_score(scores: Sequence[float], complete: Sequence[Sequence[float]]) -> float:
    """Score of a trial if it lags behind the best on the other folds as on those that are done.

    The mean of its folds alone would not do: some folds are easier than others.
    """
    return float(_best(complete).mean() - _lag(scores, complete))


def _best(complete: Sequence[Sequence[float]]) -> np.ndarray:
    return np.array(max(complete, key=lambda folds: float(np.mean(folds))))


def _lag(scores: Sequence[float], complete: Sequence[Sequence[float]]) -> float:
    return float((_best(complete)[: len(scores)] - np.array(scores)).mean())
