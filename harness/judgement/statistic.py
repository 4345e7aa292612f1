"""The one statistic of all comparisons: search noise, seed noise and test classes together.

Every function takes arrays and broadcasts, so that a simulation of thousands of tables uses the
same code as one comparison. docs/statistics.md explains the formulas.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

LEVEL = 0.05  # of a Holm-corrected p-value that is called a difference
CONFIDENCE = 1 - LEVEL

# Fewer test classes give no answer: their own variance is estimated too badly.
MIN_CLASSES = 10
# Fewer shared reproductions give no answer where no method was searched twice.
MIN_PAIRS = 5

# Weight of the variance that all rows of a table share, in degrees of freedom.
MOST_PRIOR = 4

Array = Any  # a float or an array of floats, whatever the caller passes


@dataclass(frozen=True)
class Noise:
    """What another run of the same experiment would change in the score of a row.

    Attributes:
        single: variance of the mean score of one search; 0 where nothing is random.
        of_mean: variance of the row's score, the mean over its searches.
        freedom: degrees of freedom of both; infinite where nothing is random.
    """

    single: Array
    of_mean: Array
    freedom: Array

    def __getitem__(self, index: Any) -> Noise:
        """Some of many rows, where the fields are arrays."""
        shape = np.shape(self.single)
        parts = (np.broadcast_to(part, shape)[index] for part in (self.of_mean, self.freedom))
        return Noise(np.asarray(self.single)[index], *parts)


NO_NOISE = Noise(0.0, 0.0, np.inf)


def pooled(variances: ArrayLike, degrees: ArrayLike) -> tuple[Array, Array]:
    """Variance that rows share, and its degrees of freedom; over the last axis.

    Args:
        variances: sample variance of each row over its searches.
        degrees: number of searches of each row, less one.
    """
    variance, weight = np.asarray(variances, float), np.asarray(degrees, float)
    total = weight.sum(axis=-1)
    return (weight * variance).sum(axis=-1) / total, total


def moderated(own: ArrayLike, searches: ArrayLike, shared: ArrayLike, freedom: ArrayLike) -> Noise:
    """Search and seed noise of a row: its own variance, drawn towards that of the table.

    Three searches alone give a variance with two degrees of freedom, which is far too uncertain.

    Args:
        own: sample variance over the row's searches; ignored for a single search.
        searches: number of searches of the row.
        shared, freedom: variance that the rows of the table share, as `pooled` gives it.
    """
    count = np.asarray(searches, float)
    prior = np.minimum(MOST_PRIOR, freedom)
    total = prior + count - 1
    variance = (prior * np.asarray(shared) + (count - 1) * np.asarray(own)) / total
    return Noise(variance, variance / count, total)


def class_variance(differences: ArrayLike, queries: ArrayLike, mean: ArrayLike) -> Array:
    """Variance of a difference over draws of test classes; classes on the last axis.

    Args:
        differences: on each class, averaged over its queries and over runs.
        queries: number of queries of each class.
        mean: the difference over all queries.
    """
    d, q = np.asarray(differences, float), np.asarray(queries, float)
    count = d.shape[-1]
    squares = (q**2 * (d - np.asarray(mean)[..., None]) ** 2).sum(axis=-1)
    return count / (count - 1) * squares / q.sum(axis=-1) ** 2


@dataclass(frozen=True)
class Spread:
    """Standard error of a difference, with its degrees of freedom (Satterthwaite)."""

    error: Array
    freedom: Array

    @property
    def half_width(self) -> Array:
        """Half the width of the 95% confidence interval."""
        return stats.t.ppf(1 - LEVEL / 2, self.freedom) * self.error

    def p_value(self, difference: ArrayLike) -> Array:
        """Two-sided p-value of no difference."""
        return 2 * stats.t.sf(_ratio(np.abs(difference), self.error), self.freedom)

    def bound(self, difference: ArrayLike) -> Array:
        """Size that the true difference does not exceed, with 95% confidence on each side."""
        return np.abs(difference) + stats.t.ppf(1 - LEVEL, self.freedom) * self.error

    def p_beyond(self, difference: ArrayLike, margin: float) -> Array:
        """P-value of a true difference beyond a margin: the larger of two one-sided tests."""
        return stats.t.sf(_ratio(margin - np.abs(difference), self.error), self.freedom)


def together(one: Noise, other: Noise, classes: ArrayLike = 0.0, num_classes: int = 2) -> Spread:
    """The standard error of a difference, from all of its sources.

    Args:
        classes: variance over test classes; 0 leaves them out.
    """
    parts = (
        (one.of_mean, one.freedom),
        (other.of_mean, other.freedom),
        (np.asarray(classes, float), num_classes - 1),
    )
    variance = sum(np.asarray(part, float) for part, _ in parts)
    uncertainty = sum(np.asarray(part, float) ** 2 / freedom for part, freedom in parts)
    certain = np.asarray(uncertainty) == 0
    freedom = np.where(certain, np.inf, variance**2 / np.where(certain, 1.0, uncertainty))
    return Spread(np.sqrt(variance), freedom)


def outperforming(difference: ArrayLike, one: Noise, other: Noise) -> tuple[Array, Array, Array]:
    """Probability that the first is ahead in a repetition on the same classes, with its interval.

    A repetition is one more search of each row with its reproductions (Bouthillier et al., 2021).
    """
    scale = np.sqrt(np.asarray(one.single, float) + np.asarray(other.single, float))
    half = together(one, other).half_width
    low, middle, high = (
        stats.norm.cdf(_ratio(np.asarray(difference) + shift, scale)) for shift in (-half, 0, half)
    )
    return middle, low, high


def holm(p_values: ArrayLike, tests: int | None = None) -> Array:
    """P-values corrected so that a family has any false claim in at most 5% of cases.

    Args:
        p_values: of a family, on the last axis.
        tests: size of the family, where some of its tests were planned and not made.
    """
    values = np.asarray(p_values, float)
    order = np.argsort(values, axis=-1)
    factors = (tests or values.shape[-1]) - np.arange(values.shape[-1])
    raised = np.maximum.accumulate(factors * np.take_along_axis(values, order, -1), axis=-1)
    corrected = np.empty_like(values)
    np.put_along_axis(corrected, order, np.minimum(raised, 1), axis=-1)
    return corrected


def searches_to_decide(
    difference: float,
    single: tuple[float, float],
    classes: float,
    num_classes: int,
    level: float,
) -> int | None:
    """Searches of each row at which a difference of this size would be called one.

    Args:
        single: variance of one search of each row; 0 for a row that draws nothing.
        classes: variance over test classes.
        level: of the uncorrected p-value; 0.05 divided by what Holm multiplies it with.

    Returns:
        None if the test classes alone leave too much noise, or nearly so.
    """
    for count in range(2, MOST_SEARCHES + 1):
        one, other = (Noise(v, v / count, MOST_PRIOR + count - 1) for v in single)
        if together(one, other, classes, num_classes).p_value(difference) < level:
            return count
    return None


MOST_SEARCHES = 100  # more are no answer that helps anybody


def _ratio(value: ArrayLike, scale: ArrayLike) -> Array:
    """A quotient in which nothing over nothing is 0."""
    value, scale = np.broadcast_arrays(np.asarray(value, float), np.asarray(scale, float))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(value == 0, 0.0, value / scale)
