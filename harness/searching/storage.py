"""Where a study lives: a journal file for one machine, or a database that many machines reach."""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import sqlalchemy
from filelock import FileLock
from optuna.exceptions import StorageInternalError
from optuna.storages import RDBStorage
from sqlalchemy import exc

from harness.errors import HarnessError
from harness.redact import lacks_password, redact, without_secrets
from harness.searching.journal import Journal
from harness.searching.shared import Result, Storage, worker_name

URL_VARIABLE = "HARNESS_STORAGE"

EXAMPLE = "postgresql+psycopg://user@host/database"
CONNECT_SECONDS = 10  # then a database counts as unreachable
PATIENCE = (1, 5, 30, 60, 120, 300)  # seconds between attempts when one that worked goes away
GRACE = 4  # heartbeats that a worker may miss before it counts as dead


def open_storage(
    url: str, folder: Path, study: str, heartbeat: int, reads_only: bool = False
) -> Storage:
    """The storage at a URL, or the journal of a folder if there is none.

    Args:
        study: name of the study that the workers share.
        heartbeat: seconds between two signs of life where machines are many.
        reads_only: a journal is left as it is, though its folder may be closed to us.
    """
    if url:
        return Database(_with_password(url), study, heartbeat)
    return Journal(folder, reads_only)


def _with_password(url: str) -> str:
    """A URL that was written down lacks its password; the environment has it."""
    if not lacks_password(url):
        return url
    given = os.environ.get(URL_VARIABLE, "")
    if not given:
        raise HarnessError(
            f"the password of {url} was not written down; give --storage again, or set "
            f"{URL_VARIABLE}"
        )
    return given


_tables = sqlalchemy.MetaData()
_claims = sqlalchemy.Table(
    "harness_claims", _tables, sqlalchemy.Column("study", sqlalchemy.String(512), primary_key=True)
)
_workers = sqlalchemy.Table(
    "harness_workers",
    _tables,
    sqlalchemy.Column("name", sqlalchemy.String(255), primary_key=True),
    sqlalchemy.Column("seen", sqlalchemy.DateTime(timezone=True), nullable=False),
)


