"""The selection benchmark: its rules and measures, by hand, and a run from end to end."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import selection
from benchmarks.selection import (
    Outcome,
    correlation,
    interval,
    random_regret,
    recorded_pool,
    regret,
    rules_for,
    smoothed_best,
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


def test_the_pool_is_the_better_half_of_the_recorded_trials() -> None:
    table = Path(__file__).parents[2] / "results" / "frozen" / "cub-efficientnet_lite0"
    config, pool = recorded_pool(table, "proxyanchor", 6)
    assert (config.dataset, config.protocol) == ("cub", "frozen")
    assert len(pool) == 6 and all({"margin", "head_lr"} <= params.keys() for params in pool)
    assert len({str(params) for params in pool}) == 6


@pytest.mark.slow
def test_the_benchmark_runs_and_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = "--protocol frozen+max_steps=4+validate_every=2 --losses contrastive"
    sizes = f"--configurations 2 --rotations 0 --seeds 1 --runs-dir {tmp_path / 'runs'}"
    monkeypatch.setattr(sys, "argv", ["selection", *flags.split(), *sizes.split()])
    selection.main()
    first = capsys.readouterr().out
    assert "concatenated test MAP@R: a random choice loses" in first and "pairs" in first
    outcomes = list((tmp_path / "runs" / "outcomes").iterdir())
    for checkpoint in (tmp_path / "runs").rglob("record.json"):
        checkpoint.unlink()  # outcomes alone are enough
    selection.main()
    assert capsys.readouterr().out == first
    assert len(outcomes) == 2 and not list((tmp_path / "runs").rglob("record.json"))
