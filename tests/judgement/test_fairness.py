"""The rules by which a row is said to have had no fair chance, worked by hand."""

from __future__ import annotations

import math

import pytest

from harness.judgement.fairness import not_flat, share_at_limit, spread, standard_error

# Mean 0.5, deviations 0.1: standard deviation 0.1 * sqrt(4 / 3), half of it is the error.
FOLDS = [0.4, 0.6, 0.4, 0.6]
ERROR = 0.1 * math.sqrt(4 / 3) / 2


def test_the_spread_over_folds_and_the_error_of_their_mean() -> None:
    assert spread(FOLDS) == pytest.approx(2 * ERROR)
    assert standard_error(FOLDS) == pytest.approx(ERROR)
    assert spread([0.5]) is None and standard_error([0.5]) == 0


# Of the best of the first eight trials: folds differ in difficulty far more than trials do.
BEST = [0.1, 0.5, 0.9, 0.5]


def over_best(*differences: float) -> list[float]:
    return [fold + more for fold, more in zip(BEST, differences, strict=True)]


@pytest.mark.parametrize(
    ("last_two", "expected"),
    [
        # 0.01 on average; the differences have errors of 0, 0.01 * sqrt(4 / 3) / 2 and 0.0122.
        ([BEST, over_best(0.01, 0.01, 0.01, 0.01)], True),
        ([BEST, over_best(0.02, 0.0, 0.02, 0.0)], True),
        ([BEST, over_best(0.04, 0.01, -0.02, 0.01)], False),
        ([over_best(0.01, 0.01, 0.01, 0.01), [0.1] * 4], True),
        ([None, over_best(0.01, 0.01, 0.01, 0.01)], True),
        ([None, None], False),
        ([over_best(-0.01, -0.01, -0.01, -0.01), [0.3] * 4], False),
    ],
)
def test_a_search_is_not_flat_if_its_last_fifth_gained_more_than_one_error_on_the_same_folds(
    last_two: list[list[float] | None], expected: bool
) -> None:
    earlier = [[0.1] * 4, None, BEST, [0.3] * 4, [0.2] * 4, None, [0.4] * 4, [0.1] * 4]
    assert not_flat([*earlier, *last_two]) is expected


def test_what_was_found_before_the_last_fifth_does_not_count() -> None:
    """35 trials: the last seven are numbers 28 to 34."""
    for trial, expected in ((27, False), (28, True), (34, True)):
        assert not_flat([[0.9 if i == trial else 0.1] * 4 for i in range(35)]) is expected


def test_a_search_that_found_nothing_before_its_last_fifth_is_not_flat() -> None:
    assert not_flat([FOLDS]) and not_flat([None, None, None, None, FOLDS])
    assert not not_flat([]) and not not_flat([None, None])


def test_models_at_the_step_limit_are_counted() -> None:
    assert share_at_limit(["patience", "max_steps", "patience", "patience"]) == 0.25
    assert share_at_limit([]) is None
