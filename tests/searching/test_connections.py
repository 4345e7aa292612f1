"""What many workers ask of a PostgreSQL with default settings, and what it may do to them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest
import sqlalchemy
from conftest import study_of
from postgres import PASSWORD, Postgres

from benchmarks.load import config_for, search
from harness.config import RunConfig
from harness.errors import HarnessError
from harness.experiment import build_experiment
from harness.searching import storage
from harness.searching.storage import Database, open_storage

MOST = 40  # connections of 32 workers on 8 nodes


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker leaves the id of its folder in it."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def database(installed_postgres: Postgres) -> Iterator[str]:
    """URL of an empty database on the server of the system."""
    name = f"db{time.monotonic_ns()}"
    installed_postgres.ask(f"CREATE DATABASE {name}")
    yield installed_postgres.url(name)
    installed_postgres.ask(f"DROP DATABASE {name} WITH (FORCE)")


def opened(url: str, heartbeat: int = 30) -> Database:
    shared = open_storage(url, Path(), "study", heartbeat)
    assert isinstance(shared, Database)
    return shared


@pytest.mark.slow
def test_32_workers_on_8_nodes_need_at_most_40_connections(
    installed_postgres: Postgres, database: str, tmp_path: Path
) -> None:
    config = config_for(tmp_path, 64, database)
    load = search(config, workers=32, nodes=8, count=installed_postgres.connections)
    assert (load.each_once, load.failed) == (True, 0)
    assert 1 <= load.connections <= MOST


def test_a_process_that_does_not_ask_has_no_connection(
    config: RunConfig, installed_postgres: Postgres, database: str
) -> None:
    study = study_of(build_experiment(config.updated({"storage": database, "trials": 2})))
    with study.storage.joined() as worker:
        assert study.claim(worker) is not None
        assert installed_postgres.connections() == 0


def test_a_claim_has_a_single_connection(
    config: RunConfig, installed_postgres: Postgres, database: str
) -> None:
    study = study_of(build_experiment(config.updated({"storage": database, "trials": 2})))
    with study.storage.exclusive():
        study.trials()
        study.storage.living(["somebody"])
        assert installed_postgres.connections() == 1


def test_a_worker_waits_until_a_full_server_has_room(
    installed_postgres: Postgres, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed = sqlalchemy.make_url(database)
    at = {"host": parsed.host, "port": parsed.port, "dbname": parsed.database}
    waited = threading.Event()
    pause = time.sleep

    def sleep(seconds: float) -> None:
        waited.set()
        pause(0.1)

    monkeypatch.setattr(storage.time, "sleep", sleep)
    with ExitStack() as crowd:
        with pytest.raises(psycopg.OperationalError, match="too many clients"):
            while True:
                other = psycopg.connect(user="harness", password=PASSWORD, **at)
                crowd.callback(other.close)
        found: list[Database] = []
        worker = threading.Thread(target=lambda: found.append(opened(database)))
        worker.start()
        assert waited.wait(60)
    worker.join(60)
    assert len(found) == 1


def test_a_worker_that_starts_while_the_server_restarts_waits_and_goes_on(
    installed_postgres: Postgres, database: str
) -> None:
    installed_postgres.stop()
    found: list[Database] = []
    worker = threading.Thread(target=lambda: found.append(opened(database)))
    worker.start()
    time.sleep(1)
    assert worker.is_alive() and not found
    installed_postgres.start()
    worker.join(120)
    assert len(found) == 1


def test_a_wrong_password_is_refused_at_once(
    installed_postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage.time, "sleep", lambda seconds: pytest.fail("it waited"))
    with pytest.raises(HarnessError, match="password authentication failed"):
        opened(installed_postgres.url(password="wrong"))


def test_a_transaction_that_was_idle_for_too_long_is_tried_again(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "GRACE", 1)
    shared = opened(database, heartbeat=1)
    pauses = iter([1.5, 0])

    def claim() -> str:
        with shared.exclusive():
            time.sleep(next(pauses))
            shared.living(["somebody"])
        return "claimed"

    assert shared.insist(claim) == "claimed"


def test_a_transaction_that_is_always_idle_for_too_long_is_a_message(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "GRACE", 1)
    monkeypatch.setattr(storage, "PATIENCE", ())
    shared = opened(database, heartbeat=1)

    def claim() -> None:
        with shared.exclusive():
            time.sleep(1.5)
            shared.living(["somebody"])

    with pytest.raises(HarnessError, match="idle-in-transaction timeout"):
        shared.insist(claim)


def test_rows_of_workers_that_were_killed_are_deleted(database: str) -> None:
    shared = opened(database)
    ago = {"killed": "25 hours", "paused": "1 hour"}
    with shared.engine.begin() as connection:
        for name, time_ago in ago.items():
            row = f"INSERT INTO harness_workers VALUES ('{name}', now() - interval '{time_ago}')"
            connection.execute(sqlalchemy.text(row))
    with shared.joined() as worker, shared.engine.begin() as connection:
        names = connection.execute(sqlalchemy.text("SELECT name FROM harness_workers")).scalars()
        assert set(names) == {"paused", worker}


def test_a_worker_whose_row_was_deleted_shows_itself_again(database: str) -> None:
    shared = opened(database, heartbeat=1)
    with shared.joined() as worker:
        with shared.engine.begin() as connection:
            connection.execute(sqlalchemy.text("DELETE FROM harness_workers"))
        end = time.monotonic() + 60
        while not shared.alive(worker):
            assert time.monotonic() < end


def test_the_password_may_be_in_a_file_alone(
    installed_postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(storage.URL_VARIABLE, raising=False)
    secret = tmp_path / "pgpass"
    secret.write_text(f"127.0.0.1:*:*:harness:{PASSWORD}\n")
    secret.chmod(0o600)
    plain = installed_postgres.url(password="")
    opened(f"{plain}?passfile={secret}")
    monkeypatch.setenv("PGPASSFILE", str(secret))
    opened(plain)
    # Written down in config.yaml by a run that had the password in its URL.
    opened(plain.replace("harness@", "harness:***@"))
    secret.chmod(0o644)
    with pytest.raises(HarnessError, match="no password supplied"):
        opened(plain)