class Database(Storage):
    """A database of Optuna's, with two small tables beside it.

    Optuna's heartbeat runs only inside `study.optimize`, so workers have a table of their own. The
    other has a row per study: who has locked the row may claim a trial, and a lost connection
    unlocks it.
    """

    def __init__(self, url: str, study: str, heartbeat: int) -> None:
        self.url, self.place = url, redact(url)
        self.study = study
        self.heartbeat = heartbeat
        database = self._opened(url)
        self.optuna, self.engine = database, database.engine

    def _opened(self, url: str) -> RDBStorage:
        try:
            parsed = sqlalchemy.make_url(url)
            if parsed.get_backend_name() == "sqlite" and parsed.database in (None, "", ":memory:"):
                raise HarnessError("--storage sqlite:// forgets everything; give sqlite:///FILE")
            database = self._created(url, _engine_options(parsed))
        except exc.NoSuchModuleError as error:
            raise HarnessError(
                f"--storage {self.place}: no such kind of database ({error}); e.g. {EXAMPLE}"
            ) from None
        except exc.ArgumentError:
            raise HarnessError(f"--storage '{self.place}' is no URL; e.g. {EXAMPLE}") from None
        except ImportError as error:
            raise HarnessError(
                f"--storage {self.place}: its driver is not installed ({error.__cause__ or error})."
                f"\n  for PostgreSQL: pip install 'metric-harness[cluster]', and {EXAMPLE}"
            ) from None
        except (exc.SQLAlchemyError, StorageInternalError, RuntimeError) as error:
            raise self._unusable(error) from None
        return database

    def _created(self, url: str, options: dict[str, Any]) -> RDBStorage:
        """Connect, and make the tables; several workers may be doing so at the same moment."""
        for attempt in range(5):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    database = RDBStorage(url, engine_kwargs=options)
                _tables.create_all(database.engine)
                self._insert(database.engine, _claims.insert().values(study=self.study))
                return database
            except (exc.IntegrityError, exc.ProgrammingError, exc.OperationalError) as error:
                made_by_another = "already exists" in str(error) or "duplicate" in str(error)
                if not made_by_another or attempt == 4:
                    raise
                time.sleep(0.2 * (attempt + 1))
        raise AssertionError("the last attempt returns or raises")

    @staticmethod
    def _insert(engine: sqlalchemy.Engine, row: sqlalchemy.Insert) -> None:
        try:
            with engine.begin() as connection:
                connection.execute(row)
        except exc.IntegrityError:
            pass  # it is there

    def _unusable(self, error: Exception) -> HarnessError:
        said = str(getattr(error, "orig", None) or error.__cause__ or error)
        reason = without_secrets(said, self.url).strip()
        return HarnessError(
            f"the storage {self.place} cannot be used:\n  "
            + "\n  ".join(reason.splitlines())
            + "\n  check that it runs, that the name and the password are right, and that you may "
            "create tables there"
        )

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        if self.engine.dialect.name == "sqlite":  # one machine, and no locks on rows
            with FileLock(f"{self.engine.url.database}.lock"):
                yield
            return
        row = sqlalchemy.select(_claims).where(_claims.c.study == self.study).with_for_update()
        with self.engine.begin() as connection:
            if self.engine.dialect.name == "postgresql":
                # A machine without power does not close its connections.
                seconds = GRACE * self.heartbeat
                limit = f"SET LOCAL idle_in_transaction_session_timeout = '{seconds}s'"
                connection.execute(sqlalchemy.text(limit))
            connection.execute(row)
            yield

    @contextmanager
    def joined(self) -> Iterator[str]:
        name = worker_name()
        stopped = threading.Event()
        ours = _workers.c.name == name
        row = _workers.insert().values(name=name, seen=sqlalchemy.func.now())
        self.insist(lambda: self._insert(self.engine, row))

        def beat() -> None:
            while not stopped.wait(self.heartbeat):
                try:
                    row = _workers.update().where(ours).values(seen=sqlalchemy.func.now())
                    self._execute(row)
                except exc.SQLAlchemyError:
                    continue  # it may come back before anybody misses us

        thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
        thread.start()
        try:
            yield name
        finally:
            stopped.set()
            thread.join()
        self.insist(lambda: self._execute(_workers.delete().where(ours)))

    def living(self, workers: Collection[str]) -> set[str]:
        """By the clock of the database alone, in one query for all that are asked after."""
        query = sqlalchemy.select(sqlalchemy.func.now(), _workers.c.name, _workers.c.seen)
        with self.engine.begin() as connection:
            found = connection.execute(query.where(_workers.c.name.in_(workers))).all()
        living = set()
        for now, name, seen in found:
            if seen.tzinfo is None:  # a database that keeps no time zones has but one
                now = now.replace(tzinfo=None)
            if now - seen <= timedelta(seconds=GRACE * self.heartbeat):
                living.add(name)
        return living

    def insist(self, action: Callable[[], Result]) -> Result:
        """A database that restarts does not end the search; one that stays away does."""
        for wait in (*PATIENCE, None):
            try:
                return action()
            except (exc.OperationalError, exc.InterfaceError, StorageInternalError) as error:
                if wait is None:
                    raise self._unusable(error) from None
                time.sleep(wait)
        raise AssertionError("the last attempt returns or raises")

    @contextmanager
    def naming_trouble(self) -> Iterator[None]:
        try:
            yield
        except (exc.SQLAlchemyError, StorageInternalError) as error:
            raise self._unusable(error) from None

    def _execute(self, statement: Any) -> None:
        with self.engine.begin() as connection:
            connection.execute(statement)


def _engine_options(url: sqlalchemy.URL) -> dict[str, Any]:
    """Notice a connection that was lost, and an address where nobody answers."""
    wait = "timeout" if url.get_backend_name() == "sqlite" else "connect_timeout"
    known = url.get_backend_name() in ("sqlite", "postgresql", "mysql", "mariadb")
    given = {wait: CONNECT_SECONDS} if known and wait not in url.query else {}
    return {"pool_pre_ping": True, "connect_args": given}
