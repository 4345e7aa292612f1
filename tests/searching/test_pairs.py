"""Trials scored by pairs of models: the score itself, and that nothing is lost or repeated."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import FOLDER, study_of

from harness.config import RunConfig
from harness.data.sources import open_part
from harness.errors import HarnessError
from harness.experiment import Experiment, build_experiment
from harness.records.layout import EMBEDDINGS, FOLD_RECORD, JOURNAL, TRIAL_RECORD
from harness.records.records import FoldRecord, TrialRecord
from harness.searching import loop
from harness.searching.loop import search
from harness.searching.trials import index_of
from harness.training import fold as training
from harness.training.kept_embeddings import scored_indices
from harness.training.opened import open_experiment
from harness.training.trial import trial_units, units_of
from harness.training.unit import Unit

PAIRS = FOLDER.replace("mlrc+", "mlrc-pairs+") + "+finalists=0"


@pytest.fixture
def pairs(folder_config: RunConfig) -> RunConfig:
    return folder_config.updated({"protocol": PAIRS, "trials": 2})


def map_at_r(embeddings: np.ndarray, labels: np.ndarray) -> float:
    """By plain loops, from the definition."""
    values = []
    for i, label in enumerate(labels):
        others = [j for j in range(len(labels)) if j != i]
        others.sort(key=lambda j: -float(embeddings[i] @ embeddings[j]))
        count = sum(labels[j] == label for j in others)
        hits, total = 0, 0.0
        for rank, j in enumerate(others[:count], start=1):
            if labels[j] == label:
                hits += 1
                total += hits / rank
        if count:
            values.append(total / count)
    return float(np.mean(values))


def raw_embeddings(unit: Unit, indices: list[int], tmp_path: Path) -> np.ndarray:
    """Of the unit's best model, trained once more elsewhere; not normalised."""
    trainer = unit.build_trainer(torch.device("cpu"))
    trainer.fit(tmp_path / f"checkpoint{unit.fold}", unit.seed("loss"))
    trainer.model.eval()
    with torch.no_grad():
        return trainer.model(unit.trainval.for_evaluation(indices)).double().numpy()


def test_the_score_of_a_trial_is_that_of_plain_loops(pairs: RunConfig, tmp_path: Path) -> None:
    summary = search([pairs.updated({"trials": 1})])[0]
    experiment = build_experiment(pairs)
    trainval = open_part(experiment, "trainval")
    units = trial_units(experiment, trainval, experiment.published_params)
    labels = experiment.listing.labels
    quarters = [experiment.split.trainval[i : i + 2] for i in (0, 2, 4, 6)]
    expected = []
    for quarter in quarters:
        indices = [i for i in trainval.indices if labels[i] in quarter]
        columns = []
        for unit in units:
            if not set(unit.classes.train) & set(quarter):
                raw = raw_embeddings(unit, indices, tmp_path)
                columns.append(raw / np.linalg.norm(raw, axis=1, keepdims=True))
        assert len(columns) == 2
        expected.append(map_at_r(np.concatenate(columns, axis=1), labels[indices]))
    (record,) = [TrialRecord.read(p) for p in experiment.runs.glob(f"folds/*/{TRIAL_RECORD}")]
    assert record.scores == pytest.approx(expected, abs=1e-6)
    assert summary.best_score == pytest.approx(np.mean(expected), abs=1e-6)
    assert summary.trial_folds[0] == tuple(record.folds) != tuple(record.scores)


def test_models_are_trained_on_the_classes_that_the_scheme_gives_them(pairs: RunConfig) -> None:
    experiment = build_experiment(pairs)
    trainval = open_part(experiment, "trainval")
    units = trial_units(experiment, trainval, experiment.published_params)
    for unit in units:
        seen = {
            int(label) for i in unit._batches().indices for label in experiment.listing.labels[i]
        }
        assert seen == set(unit.classes.train) and len(seen) == 4
        embedded = {int(experiment.listing.labels[i]) for i in scored_indices(unit)}
        assert embedded == set(experiment.split.trainval) - seen
        assert embedded > set(unit.classes.val)


def test_embeddings_are_removed_and_a_finished_search_trains_nothing(
    pairs: RunConfig, trained: list[Unit]
) -> None:
    search([pairs])
    assert len(trained) == 8
    runs = build_experiment(pairs).runs
    assert not list(runs.rglob(EMBEDDINGS))
    assert len(list(runs.rglob(TRIAL_RECORD))) == 2
    search([pairs])
    assert len(trained) == 8


class Killed(BaseException):
    """Stands for the end of the process: nothing of ours may catch it."""


def killed_after(count: int, monkeypatch: pytest.MonkeyPatch, config: RunConfig) -> None:
    """Search until so many models of the first trial are trained."""
    real, calls = training.run_fold, []

    def run_fold(unit: Unit, *more: Any, **options: Any) -> FoldRecord:
        if len(calls) == count:
            raise Killed
        calls.append(unit)
        return real(unit, *more, **options)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr("harness.training.trial.run_fold", run_fold)
        search([config])


