"""When a trial is hopeless, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from harness.searching.pruning import expected_score, is_hopeless

# The best is the first, at 0.5; fold 0 is hard and fold 3 is easy for all. Beside that, the folds
# of the third and fifth deviate. On fold 0 these two differ by 0.04 more than in the mean, which is
# the most that luck has done.
FOLDS = np.array([-0.2, 0.0, 0.0, 0.2])
COMPLETE = [
    0.5 + FOLDS,
    0.4 + FOLDS,
    0.4 + FOLDS + [-0.03, 0.01, 0.01, 0.01],
    0.3 + FOLDS,
    0.3 + FOLDS + [0.01, 0.01, 0.0, -0.02],
]


@pytest.mark.parametrize(("done", "limit"), [(1, 0.06), (2, 0.04), (3, 0.02)])
def test_a_trial_must_lag_by_more_than_luck_could_make_up_for(done: int, limit: float) -> None:
    """Twice 0.04 on each of the folds to come: on three of four, 0.08 * 3 / 4 in the mean."""
    best = 0.5 + FOLDS[:done]
    assert is_hopeless((best - limit - 0.0001).tolist(), COMPLETE)
    assert not is_hopeless((best - limit + 0.0001).tolist(), COMPLETE)


def test_a_hard_fold_alone_condemns_nobody() -> None:
    """0.3 on the hard fold is far below the mean of the best, 0.5, and yet as good as the best."""
    assert not is_hopeless([0.3], COMPLETE)


def test_few_trials_show_nothing_and_the_last_fold_decides_nothing() -> None:
    assert not is_hopeless([0.0], COMPLETE[:4])
    assert not is_hopeless([0.0, 0.0, 0.0, 0.0], COMPLETE)
    assert is_hopeless([0.0, 0.0, 0.0], COMPLETE)


def test_the_expected_score_takes_the_lag_off_the_best() -> None:
    assert expected_score([0.2], COMPLETE) == pytest.approx(0.4)  # not 0.2: the fold is hard
    assert expected_score([0.2, 0.3], COMPLETE) == pytest.approx(0.5 - 0.15)


def test_a_lead_that_later_folds_overturned_before_is_never_pruned_again() -> None:
    """Whatever the scores: a complete trial, run again, is stopped only if it lags at the end."""
    rng, stopped = np.random.default_rng(0), 0
    for _ in range(200):
        complete = (rng.normal(0, 0.1, (8, 1)) + rng.normal(0, 0.05, (8, 4))).tolist()
        best = max(np.mean(folds) for folds in complete)
        for folds in complete:
            if any(is_hopeless(folds[:done], complete) for done in (1, 2, 3)):
                assert np.mean(folds) < best
                stopped += 1
    assert stopped > 100
