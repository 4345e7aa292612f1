"""When a trial is hopeless, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from harness.pruning import expected_score, is_hopeless

# The best is the first, at 0.5; fold 0 is hard and fold 3 is easy for all.
FOLDS = np.array([-0.2, 0.0, 0.0, 0.2])
COMPLETE = [
    0.5 + FOLDS,
    0.4 + FOLDS,
    0.4 + FOLDS + [-0.03, 0.01, 0.01, 0.01],  # after one fold it seems to lag by 0.13, not 0.1
    0.3 + FOLDS,
    0.3 + FOLDS + [0.01, 0.01, 0.0, -0.02],
]


def test_a_trial_must_lag_by_twice_what_first_folds_have_misled_by() -> None:
    """After one fold the largest error is 0.03, so that more than 0.06 is hopeless."""
    assert is_hopeless([0.5 - 0.2 - 0.0601], COMPLETE)
    assert not is_hopeless([0.5 - 0.2 - 0.0599], COMPLETE)


def test_the_more_folds_are_done_the_less_it_takes() -> None:
    """After two folds the largest error is 0.01: that of (-0.03 + 0.01) / 2."""
    lag = np.array([0.021, 0.021])
    assert is_hopeless((0.5 + FOLDS[:2] - lag).tolist(), COMPLETE)
    assert not is_hopeless((0.5 + FOLDS[:1] - lag[:1]).tolist(), COMPLETE)


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
    rng = np.random.default_rng(0)
    for _ in range(200):
        complete = (rng.normal(0, 0.1, (8, 1)) + rng.normal(0, 0.05, (8, 4))).tolist()
        best = max(np.mean(folds) for folds in complete)
        for folds in complete:
            if any(is_hopeless(folds[:done], complete) for done in (1, 2, 3)):
                assert np.mean(folds) < best
