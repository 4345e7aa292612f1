"""Intervals of mean scores, against scipy and worked examples."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from harness.tables.mean_scores import mean_and_interval


def test_the_interval_of_a_worked_example() -> None:
    """1, 2, 3, 4: s = 1.29099, s / 2 = 0.645497, t(0.975, 3) = 3.182446."""
    mean, half_width = mean_and_interval([1.0, 2.0, 3.0, 4.0])
    assert mean == 2.5
    assert half_width == pytest.approx(3.182446 * 0.645497, rel=1e-5)


def test_the_interval_is_that_of_a_t_test() -> None:
    values = np.random.default_rng(0).normal(5, 2, 10)
    mean, half_width = mean_and_interval(values.tolist())
    low, high = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert (mean - half_width, mean + half_width) == pytest.approx((low, high))


def test_one_value_has_no_interval() -> None:
    mean, half_width = mean_and_interval([0.25])
    assert mean == 0.25 and np.isnan(half_width)


def test_equal_values_have_an_interval_of_zero() -> None:
    assert mean_and_interval([0.5, 0.5, 0.5]) == (0.5, 0.0)
