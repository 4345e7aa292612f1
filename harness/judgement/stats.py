"""What can be said of scores from few runs: intervals, paired tests, ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

CONFIDENCE = 0.95
LEVEL = 0.05  # of a p-value that is called a difference

# From fewer pairs no p-value is given. A t-test of three misses a difference of two standard
# deviations every other time, one of five every tenth; readers would take that for equality.
MIN_PAIRS = 5
# The smallest p-value of a two-sided Wilcoxon test of five pairs is 0.0625.
MIN_PAIRS_WILCOXON = 6

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


@dataclass(frozen=True)
class Paired:
    """Differences of two methods in runs that share their seeds.

    Attributes:
        mean, half_width: of the differences, with the 95 % t-interval.
        t_test, wilcoxon: two-sided p-values; None from too few pairs.
        effect: Cohen's d_z, the mean over the standard deviation of the differences; None if
            they do not vary.
    """

    n: int
    mean: float
    half_width: float
    t_test: float | None
    wilcoxon: float | None
    effect: float | None


def paired(differences: Sequence[float]) -> Paired:
    """What differences of paired runs say about a true difference."""
    n = len(differences)
    if n == 0:
        return Paired(0, float("nan"), float("nan"), None, None, None)
    mean, half_width = mean_and_interval(differences)
    if np.ptp(differences) < ROUNDING:
        # Runs without any spread are copies of one another: either all equal, or all apart.
        certain = None if n < MIN_PAIRS else float(abs(mean) < ROUNDING)
        return Paired(n, mean, half_width, certain, None, None)
    return Paired(
        n,
        mean,
        half_width,
        t_test=float(stats.ttest_1samp(differences, 0).pvalue) if n >= MIN_PAIRS else None,
        wilcoxon=float(stats.wilcoxon(differences).pvalue) if n >= MIN_PAIRS_WILCOXON else None,
        effect=mean / float(np.std(differences, ddof=1)),
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values of several tests, raised so that any false one among them stays at its level."""
    order = np.argsort(p_values)
    factors = len(p_values) - np.arange(len(p_values))
    raised = np.maximum.accumulate(factors * np.asarray(p_values)[order])
    adjusted = np.empty(len(p_values))
    adjusted[order] = np.minimum(raised, 1)
    return adjusted.tolist()


def average_ranks(scores: Sequence[Sequence[float]]) -> list[float]:
    """Mean over data sets of each method's rank, 1 for the highest score, ties shared.

    Args:
        scores: one row per data set, one column per method.
    """
    return stats.rankdata(-np.asarray(scores), axis=1).mean(axis=0).tolist()


def critical_difference(methods: int, datasets: int) -> float:
    """Nemenyi's: average ranks that are closer than this are not told apart, at LEVEL."""
    quantile = float(stats.studentized_range.ppf(1 - LEVEL, methods, np.inf)) / np.sqrt(2)
    return float(quantile * np.sqrt(methods * (methods + 1) / (6 * datasets)))


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Spearman's; None if either has no order."""
    if np.ptp(one) < ROUNDING or np.ptp(other) < ROUNDING:
        return None
    return float(stats.spearmanr(one, other).statistic)


def friedman(scores: Sequence[Sequence[float]]) -> float | None:
    """P-value of all methods being equal; None below three methods or five data sets, or of ties.

    Where all methods tie on every data set, there is nothing to be tested.
    """
    table = np.asarray(scores)
    if table.shape[0] < MIN_PAIRS or table.shape[1] < 3 or not np.ptp(table, axis=1).any():
        return None
    return float(stats.friedmanchisquare(*table.T).pvalue)
