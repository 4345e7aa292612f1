"""Mean scores of runs with their intervals, as CSV columns have them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import stats

from harness.judgement.statistic import CONFIDENCE
from harness.metrics.names import EMBEDDINGS
from harness.records.rows import Row, Searches

INTERVAL = "_ci95"  # behind the name of a score: half the width of its interval

ROUNDING = 1e-12  # scores that differ by less are equal


def mean_and_interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean, and half the width of its 95 % t-interval: NaN for a single value."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return mean, float("nan")
    if np.ptp(values) < ROUNDING:
        return mean, 0.0
    _, high = stats.t.interval(CONFIDENCE, len(values) - 1, loc=mean, scale=stats.sem(values))
    return mean, float(high - mean)


def mean_scores(row: Row) -> dict[str, float]:
    """Column -> mean over the records of a row, and half the width of its interval."""
    values = {}
    for embedding in EMBEDDINGS:
        for metric in {m for record in row for m in record.scores.get(embedding, {})}:
            scores = [
                r.scores[embedding][metric] for r in row if metric in r.scores.get(embedding, {})
            ]
            mean, half_width = mean_and_interval(scores)
            values[f"{metric}_{embedding}"] = mean
            values[f"{metric}_{embedding}{INTERVAL}"] = half_width
    return values


def mean_over_searches(searches: Searches) -> dict[str, float]:
    """The same over searches; that of the reproductions if there is one search."""
    by_search = [mean_scores(row) for row in searches]
    if len(by_search) == 1:
        return by_search[0]
    values: dict[str, float] = {}
    for name in set.intersection(*(set(scores) for scores in by_search)):
        if not name.endswith(INTERVAL):
            mean, half_width = mean_and_interval([scores[name] for scores in by_search])
            values |= {name: mean, f"{name}{INTERVAL}": half_width}
    return values
