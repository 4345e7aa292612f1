"""Finalists: which trials are scored again, what wins, and that finished work is reused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import FOLDER, study_of
from optuna.distributions import FloatDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from harness.cli import main
from harness.config import RunConfig
from harness.errors import HarnessError
from harness.evaluation.reproductions import evaluate
from harness.experiment import build_experiment
from harness.judgement.fairness import rises
from harness.records.layout import EMBEDDINGS, JOURNAL
from harness.records.records import FoldRecord, TestRecord
from harness.searching import finalist_work
from harness.searching.finalists import finalists_in, key_of, partition_noise, winner_of
from harness.searching.loop import search
from harness.searching.trials import index_of
from harness.tables import leaderboard
from harness.tables.rendering import describe_columns, to_markdown
from harness.training import fold as training
from harness.training.trainer import TrainingFailed
from harness.training.unit import Unit

PAIRS = FOLDER.replace("mlrc+", "mlrc-pairs+") + "+finalists=2+rotations=2"
TWO = {"finalists": 2, "rotations": 2}


def trial(index: int, score: float, x: float | None = None) -> FrozenTrial:
    facts = {"index": index, "folds": [0.9] * 4, "scores": [score - 0.1, score + 0.1]}
    return create_trial(
        state=TrialState.COMPLETE,
        params={"x": index / 10 if x is None else x},
        distributions={"x": FloatDistribution(0, 1)},
        values=[score],
        user_attrs=facts,
    )


def kept(one: FrozenTrial, *scores: float) -> dict[str, Any]:
    return {
        key_of(one, number): {"params": one.params, "scores": [score, score]}
        for number, score in enumerate(scores, start=1)
    }


def test_the_best_distinct_trials_are_finalists_and_the_earlier_of_equals() -> None:
    trials = [trial(0, 0.3), trial(1, 0.5), trial(2, 0.5), trial(3, 0.6, x=0.0), trial(4, 0.2)]
    found = finalists_in(trials, {}, {"finalists": 3})
    assert [index_of(one.trial) for one in found] == [3, 1, 2]
    same = [trial(0, 0.3), trial(1, 0.3, x=0.0), trial(2, 0.1)]
    assert [index_of(one.trial) for one in finalists_in(same, {}, TWO)] == [0, 2]


def test_there_is_no_final_between_fewer_than_two_or_without_finalists() -> None:
    assert finalists_in([trial(0, 0.3)], {}, TWO) == []
    assert finalists_in([trial(0, 0.3), trial(1, 0.4)], {}, {}) == []


def test_the_best_mean_over_all_partitions_wins() -> None:
    lucky, steady = trial(0, 0.50), trial(1, 0.48)
    some = {**kept(lucky, 0.41, 0.43), **kept(steady, 0.47)}
    finalists = finalists_in([lucky, steady], some, TWO)
    assert [one.missing for one in finalists] == [[], [2]]
    assert winner_of(finalists) is None
    everything = {**some, **kept(steady, 0.47, 0.46)}
    winner = winner_of(finalists_in([lucky, steady], everything, TWO))
    assert winner is not None and winner.trial is steady
    assert winner.mean == pytest.approx((0.48 + 0.47 + 0.46) / 3)
    assert winner.parts == pytest.approx((0.38, 0.58, 0.47, 0.47, 0.46, 0.46))


def test_of_two_equal_finalists_the_earlier_trial_wins() -> None:
    one, other = trial(0, 0.4), trial(1, 0.5)
    winner = winner_of(
        finalists_in([one, other], {**kept(one, 0.5, 0.3), **kept(other, 0.4, 0.3)}, TWO)
    )
    assert winner is not None and winner.trial is one


def test_a_finalist_that_fails_elsewhere_cannot_win() -> None:
    one, other = trial(0, 0.4), trial(1, 0.5)
    failed = {key_of(other, 1): {"params": other.params, "reason": "NaN"}}
    finalists = finalists_in([one, other], {**kept(one, 0.3, 0.3), **failed}, TWO)
    assert [one.missing for one in finalists] == [[2], []]
    done = {**kept(one, 0.3, 0.3), **kept(other, 0.9, 0.9), **failed}
    winner = winner_of(finalists_in([one, other], done, TWO))
    assert winner is not None and winner.trial is one


def test_scores_of_another_trial_under_the_same_number_do_not_count() -> None:
    one, other = trial(0, 0.4), trial(1, 0.5)
    stale = {key_of(one, 1): {"params": {"x": 0.77}, "scores": [0.9, 0.9]}}
    assert finalists_in([one, other], stale, TWO)[1].missing == [1, 2]


def test_noise_leaves_out_what_a_partition_adds_to_all_alike() -> None:
    one, other = trial(0, 0.4), trial(1, 0.5)
    shifted = {**kept(one, 0.2, 0.7), **kept(other, 0.3, 0.8)}
    assert partition_noise(finalists_in([one, other], shifted, TWO)) == pytest.approx(0)
    # Differences 0.1, 0.3 and -0.1: a standard deviation of 0.2, of one trial's score 0.2 / sqrt 2.
    noisy = {**kept(one, 0.2, 0.7), **kept(other, 0.5, 0.6)}
    found = partition_noise(finalists_in([one, other], noisy, TWO))
    assert found == pytest.approx(0.2 / np.sqrt(2))


@pytest.mark.parametrize(("gain", "expected"), [(0.1, False), (0.2, True)])
def test_a_search_rises_if_its_last_fifth_gained_more_than_the_noise_of_a_difference(
    gain: float, expected: bool
) -> None:
    scores = [0.1, 0.3, None, 0.2, 0.3 + gain]
    assert rises(scores, noise=0.1) is expected


@pytest.fixture
def pairs(folder_config: RunConfig) -> RunConfig:
    return folder_config.updated({"protocol": PAIRS, "trials": 3})


def test_until_flat_without_finalists_is_refused(pairs: RunConfig) -> None:
    none = pairs.updated({"protocol": PAIRS + "+finalists=0", "until_flat": True})
    with pytest.raises(HarnessError, match="--until-flat needs finalists with selection=pairs"):
        search([none])


def test_the_flag_for_finalists_changes_the_protocol(
    pairs: RunConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    protocol = PAIRS.replace("+finalists=2", "")
    place = ["--dataset", pairs.dataset, "--trunk", "convnet", "--runs-dir", pairs.runs_dir]
    flags = ["--protocol", protocol, "--finalists", "0", "--trials", "2", "--workers", "1"]
    assert main(["search", "--loss", "proxyanchor", *place, *flags]) == 0
    assert "+finalists=0" in next(Path(pairs.runs_dir).iterdir()).name
    printed = capsys.readouterr().out
    assert "quarters, by partition:" in printed and "finalists:" not in printed


def partitions(units: Sequence[Unit]) -> list[int | None]:
    return [unit.partition for unit in units]


def test_finalists_are_trained_on_other_partitions_with_other_seeds(
    pairs: RunConfig, trained: list[Unit]
) -> None:
    summary = search([pairs])[0]
    assert partitions(trained) == [0] * 12 + ([1] * 4 + [2] * 4) * 2
    assert len({unit.seed("init") for unit in trained if unit.fold == 0}) == 3
    assert len({unit.cut.scored for unit in trained}) == 3
    assert not list(build_experiment(pairs).runs.rglob(EMBEDDINGS))
    facts = summary.selection
    assert facts is not None and facts["scheme"] == "pairs"
    order = sorted(range(3), key=lambda i: -(summary.trial_scores[i] or 0))
    assert facts["finalists"] == order[:2]
    means = [np.mean(scores) for scores in facts["partition_scores"]]
    assert summary.best_trial == facts["finalists"][int(np.argmax(means))]
    assert summary.best_score == pytest.approx(max(means))
    assert len(summary.fold_scores) == 12
    search([pairs])
    assert len(trained) == 28


def test_more_trials_choose_finalists_again_and_reuse_what_is_finished(
    pairs: RunConfig, trained: list[Unit], tmp_path: Path
) -> None:
    search([pairs.updated({"trials": 2})])
    assert len(trained) == 8 + 16
    grown = search([pairs.updated({"trials": 4})])[0]
    whole = pairs.updated({"trials": 4, "runs_dir": str(tmp_path / "whole")})
    count = len(trained)
    straight = search([whole])[0]
    assert straight.selection == grown.selection
    assert straight.best_params == grown.best_params
    new = {i for i in (grown.selection or {"finalists": []})["finalists"] if i >= 2}
    assert count == 24 + 8 + 8 * len(new)


class Killed(BaseException):
    """Stands for the end of the process: nothing of ours may catch it."""


def test_a_search_killed_among_its_finalists_goes_on(
    pairs: RunConfig, trained: list[Unit], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = training.run_fold

    def run_fold(unit: Unit, *more: Any, **options: Any) -> FoldRecord:
        if len(trained) == 18:
            raise Killed
        return real(unit, *more, **options)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(finalist_work, "run_fold", run_fold)
        search([pairs])
    assert len(trained) == 18
    summary = search([pairs])[0]
    assert len(trained) == 28
    alone = search([pairs.updated({"runs_dir": str(tmp_path / "alone")})])[0]
    assert summary.selection == alone.selection


def test_a_lost_journal_costs_no_training(pairs: RunConfig, trained: list[Unit]) -> None:
    first = search([pairs])[0]
    journal = build_experiment(pairs).runs / JOURNAL
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([*lines[:3], b"not a line of ours\n", *lines[3:]]))
    again = search([pairs])[0]
    assert len(trained) == 28 and again.selection == first.selection


def test_a_finalist_that_fails_is_told_and_can_be_retried(
    pairs: RunConfig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = training._train

    def train(unit: Unit, *more: Any) -> FoldRecord:
        if unit.partition == 1:
            raise TrainingFailed("the loss became nan")
        return real(unit, *more)

    with monkeypatch.context() as patch:
        patch.setattr(training, "_train", train)
        summary = search([pairs])[0]
    first = max(range(3), key=lambda i: summary.trial_scores[i] or 0)
    assert summary.best_trial == first  # by the first partition, for none has all of them
    main(["retry", "--runs-dir", pairs.runs_dir])
    assert "2 times: the loss became nan" in capsys.readouterr().out
    assert (
        len((search([pairs])[0].selection or {"partition_scores": [[]]})["partition_scores"][0])
        == 3
    )


def test_two_workers_share_the_finalists(
    pairs: RunConfig, tmp_path: Path, quick_workers: None
) -> None:
    alone = search([pairs])[0]
    two = pairs.updated({"workers": 2, "runs_dir": str(tmp_path / "two")})
    assert search([two])[0].selection == alone.selection
    assert not list(build_experiment(two).runs.rglob(EMBEDDINGS))


def test_until_flat_waits_for_the_finalists(pairs: RunConfig, trained: list[Unit]) -> None:
    longer = pairs.updated({"trials": 2, "until_flat": True, "max_trials": 4})
    summary = search([longer])[0]
    assert 2 <= summary.trials <= 4
    assert not any(one.missing for one in study_of(build_experiment(longer)).finalists())
    # The first two trials were followed by their finalists, not by a third trial.
    assert partitions(trained)[8:24] == ([1] * 4 + [2] * 4) * 2


def test_records_say_how_the_trial_was_chosen(pairs: RunConfig) -> None:
    summary = search([pairs])[0]
    values = {"runs_dir": pairs.runs_dir, "results_dir": pairs.results_dir}
    table = evaluate([], {**values, "reproductions": 1, "workers": 1}).tables[0]
    (path,) = (table / "records" / "proxyanchor").glob("*.json")
    record = TestRecord.read(path)
    assert record.search["selection"] == summary.selection
    assert record.search["validation"] == summary.best_score
    assert record.search["validation_folds"] == list(summary.fold_scores)
    assert record.search["trial_scores"] == list(summary.trial_scores)
    assert record.identity["split"] == build_experiment(pairs).split.digest
    assert [fold["fold"] for fold in record.folds] == [0, 1, 2, 3]
    board = leaderboard.build(table)
    assert set(board.frame["selection"]) == {"pairs"}
    assert "Trials were scored with selection=pairs: the mean over quarters" in to_markdown(
        board.table()
    )
    assert "| `selection` |" in describe_columns(board.table(), "leaderboard.csv")
