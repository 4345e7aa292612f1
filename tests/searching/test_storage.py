"""Where a study lives: journal, SQLite and a real PostgreSQL keep the same promises."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import warnings
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import optuna
import pytest
import sqlalchemy
from conftest import FOLDER, study_of
from failing_calls import failing_statements
from optuna.storages import RDBStorage
from optuna.trial import TrialState
from processes import FORKS, LONGEST, Command

from harness.cli import main
from harness.config import RunConfig, load_config
from harness.errors import HarnessError
from harness.evaluation.reproductions import evaluate
from harness.experiment import build_experiment
from harness.records.layout import JOURNAL
from harness.records.provenance import provenance
from harness.redact import redact
from harness.searching import storage
from harness.searching import study as study_module
from harness.searching.journal import Journal
from harness.searching.loop import search
from harness.searching.shared import Storage
from harness.searching.storage import Database, open_storage
from harness.searching.study import Study
from harness.searching.trials import index_of


@pytest.fixture(params=["journal", "sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return request.getfixturevalue("postgres")
    return {"journal": "", "sqlite": f"sqlite:///{tmp_path}/study.db"}[request.param]


def opened(url: str, folder: Path, study: str = "study", heartbeat: int = 30) -> Storage:
    return open_storage(url, folder, study, heartbeat)


def test_a_worker_is_alive_while_it_works(url: str, tmp_path: Path) -> None:
    here, there = opened(url, tmp_path), opened(url, tmp_path)
    with here.joined() as name:
        assert there.alive(name)
    assert not there.alive(name)
    assert not there.alive("somebody else")


def test_only_one_worker_at_a_time_may_claim(url: str, tmp_path: Path) -> None:
    inside = [0, 0]

    def enter(shared: Storage) -> None:
        for _ in range(5):
            with shared.exclusive():
                inside[0] += 1
                inside[1] = max(inside)
                time.sleep(0.01)  # for another to come in, if it may
                inside[0] -= 1

    threads = [threading.Thread(target=enter, args=(opened(url, tmp_path),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert inside == [0, 1]


def test_studies_of_one_database_do_not_wait_for_each_other(postgres: str, tmp_path: Path) -> None:
    one, other = opened(postgres, tmp_path, "one"), opened(postgres, tmp_path, "other")
    with one.exclusive(), other.exclusive():
        pass


def miss_beats(shared: Database, seconds: int) -> None:
    """As if all workers had been seen so long ago for the last time."""
    ago = sqlalchemy.text(f"UPDATE harness_workers SET seen = now() - interval '{seconds} seconds'")
    with shared.engine.begin() as connection:
        connection.execute(ago)


def test_a_worker_that_misses_four_heartbeats_counts_as_dead(postgres: str, tmp_path: Path) -> None:
    here, there = (opened(postgres, tmp_path, heartbeat=3600) for _ in range(2))
    assert isinstance(there, Database)
    with here.joined() as worker:
        miss_beats(there, seconds=4 * 3600 - 60)
        assert there.alive(worker)
        miss_beats(there, seconds=4 * 3600 + 1)
        assert not there.alive(worker)


def test_a_worker_shows_that_it_lives_while_it_works(postgres: str, tmp_path: Path) -> None:
    here, there = (opened(postgres, tmp_path, heartbeat=1) for _ in range(2))
    assert isinstance(here, Database) and isinstance(there, Database)
    beats = threading.Semaphore(0)
    with here.joined() as worker:
        miss_beats(there, seconds=3600)
        sqlalchemy.event.listen(here.engine, "commit", lambda connection: beats.release())
        # Told of before it is done, so that only at the second one the first is there to be seen.
        assert beats.acquire(timeout=300) and beats.acquire(timeout=300)
        assert there.alive(worker)


def test_every_trial_has_its_own_place_and_a_dead_worker_loses_its(
    config: RunConfig, url: str
) -> None:
    wanted = config.updated({"storage": url, "trials": 3, "sampler": "random"})
    one, other = study_of(build_experiment(wanted)), study_of(build_experiment(wanted))
    with one.storage.joined() as alive:
        with other.storage.joined() as dying:
            claims = [one.claim(alive), other.claim(dying), one.claim(alive), other.claim(dying)]
        assert [claim and claim.index for claim in claims] == [0, 1, 2, None]
        again = one.claim(alive)
    assert again is not None and claims[1] is not None
    assert (again.index, again.params) == (1, claims[1].params)


def test_a_claim_asks_no_more_of_a_database_when_many_are_at_work(
    config: RunConfig, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/study.db"
    wanted = config.updated({"storage": url, "trials": 8, "sampler": "random"})
    study = Study(build_experiment(wanted), "no images")
    asked = []
    with study.storage.joined() as worker:
        for _ in range(8):
            with failing_statements() as counted:
                assert study.claim(worker) is not None
            asked.append(len(counted.calls))
    assert max(asked[1:]) == asked[1]


def test_the_result_of_a_worker_given_up_for_dead_is_not_counted_twice(
    config: RunConfig, url: str
) -> None:
    wanted = config.updated({"storage": url, "trials": 1})
    study = study_of(build_experiment(wanted))
    lost = study.claim("no such worker")
    with study.storage.joined() as worker:
        again = study.claim(worker)
        assert lost is not None and again is not None and again.index == lost.index
        study.finish(lost, TrialState.COMPLETE, 0.5, folds=(0.5,) * 4)
        assert study.counted() == []
        study.finish(again, TrialState.COMPLETE, 0.5, folds=(0.5,) * 4)
    assert [index_of(trial) for trial in study.counted()] == [0]


def test_a_database_that_restarts_does_not_end_the_search(
    postgres: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(storage.time, "sleep", waits.append)
    shared = opened(postgres, tmp_path)
    away = iter([True, True, False])

    def ask() -> str:
        if next(away):
            raise sqlalchemy.exc.OperationalError("", {}, Exception("server closed"))
        return "there again"

    assert shared.insist(ask) == "there again"
    assert len(waits) == 2


def test_a_database_that_stays_away_is_named(
    postgres: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage.time, "sleep", lambda seconds: None)
    shared = opened(postgres, tmp_path)

    def ask() -> None:
        raise sqlalchemy.exc.OperationalError("", {}, Exception("server closed"))

    with pytest.raises(HarnessError, match=r"cannot be used:\n  server closed"):
        shared.insist(ask)


def test_a_database_that_goes_away_while_it_is_read_is_a_message(
    folder_config: RunConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(storage.time, "sleep", lambda seconds: None)
    url = f"sqlite:///{tmp_path}/study.db"
    search([folder_config.updated({"storage": url, "trials": 1})])
    with failing_statements() as opening:
        opened(url, tmp_path)
    places = ["--runs-dir", folder_config.runs_dir, "--results-dir", folder_config.results_dir]
    evaluation = ["eval", "--workers", "1", "--reproductions", "1", *places]
    assert main(evaluation) == 0  # from here on nothing is left to train
    for command in (["show", *places], ["retry", *places[:2]], evaluation):
        with failing_statements() as counted:
            assert main(command) == 0
        assert len(counted.calls) > len(opening.calls)
        for number in range(len(opening.calls), len(counted.calls)):
            capsys.readouterr()
            with failing_statements(number, for_good=True):
                assert main(command) == 2, (command, number)
            assert "study.db cannot be used:\n" in capsys.readouterr().err


def test_connections_that_a_restart_closed_are_opened_again(
    postgres: str, server: Any, tmp_path: Path
) -> None:
    shared = opened(postgres, tmp_path)
    with shared.joined() as name:
        server.psql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname LIKE 'db%';"
        )
        assert shared.alive(name)


def test_a_study_in_a_database_is_found_by_eval(folder_config: RunConfig, postgres: str) -> None:
    config = folder_config
    wanted = config.updated({"storage": postgres, "trials": 2})
    search([wanted])
    saved = load_config(build_experiment(wanted).runs / "config.yaml")
    assert saved["storage"] == postgres
    assert not (build_experiment(wanted).runs / JOURNAL).exists()
    values = {"runs_dir": config.runs_dir, "results_dir": config.results_dir, "workers": 1}
    done = evaluate([], {**values, "reproductions": 1})
    assert len(done.tables) == 1 and not done.problems


def test_a_study_refuses_other_settings_wherever_it_runs(
    config: RunConfig, postgres: str, tmp_path: Path
) -> None:
    study_of(build_experiment(config.updated({"storage": postgres})))
    elsewhere = {"storage": postgres, "runs_dir": str(tmp_path / "other"), "seed": 1}
    with pytest.raises(HarnessError, match=r"seed: 0 there, 1 here\n.*give another --storage"):
        study_of(build_experiment(config.updated(elsewhere)))


def test_commands_are_written_down_without_passwords_and_folders(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "postgresql+psycopg://me:s3cret@host/db"
    monkeypatch.setattr(sys, "argv", ["harness", "search", "--storage", secret])
    hidden = "postgresql+psycopg://me:***@host/db"
    assert hidden in config.updated({"storage": secret}).to_yaml()
    assert provenance()["command"] == f"harness search --storage '{hidden}'"
    monkeypatch.setattr(sys, "argv", ["/opt/harness/__main__.py", "eval"])  # python -m harness
    assert provenance()["command"] == "harness eval"
    assert redact("postgresql://host/db?password=s3cret&x=1") == (
        "postgresql://host/db?password=***&x=1"
    )
    assert redact("postgresql+psycopg://me@host:5432/db") == "postgresql+psycopg://me@host:5432/db"


def test_a_hidden_password_comes_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, postgres: str
) -> None:
    monkeypatch.delenv(storage.URL_VARIABLE, raising=False)
    written = "postgresql+psycopg://me:***@host/db"
    with pytest.raises(HarnessError, match="give --storage again, or set HARNESS_STORAGE"):
        opened(written, tmp_path)
    monkeypatch.setenv(storage.URL_VARIABLE, postgres)
    assert opened(written, tmp_path).place == redact(postgres)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("study.db", "is no URL; e.g. postgresql"),
        ("postgre://host/db", "no such kind of database"),
        ("mysql+pymysql://host/db", "driver is not installed"),
        ("postgresql+psycopg2://host/db", r"pip install 'metric-harness[cluster]'"),
        ("postgresql+psycopg://me@127.0.0.1:1/db", "cannot be used"),
        ("sqlite://", "give sqlite:///FILE"),
        ("sqlite:////no/such/folder/study.db", "unable to open database file"),
    ],
)
def test_a_wrong_storage_is_refused_before_any_work(
    url: str,
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(storage, "PATIENCE", ())  # where a server may come back
    runs = tmp_path / "runs"
    command = ["search", "--loss", "ms", "--storage", url, "--runs-dir", str(runs)]
    assert main(command) == 2
    said = capsys.readouterr().err
    assert message in said and "Traceback" not in said
    assert not runs.exists()


def test_a_storage_without_rights_is_refused(
    server: Any, postgres: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.psql("DROP ROLE IF EXISTS guest; CREATE ROLE guest LOGIN;")
    guest = postgres.replace("postgres:@", "guest@")
    assert main(["search", "--loss", "ms", "--storage", guest, "--runs-dir", str(tmp_path)]) == 2
    assert "permission denied" in capsys.readouterr().err


def test_many_workers_may_be_the_first_to_open_a_database(postgres: str, tmp_path: Path) -> None:
    together = FORKS.Barrier(4)
    crowd = [FORKS.Process(target=open_with, args=(together, postgres)) for _ in range(4)]
    for process in crowd:
        process.start()
    for process in crowd:
        process.join(LONGEST)
    assert [process.exitcode for process in crowd] == [0, 0, 0, 0]


def open_with(others: Barrier, url: str) -> None:
    others.wait(LONGEST)
    open_storage(url, Path(), "study", 30)


def test_a_journal_is_opened_without_a_url(tmp_path: Path) -> None:
    assert isinstance(opened("", tmp_path), Journal)


@pytest.mark.slow
def test_two_of_four_workers_die_and_every_trial_is_counted_once(
    postgres: str, tmp_path: Path, image_folder: Path
) -> None:
    """Four nodes share a PostgreSQL and a run directory; two are killed in the middle."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        shared = RDBStorage(postgres)
    command = [
        *("search", "--loss", "triplet", "--device", "cpu", "--runs-dir", str(tmp_path)),
        *("--dataset", f"folder:{image_folder}", "--protocol", FOLDER, "--trunk", "convnet"),
        *("--trials", "20", "--sampler", "random", "--workers", "1"),
        *("--storage", postgres, "--set", "heartbeat=2"),
    ]
    heard, told = FORKS.Pipe(duplex=False)  # what all of them say while they work
    nodes = [Command(*command, stderr=told) for _ in range(4)]
    told.close()
    killed: list[int] = []
    with os.fdopen(heard.fileno(), closefd=False) as lines:
        while len(killed) < 2:
            line = lines.readline()
            assert line, "all of them ended"
            trials = trials_of(shared)
            done = sum(trial.state == TrialState.COMPLETE for trial in trials)
            if done < 5 + 5 * len(killed):
                continue
            # One that is at a trial right now.
            busy = [t.user_attrs["worker"] for t in trials if t.state == TrialState.RUNNING]
            pids = {int(worker.split("-")[-2]) for worker in busy} - set(killed)
            victims = [node for node in nodes if node.pid in pids]
            if victims:
                os.kill(victims[0].pid, signal.SIGKILL)
                killed.append(victims[0].pid)
        said = {node.pid: node.finish()[0] for node in nodes}
    survivors = [node for node in nodes if node.pid not in killed]
    assert [node.exit_code for node in survivors] == [0, 0]
    assert all("20 trials, 0 failed" in said[node.pid] for node in survivors)
    trials = trials_of(shared)
    complete = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    assert sorted(index_of(trial) for trial in complete) == list(range(20))
    abandoned = [trial for trial in trials if trial.state == TrialState.FAIL]
    assert len(trials) == 20 + len(abandoned) and 1 <= len(abandoned) <= 2
    for trial in abandoned:  # taken over with the same parameters
        again = next(t for t in complete if index_of(t) == index_of(trial))
        assert again.params == trial.params
    assert len(list(tmp_path.glob("**/record.json"))) == 4 * 20


