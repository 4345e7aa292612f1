"""Did a search give its method a fair chance? Rules that tables and `harness show` share."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

# One trial in so many is the last part of a search, in which nothing should be found any more.
LAST = 5
# More models than this share that end at the step limit had no time to converge.
MOST_AT_LIMIT = 0.2

MAX_STEPS = "max_steps"  # what a model was stopped by, if not by patience


def spread(fold_scores: Sequence[float]) -> float | None:
    """Standard deviation over folds; None below two of them."""
    return float(np.std(fold_scores, ddof=1)) if len(fold_scores) > 1 else None


def standard_error(fold_scores: Sequence[float]) -> float:
    """Of the mean over folds; 0 below two of them."""
    return (spread(fold_scores) or 0.0) / math.sqrt(max(len(fold_scores), 1))


def not_flat(scores: Sequence[float | None], fold_scores: Sequence[float]) -> bool:
    """Whether the best score so far still rose in the last fifth of the trials.

    Args:
        scores: of every trial, in the order of the search; None if it failed.
        fold_scores: of the best trial, on each fold; a rise within their standard error is none.
    """
    last = math.ceil(len(scores) / LAST)
    before = [score for score in scores[: len(scores) - last] if score is not None]
    after = [score for score in scores[len(scores) - last :] if score is not None]
    if not before or not after:
        return bool(after)
    return max(after) - max(before) > standard_error(fold_scores)


def share_at_limit(stopped_by: Sequence[str]) -> float | None:
    """The share of models that ended at the step limit; None without any."""
    return stopped_by.count(MAX_STEPS) / len(stopped_by) if stopped_by else None