def test_a_killed_search_goes_on_with_the_embeddings_that_are_there(
    pairs: RunConfig, trained: list[Unit], monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_after(3, monkeypatch, pairs)
    embeddings = sorted(build_experiment(pairs).runs.rglob(EMBEDDINGS))
    assert len(embeddings) == 3
    found = torch.load(embeddings[0], weights_only=True)
    assert found.dtype == torch.float32 and found.shape == (20, 128)  # 2 quarters of 2 classes
    search([pairs])
    assert len(trained) == 8


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"torn")])
def test_a_record_without_its_embeddings_is_trained_again(
    pairs: RunConfig,
    trained: list[Unit],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    damage: Callable[[Path], Any],
) -> None:
    whole = search([pairs.updated({"runs_dir": str(tmp_path / "whole")})])[0]
    trained.clear()
    killed_after(3, monkeypatch, pairs)
    damage(sorted(build_experiment(pairs).runs.rglob(EMBEDDINGS))[1])
    summary = search([pairs])[0]
    assert len(trained) == 9
    assert summary.trial_scores == whole.trial_scores


def test_a_trial_that_was_scored_and_not_told_is_not_trained_again(
    pairs: RunConfig, trained: list[Unit], monkeypatch: pytest.MonkeyPatch
) -> None:
    def finish(*arguments: Any, **facts: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(loop.Study, "finish", finish)
        search([pairs.updated({"trials": 1})])
    assert len(trained) == 4
    summary = search([pairs.updated({"trials": 1})])[0]
    assert len(trained) == 4 and summary.trials == 1


def test_a_damaged_record_of_a_trial_is_made_again(pairs: RunConfig, trained: list[Unit]) -> None:
    first = search([pairs.updated({"trials": 1})])[0]
    runs = build_experiment(pairs).runs
    next(runs.rglob(TRIAL_RECORD)).write_text("{")
    (runs / JOURNAL).unlink()
    again = search([pairs.updated({"trials": 1})])[0]
    assert len(trained) == 8 and again.best_score == first.best_score


def test_a_lost_journal_is_rebuilt_from_the_records_of_trials(
    pairs: RunConfig, trained: list[Unit]
) -> None:
    first = search([pairs])[0]
    runs = build_experiment(pairs).runs
    journal = runs / JOURNAL
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([*lines[:3], b"not a line of ours\n", *lines[3:]]))
    again = search([pairs])[0]
    assert len(trained) == 8
    assert again.trial_scores == first.trial_scores and again.trial_folds == first.trial_folds


def test_a_trial_shares_its_models_with_train_and_none_with_reproductions(
    pairs: RunConfig,
) -> None:
    opened = open_experiment(build_experiment(pairs))
    experiment, trainval = opened.experiment, opened.trainval
    params = experiment.published_params
    own = loop.OpenedStudy(study_of(experiment), opened)
    assert own.units(params)[0].folder == trial_units(experiment, trainval, params)[0].folder
    of_trial = trial_units(experiment, trainval, params, repetition=1)
    reproduced = units_of(experiment, trainval, params, repetition=1)
    assert not {u.folder for u in of_trial} & {u.folder for u in reproduced}
    assert [u.classes for u in reproduced] == list(experiment.split.folds)


def test_another_seed_cuts_the_classes_in_another_order(pairs: RunConfig) -> None:
    first, second = (build_experiment(pairs.updated({"seed": seed})) for seed in (0, 1))
    assert first.partitions[0].scored[0].classes == (0, 1)
    assert first.partitions != second.partitions
    assert first.split.digest == second.split.digest
    again = build_experiment(pairs.updated({"seed": 1}))
    assert again.partitions == second.partitions


def test_spaces_are_those_of_half_of_the_classes(
    pairs: RunConfig, make_experiment: Callable[..., Experiment]
) -> None:
    seen: list[int] = []
    experiment = make_experiment(**{**vars(pairs)})
    method = experiment.method
    object.__setattr__(experiment, "method", _Spy(method, seen))
    assert experiment.space
    assert seen == [4]


class _Spy:
    def __init__(self, method: Any, seen: list[int]) -> None:
        self.method, self.seen = method, seen

    def space(self, dataset: str, num_classes: int) -> Any:
        self.seen.append(num_classes)
        return self.method.space(dataset, num_classes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.method, name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("+folds=halves", "selection=pairs needs folds of four models"),
        ("+patience=none+select=last", "select must be best, got last"),
        ("+prune=true", "prune must be false"),
        ("+selection=trios", "no selection named 'trios'"),
    ],
)
def test_what_does_not_go_with_pairs_is_refused(
    pairs: RunConfig, change: str, message: str
) -> None:
    with pytest.raises(HarnessError, match=message):
        build_experiment(pairs.updated({"protocol": PAIRS + change}))


def test_a_choice_by_folds_is_refused(pairs: RunConfig) -> None:
    with pytest.raises(HarnessError, match="--select mean-se compares trials fold by fold"):
        build_experiment(pairs.updated({"select": "mean-se"}))


def test_finalists_need_a_scheme_with_other_partitions(config: RunConfig) -> None:
    with pytest.raises(HarnessError, match="finalists must be 0 with selection=folds"):
        build_experiment(config.updated({"protocol": "mlrc+finalists=5"}))


def test_two_workers_share_a_search(pairs: RunConfig, tmp_path: Path, quick_workers: None) -> None:
    alone = search([pairs.updated({"trials": 3})])[0]
    together = pairs.updated({"trials": 3, "workers": 2, "runs_dir": str(tmp_path / "two")})
    summary = search([together])[0]
    assert summary.trial_scores == alone.trial_scores
    runs = build_experiment(together).runs
    assert not list(runs.rglob(EMBEDDINGS))
    assert len(list(runs.rglob(FOLD_RECORD))) == 12
    assert sorted(index_of(t) for t in study_of(build_experiment(together)).counted()) == [0, 1, 2]