def trials_of(shared: RDBStorage) -> list[optuna.trial.FrozenTrial]:
    studies = shared.get_all_studies()
    return shared.get_all_trials(studies[0]._study_id) if studies else []


@pytest.mark.parametrize("sampler", ["gp", "tpe"])
def test_others_claim_while_a_proposal_is_computed_which_then_considers_them(
    sampler: str, config: RunConfig, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = config.updated({"storage": url, "trials": 30, "sampler": sampler})
    slow, quick = study_of(build_experiment(wanted)), study_of(build_experiment(wanted))
    with slow.storage.joined() as worker:
        for _ in slow.plan:
            done = slow.claim(worker)
            assert done is not None
            slow.finish(done, TrialState.COMPLETE, done.index / 100, folds=(0.5,) * 4)
        real, seen = study_module.propose, []

        def propose(name: str, seed: int, space: Any, trials: Any) -> dict[str, Any]:
            seen.append(len(trials))
            if len(seen) == 1:  # the other worker is faster
                between.append(quick.claim(worker))
            return real(name, seed, space, trials)

        between: list[Any] = []
        monkeypatch.setattr(study_module, "propose", propose)
        claim = slow.claim(worker)
    first = len(slow.plan)
    assert claim is not None and (between[0].index, claim.index) == (first, first + 1)
    assert seen == [first, first, first + 1]  # slow, quick, and slow again with one more
    assert claim.params != between[0].params
