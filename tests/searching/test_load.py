"""What is shared bears many at once: workers on one study, a database that restarts, records."""

from __future__ import annotations

import threading
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from conftest import FOLDER
from optuna.storages import RDBStorage
from optuna.trial import TrialState
from processes import Command

from benchmarks.load import LABEL, config_for, make_table, put_records, work
from harness.experiment import build_experiment
from harness.searching.study import Study
from harness.searching.trials import index_of


@pytest.mark.slow
@pytest.mark.parametrize("where", ["journal", "sqlite", "postgres"])
def test_many_workers_run_every_trial_once(
    where: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = {"journal": "", "sqlite": f"sqlite:///{tmp_path}/study.db"}.get(where)
    if url is None:
        url = request.getfixturevalue(where)
    config = config_for(tmp_path, 60, url)
    study = Study(build_experiment(config), LABEL)
    workers = [threading.Thread(target=work, args=(config,)) for _ in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    complete = [trial for trial in study.trials() if trial.state == TrialState.COMPLETE]
    assert Counter(map(index_of, complete)) == Counter(range(60))


def test_a_thousand_records_make_one_table(tmp_path: Path) -> None:
    _, memory, board = make_table(put_records(tmp_path, 1000))
    assert (len(board.frame), board.problems) == (100, [])
    assert memory < 500  # MB


@pytest.mark.slow
def test_a_search_of_four_survives_a_restart_of_the_database(
    server: Any, postgres: str, tmp_path: Path, image_folder: Path
) -> None:
    command = [
        *("search", "--loss", "triplet", "--device", "cpu", "--runs-dir", str(tmp_path / "runs")),
        *("--dataset", f"folder:{image_folder}", "--protocol", FOLDER, "--trunk", "convnet"),
        *("--trials", "16", "--sampler", "random", "--workers", "1"),
        *("--storage", postgres, "--set", "heartbeat=10"),
    ]
    nodes = [Command(*command) for _ in range(4)]
    nodes[0].read_until("trial ")  # they are at work
    server.stop()  # every connection is cut
    server.start()
    said = [node.finish() for node in nodes]
    assert [node.exit_code for node in nodes] == [0] * 4, said
    assert all("16 trials, 0 failed" in out for out, _ in said)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kept = RDBStorage(postgres)
    (study,) = kept.get_all_studies()
    trials = kept.get_all_trials(study._study_id)
    complete = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    assert Counter(map(index_of, complete)) == Counter(range(16))
