"""The statistic, against plain loops and other libraries."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from harness.judgement.statistic import (
    NO_NOISE,
    Noise,
    class_variance,
    holm,
    moderated,
    outperforming,
    pooled,
    searches_to_decide,
    together,
)

RNG = np.random.default_rng(0)


def test_the_noise_of_a_row_is_drawn_towards_that_of_the_table() -> None:
    """Rows of 3, 2 and 4 searches: 6 degrees of freedom, of which 4 count as prior."""
    variances, searches = [2.0, 5.0, 1.0], [3, 2, 4]
    shared, freedom = pooled(variances, [count - 1 for count in searches])
    assert shared == pytest.approx((2 * 2.0 + 1 * 5.0 + 3 * 1.0) / 6)
    assert freedom == 6
    noise = moderated(variances[0], searches[0], shared, freedom)
    assert noise.single == pytest.approx((4 * 2.0 + 2 * 2.0) / 6)
    assert (noise.of_mean, noise.freedom) == (pytest.approx(noise.single / 3), 6)


def test_a_row_of_one_search_has_the_noise_of_the_others() -> None:
    noise = moderated(0.0, 1, 3.0, 2.0)  # two degrees of freedom are fewer than four
    assert (noise.single, noise.of_mean, noise.freedom) == (3.0, 3.0, 2.0)


def test_classes_of_equal_size_have_the_variance_of_a_mean() -> None:
    differences = RNG.standard_normal(20)
    expected = differences.var(ddof=1) / 20
    found = class_variance(differences, np.full(20, 7), differences.mean())
    assert found == pytest.approx(expected)


def test_the_variance_over_classes_weighs_them_by_queries() -> None:
    differences, queries = [0.5, -1.0, 2.0], [10, 30, 5]
    mean = sum(d * q for d, q in zip(differences, queries, strict=True)) / sum(queries)
    total = 0.0
    for d, q in zip(differences, queries, strict=True):
        total += q**2 * (d - mean) ** 2
    expected = 3 / 2 * total / sum(queries) ** 2
    assert class_variance(differences, queries, mean) == pytest.approx(expected)


def test_two_noisy_means_are_compared_as_by_welch() -> None:
    """Without test classes it is Welch's test, which scipy has."""
    one, other = RNG.standard_normal(5), 1 + 2 * RNG.standard_normal(8)
    noises = [Noise(x.var(ddof=1), x.var(ddof=1) / len(x), len(x) - 1) for x in (one, other)]
    spread = together(*noises)
    expected = stats.ttest_ind(one, other, equal_var=False)
    difference = one.mean() - other.mean()
    assert spread.p_value(difference) == pytest.approx(expected.pvalue)
    interval = expected.confidence_interval(0.95)
    assert difference - spread.half_width == pytest.approx(interval.low)


def test_all_sources_of_noise_add_up() -> None:
    spread = together(Noise(9.0, 3.0, 4), Noise(4.0, 2.0, 6), 5.0, 100)
    assert spread.error == pytest.approx(math.sqrt(10))
    assert spread.freedom == pytest.approx(100 / (9 / 4 + 4 / 6 + 25 / 99))


def test_rows_without_any_noise_differ_for_certain_or_not_at_all() -> None:
    certain = together(NO_NOISE, NO_NOISE)
    assert (certain.p_value(0.1), certain.p_value(0.0)) == (0.0, 1.0)


def test_a_bound_is_where_the_one_sided_test_of_a_margin_reaches_its_level() -> None:
    spread = together(Noise(1.0, 1.0, 9), NO_NOISE)
    bound = spread.bound(-0.3)
    assert spread.p_beyond(-0.3, bound) == pytest.approx(0.05)


def test_the_probability_of_outperforming_is_that_of_one_repetition() -> None:
    one, other = Noise(3.0, 1.0, 8), Noise(1.0, 0.25, 8)
    middle, low, high = outperforming(1.0, one, other)
    draws = RNG.normal(1.0, math.sqrt(3), 200_000) > RNG.normal(0.0, 1.0, 200_000)
    assert middle == pytest.approx(draws.mean(), abs=0.005)
    assert low < 0.5 < middle < high
    assert outperforming(0.0, NO_NOISE, NO_NOISE)[0] == 0.5


def by_hand(p_values: list[float], tests: int) -> list[float]:
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    corrected, highest = [0.0] * len(p_values), 0.0
    for place, index in enumerate(order):
        highest = max(highest, min(1.0, (tests - place) * p_values[index]))
        corrected[index] = highest
    return corrected


def test_holm_counts_planned_tests_that_were_not_made() -> None:
    p_values = [0.01, 0.04, 0.03, 0.005]
    assert holm(p_values) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm(p_values, 6) == pytest.approx(by_hand(p_values, 6))


def test_holm_corrects_every_family_of_an_array_by_itself() -> None:
    p_values = RNG.random((5, 7)) ** 3
    for row, corrected in zip(p_values, holm(p_values), strict=True):
        assert corrected == pytest.approx(by_hand(row.tolist(), 7))


def test_searches_that_decide_a_pair_are_those_at_which_its_p_value_falls_below_the_level() -> None:
    count = searches_to_decide(0.5, (0.3, 0.3), 0.01, 100, 0.05)
    assert count is not None
    for searches, decided in ((count - 1, False), (count, True)):
        noise = Noise(0.3, 0.3 / searches, 4 + searches - 1)
        assert (together(noise, noise, 0.01, 100).p_value(0.5) < 0.05) == decided


def test_no_number_of_searches_decides_what_the_test_classes_leave_open() -> None:
    assert searches_to_decide(0.5, (0.3, 0.3), 0.1, 100, 0.05) is None
