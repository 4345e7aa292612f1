"""Selection rules and the measures of how well they choose, by hand."""

from __future__ import annotations

import pytest

from harness.calibration.selection_rules import (
    Outcome,
    correlation,
    describe,
    interval,
    random_regret,
    regret,
    rules_for,
    smoothed_best,
    spread,
)


def outcome(folds: float, partitions: list[float], test: float) -> Outcome:
    return Outcome("a", {}, folds, folds, partitions, {"concatenated": test, "separated": test})


# Folds prefer the worst one; the first partition the second best; three partitions the best.
POOL = [
    outcome(0.9, [0.2, 0.2, 0.2], 0.10),
    outcome(0.5, [0.5, 0.3, 0.3], 0.20),
    outcome(0.1, [0.4, 0.5, 0.5], 0.25),
]
FOLDS, _, PAIRS, TWO = rules_for(2)


def test_each_rule_picks_and_regrets_what_it_should() -> None:
    assert [rule.choice(POOL) for rule in (FOLDS, PAIRS, TWO)] == [0, 1, 2]
    lost = [regret(rule, [POOL], "concatenated") for rule in (FOLDS, PAIRS, TWO)]
    assert lost == pytest.approx([0.15, 0.05, 0.0])
    assert random_regret([POOL], "concatenated") == pytest.approx(0.25 - 0.55 / 3)


def test_rank_correlations_are_means_over_losses() -> None:
    found = [correlation(rule, [POOL], "concatenated") for rule in (FOLDS, PAIRS, TWO)]
    assert found == pytest.approx([-1.0, 0.5, 1.0])
    assert correlation(PAIRS, [POOL, POOL[:2]], "concatenated") == pytest.approx(0.75)


def test_only_finalists_of_the_first_partition_can_win() -> None:
    many = [outcome(0.1, [0.9 - 0.1 * i, 0.1, 0.1], 0.2) for i in range(5)]
    late = outcome(0.1, [0.3, 1.0, 1.0], 0.3)
    assert TWO.choice([*many, late]) == 0
    assert TWO.choice([*many[:4], late]) == 4


def test_intervals_draw_configurations() -> None:
    low, high = interval(lambda pools: regret(FOLDS, pools, "concatenated"), [POOL], draws=200)
    assert low == pytest.approx(0.0) and high == pytest.approx(0.15)


def test_a_smoothed_score_is_the_best_mean_over_neighbours() -> None:
    scores = [0.0, 0.1, 0.9, 0.1, 0.0, 0.3, 0.4, 0.3, 0.4, 0.3]
    history = [(step, 0.0, score) for step, score in enumerate(scores)]
    assert smoothed_best(history) == pytest.approx(0.34)
    assert smoothed_best(history[:2]) == pytest.approx(0.05)


def test_a_spread_is_even_by_rank_over_the_better_half_of_finished_trials() -> None:
    scores = [0.1, 0.9, None, 0.5, 0.7, 0.2, 0.8, 0.6, 0.3, 0.4, 0.0]
    # Ten are finished; the better five in order are numbers 1, 6, 4, 7 and 3.
    assert spread(scores, 3) == [1, 4, 3]
    assert spread([0.2, None, 0.4], 8) == [2, 0]


def test_the_report_has_every_rule_for_every_loss_and_over_all_losses() -> None:
    lines = describe({"a": POOL, "b": POOL[1:]}, rotations=2)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if "|" in line]
    of_a = {rule: (rank, lost) for loss, rule, rank, lost in rows[: len(rows) // 2] if loss == "a"}
    assert of_a["folds"] == ("-1.00 (-1.00 to -1.00)", "15.00 (0.00 to 15.00)")
    assert of_a["pairs, 2 rotations"][1].startswith("0.00")
    assert of_a["random choice"] == ("0", "6.67")
    names = {rule for _, rule, *_ in rows} - {"rule", "---"}
    assert {(loss, rule) for loss, rule, *_ in rows if rule in names} == {
        (loss, rule) for loss in ("a", "b", "all") for rule in names
    }
    assert max(map(len, (line for line in lines if "|" in line))) <= 80
