"""What can be said of a mean from few values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import stats


def mean_and_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Mean, and half the width of its t-interval: NaN for a single value."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return mean, float("nan")
    error = stats.sem(values)
    if error == 0:
        return mean, 0.0
    _, high = stats.t.interval(confidence, len(values) - 1, loc=mean, scale=error)
    return mean, float(high - mean)
