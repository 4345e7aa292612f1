"""A journal that is damaged, emptied or closed to us: what it held is shown, saved or rebuilt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import study_of
from ends import run
from failing_calls import read_only
from optuna.trial import TrialState

from harness.config import RunConfig
from harness.errors import HarnessError
from harness.experiment import build_experiment
from harness.records.layout import JOURNAL
from harness.searching.journal import DamagedJournal, Journal
from harness.searching.loop import search
from harness.searching.trials import index_of
from harness.training import trainer
from harness.training.trial import train


@pytest.fixture
def searched(folder_config: RunConfig) -> RunConfig:
    config = folder_config.updated({"trials": 3, "sampler": "random"})
    search([config])
    return config


def journal_of(config: RunConfig) -> Path:
    return build_experiment(config).runs / JOURNAL


def trials_in(config: RunConfig) -> list[Any]:
    trials = study_of(build_experiment(config)).counted()
    return [(index_of(t), t.params, t.values, t.user_attrs["folds"]) for t in trials]


def forbid_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def fit(*arguments: object) -> None:
        raise AssertionError("a fold was trained again")

    monkeypatch.setattr(trainer.Trainer, "fit", fit)


def test_an_emptied_journal_is_rebuilt_from_finished_folds(
    searched: RunConfig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    before = trials_in(searched)
    journal_of(searched).write_bytes(b"")
    forbid_training(monkeypatch)
    (summary,) = search([searched])
    assert (summary.trials, summary.failed) == (3, 0)
    assert trials_in(searched) == before
    assert "3 were rebuilt from their finished folds" in caplog.text


def test_what_somebody_tried_beside_the_search_is_not_rebuilt_as_its_trial(
    searched: RunConfig,
) -> None:
    before = trials_in(searched)
    train(searched.updated({"params": {"margin": 0.123}}))
    journal_of(searched).write_bytes(b"")
    assert trials_in(searched) == before


def test_a_journal_that_nobody_searched_with_is_not_rebuilt(folder_config: RunConfig) -> None:
    path = journal_of(folder_config)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"")
    assert trials_in(folder_config) == []


@pytest.mark.parametrize("share", [0.1, 0.4, 0.7])
def test_what_stands_before_a_damaged_line_is_kept_and_the_rest_rebuilt(
    share: float,
    searched: RunConfig,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    before = trials_in(searched)
    path = journal_of(searched)
    lines = path.read_bytes().splitlines(keepends=True)
    place = int(share * len(lines))
    lines[place] = lines[place][: len(lines[place]) // 2] + b"\n"
    path.write_bytes(b"".join(lines))
    forbid_training(monkeypatch)
    search([searched])
    assert sorted(trials_in(searched)) == before
    assert f"{path} is damaged in line {place + 1}" in caplog.text
    assert (path.parent / "study.damaged.journal").read_bytes() == b"".join(lines)


def test_a_line_torn_while_we_run_is_named_and_the_next_search_goes_on(
    searched: RunConfig,
) -> None:
    study = study_of(build_experiment(searched))
    with open(journal_of(searched), "ab") as file:
        file.write(b'{"op_code": 4, "worker\n')
    with pytest.raises(DamagedJournal, match=r"study\.journal, line \d+: not an entry"):
        study.trials()
    assert len(trials_in(searched)) == 3


def test_a_damaged_journal_is_not_mended_under_somebody_at_work(searched: RunConfig) -> None:
    path = journal_of(searched)
    with Journal(path.parent).joined():
        path.write_bytes(b"x\n" + path.read_bytes())
        with pytest.raises(HarnessError, match="still at work"):
            Journal(path.parent)
    assert path.read_bytes().startswith(b"x\n")


def test_a_trial_whose_parameters_are_gone_is_a_damage(
    searched: RunConfig, caplog: pytest.LogCaptureFixture
) -> None:
    before, journal = trials_in(searched), journal_of(searched)
    with open(journal) as file:
        entries = [json.loads(line) for line in file]
    broken = next(entry for entry in entries if entry.get("distributions"))
    del broken["params"]
    journal.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    search([searched])
    assert trials_in(searched) == before
    assert "a trial whose parameters are not those of its ranges" in caplog.text


def test_a_trial_that_lost_its_scores_is_run_again(searched: RunConfig) -> None:
    path = journal_of(searched)
    lines = path.read_bytes().splitlines(keepends=True)
    first = next(i for i, line in enumerate(lines) if b'{"folds"' in line)
    path.write_bytes(b"".join(lines[:first] + lines[first + 1 :]))
    assert len(trials_in(searched)) == 2
    search([searched])
    assert [index for index, *_ in trials_in(searched)] == [0, 1, 2]


def test_lock_files_of_killed_workers_are_swept(searched: RunConfig) -> None:
    folder = journal_of(searched).parent
    (folder / "workers" / "host-1-dead.lock").touch()
    journal = Journal(folder)
    with journal.joined() as ours, journal.joined() as other:
        assert {lock.stem for lock in (folder / "workers").iterdir()} == {ours, other}


def test_show_works_in_a_folder_that_nobody_may_write_to(
    searched: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs").rename(tmp_path / "closed")
    with read_only(monkeypatch, tmp_path / "closed"):
        end = run(["show", "--runs-dir", str(tmp_path / "closed")])
    assert end.code == 0
    assert "3 trials, 0 failed" in end.out


def test_of_several_searches_a_damaged_one_is_named_and_the_others_shown(
    searched: RunConfig,
) -> None:
    study = study_of(build_experiment(searched.updated({"loss": "triplet"})))
    with study.storage.joined() as worker:
        claim = study.claim(worker)
        assert claim is not None
        study.finish(claim, TrialState.COMPLETE, 0.5, folds=[0.5] * 4, seconds=1.0)
    (study.folder / "config.yaml").write_text("loss: [\n")
    end = run(["show", "--runs-dir", searched.runs_dir])
    assert end.code == 2
    assert "3 trials, 0 failed" in end.out
    assert "triplet" in end.err
