"""Intervals, paired tests, corrections and ranks, against scipy and worked examples."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from harness.judgement.stats import (
    average_ranks,
    critical_difference,
    friedman,
    holm,
    mean_and_interval,
    paired,
)


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


# Of ten pairs.
DIFFERENCES = [0.3, 0.1, -0.2, 0.4, 0.5, 0.0, 0.2, -0.1, 0.6, 0.1]


def test_the_paired_t_test_of_a_worked_example() -> None:
    """Mean 0.19, s = 0.26013, d_z = 0.73038, t = d_z sqrt(10) = 2.30969; p from scipy's t."""
    result = paired(DIFFERENCES)
    mean, deviation = np.mean(DIFFERENCES), np.std(DIFFERENCES, ddof=1)
    assert result.n == 10 and result.mean == pytest.approx(0.19)
    assert result.effect == pytest.approx(mean / deviation)
    t = mean / (deviation / 10**0.5)
    assert result.t_test == pytest.approx(2 * stats.t.sf(t, 9))


def test_the_paired_t_test_is_that_of_two_samples() -> None:
    rng = np.random.default_rng(1)
    one, other = rng.normal(0.2, 1, 8), rng.normal(0, 1, 8)
    result = paired((one - other).tolist())
    assert result.t_test == pytest.approx(stats.ttest_rel(one, other).pvalue)
    assert result.wilcoxon == pytest.approx(stats.wilcoxon(one, other).pvalue)


def test_wilcoxon_of_a_worked_example() -> None:
    """Ranks 1..6, all differences positive: 2 of the 2^6 orders of signs are as extreme."""
    assert paired([0.1, 0.2, 0.3, 0.4, 0.5, 0.6]).wilcoxon == pytest.approx(2 / 64)


def test_four_pairs_have_no_p_value_and_five_no_wilcoxon() -> None:
    four, five = paired(DIFFERENCES[:4]), paired(DIFFERENCES[:5])
    assert four.t_test is None and four.wilcoxon is None and four.effect is not None
    assert five.t_test is not None and five.wilcoxon is None


def test_equal_runs_do_not_differ_and_no_runs_say_nothing() -> None:
    assert paired([0.0] * 6).t_test == 1 and paired([0.1] * 6).t_test == 0
    assert paired([]).t_test is None and paired([]).n == 0


def test_holm_of_a_worked_example() -> None:
    """0.005 x 4, 0.01 x 3, then 0.03 x 2; 0.04 x 1 is raised to what comes before it."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_holm_is_capped_and_leaves_a_single_test_alone() -> None:
    assert holm([0.7, 0.6]) == [1, 1]
    assert holm([0.02]) == [0.02]
    assert holm([]) == []


def test_average_ranks_of_a_worked_example() -> None:
    """Ranks 1 2 3, then 2 1 3, then 1.5 1.5 3."""
    scores = [[0.9, 0.8, 0.1], [0.3, 0.4, 0.2], [0.5, 0.5, 0.4]]
    assert average_ranks(scores) == pytest.approx([1.5, 1.5, 3])


def test_friedman_is_scipys_and_needs_three_methods_on_five_sets() -> None:
    scores = np.random.default_rng(4).random((6, 3))
    assert friedman(scores.tolist()) == stats.friedmanchisquare(*scores.T).pvalue
    assert friedman(scores[:4].tolist()) is None and friedman(scores[:, :2].tolist()) is None
    assert friedman([[0.5] * 3] * 6) is None  # all tie: nothing to be tested


def test_the_critical_difference_is_that_of_demsars_table() -> None:
    # Demšar 2006, Table 5a: q at 0.05 is 2.569 for four methods; his example has 14 data sets.
    assert critical_difference(4, 14) == pytest.approx(2.569 * np.sqrt(4 * 5 / (6 * 14)), abs=1e-3)
