"""Did a search give its method a fair chance? Rules that tables and `harness show` share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from harness.records.records import SearchFacts

# One trial in so many is the last part of a search, in which nothing should be found any more.
LAST = 5
# More models than this share that end at the step limit had no time to converge.
MOST_AT_LIMIT = 0.2
# More models than this share that were best when they were first validated: the protocol looked too
# late to choose when to stop.
MOST_AT_FIRST = 0.5

MAX_STEPS = "max_steps"  # what a model was stopped by, if not by patience


def spread(fold_scores: Sequence[float]) -> float | None:
    """Standard deviation over folds; None below two of them."""
    return float(np.std(fold_scores, ddof=1)) if len(fold_scores) > 1 else None


def standard_error(fold_scores: Sequence[float]) -> float:
    """Of the mean over folds; 0 below two of them."""
    return (spread(fold_scores) or 0.0) / math.sqrt(max(len(fold_scores), 1))


def not_flat(trials: Sequence[Sequence[float] | None]) -> bool:
    """Whether the best trial so far still became a better one in the last fifth of the search.

    By more than one standard error of the differences between the two on the same folds: folds
    differ in difficulty far more than trials do, which says nothing of the trials.

    Args:
        trials: the scores of each on all folds, in the order of the search; None without them.
    """
    before, after = _before_and_after(trials)
    if not before or not after:
        return bool(after)
    rise = np.subtract(max(after, key=np.mean), max(before, key=np.mean))
    return bool(rise.mean() > standard_error(rise.tolist()))


def rises(scores: Sequence[float | None], noise: float | None) -> bool:
    """Whether the best trial so far still became a better one in the last fifth of the search.

    By more than the standard deviation of a difference between two trials.

    Args:
        scores: of each trial, in the order of the search; None without one.
        noise: standard deviation of a trial's score between partitions; None counts as 0.
    """
    before, after = _before_and_after(scores)
    if not before or not after:
        return bool(after)
    return max(after) - max(before) > math.sqrt(2) * (noise or 0.0)


Trial = TypeVar("Trial")


def _before_and_after(trials: Sequence[Trial | None]) -> tuple[list[Trial], list[Trial]]:
    """The trials before the last part of the search and in it, without those that are None."""
    start = len(trials) - math.ceil(len(trials) / LAST)
    before, after = trials[:start], trials[start:]
    return [t for t in before if t is not None], [t for t in after if t is not None]


def still_rises(search: SearchFacts) -> bool | None:
    """Whether a search still found something at its end; None if its record does not tell."""
    trial_folds, selection = search.get("trial_folds", []), search.get("selection")
    if not trial_folds or not search.get("dimensions"):
        return None
    if selection is None:
        return not_flat(trial_folds)
    noise = selection["partition_noise"]
    return None if noise is None else rises(search["trial_scores"], noise)


def share_at_limit(stopped_by: Sequence[str]) -> float | None:
    """The share of models that ended at the step limit; None without any."""
    return stopped_by.count(MAX_STEPS) / len(stopped_by) if stopped_by else None


def share_at_first(models: Sequence[tuple[int, Sequence[int]]]) -> float | None:
    """The share of models that were best at the first of several validations; None without any.

    Args:
        models: of each the step of its best weights, and the steps at which it was validated.
    """
    several = [(best, steps) for best, steps in models if len(steps) > 1]
    return sum(best == steps[0] for best, steps in several) / len(several) if several else None
