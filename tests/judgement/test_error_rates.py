"""Simulated tables: the judgement keeps its promise, the rule that it replaced did not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.judgement import (
    REPRODUCTIONS,
    Components,
    error_rates,
    measure,
    old_error_rates,
    power,
)

MOST = 0.06  # of false claims
# What the committed records have; `test_the_components...` holds it.
MEASURED = Components(search=0.33, seed=0.12, method_class=0.4, search_class=1.02, run_class=0.74)


def test_the_components_are_those_of_the_committed_records() -> None:
    assert vars(measure()) == pytest.approx(vars(MEASURED), abs=0.005)


@pytest.mark.parametrize("reproductions", REPRODUCTIONS.values(), ids=REPRODUCTIONS)
@pytest.mark.parametrize(
    "components",
    [
        MEASURED,
        replace(MEASURED, search=0.0, search_class=0.0),  # seeds and classes alone
        replace(MEASURED, method_class=0.0, search_class=0.0, run_class=0.0),  # searches alone
        replace(MEASURED, method_class=2.0),  # test classes alone
    ],
    ids=["measured", "no search noise", "no classes", "classes"],
)
def test_false_claims_are_rare(components: Components, reproductions: tuple[int, ...]) -> None:
    rates = error_rates(1000, components, reproductions)
    assert max(rates.pair, rates.planned, rates.others) <= MOST


def test_differences_that_matter_are_found() -> None:
    planned, other = power(300, MEASURED, (4, 4, 4), 2.0)
    assert planned > 0.95 and other > 0.9
    assert power(300, MEASURED, (4, 4, 4), 1.0)[0] > 0.6


def test_the_former_rule_of_two_tests_had_too_many_false_claims() -> None:
    pair, table = old_error_rates(100, MEASURED)
    assert pair > 0.3 and table > 0.9  # it knew no search noise
    pair, _ = old_error_rates(100, replace(MEASURED, search=0.0, search_class=0.0))
    assert pair > MOST
