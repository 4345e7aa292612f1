"""Average ranks and their tests, against scipy and worked examples."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from harness.judgement.ranks import average_ranks, critical_difference, friedman


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
