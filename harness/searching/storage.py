"""Where a study lives: a journal file for one machine, or a database that many machines reach."""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy
from filelock import FileLock, Timeout
from optuna.exceptions import StorageInternalError
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from sqlalchemy import exc

from harness.errors import HarnessError
from harness.redact import lacks_password, redact, without_secrets
from harness.results.layout import JOURNAL
from harness.system.files import append_whole, make_folder, size_of_lines

URL_VARIABLE = "HARNESS_STORAGE"

EXAMPLE = "postgresql+psycopg://user@host/database"
CONNECT_SECONDS = 10  # then a database counts as unreachable
PATIENCE = (1, 5, 30, 60, 120, 300)  # seconds between attempts when one that worked goes away
GRACE = 4  # heartbeats that a worker may miss before it counts as dead

Result = TypeVar("Result")


class Storage(ABC):
    """What the workers of a study share.

    Attributes:
        optuna: keeps the trials.
        place: name for people.
    """

    optuna: BaseStorage
    place: str

    @abstractmethod
    def exclusive(self) -> AbstractContextManager[None]:
        """One worker of the study at a time, on whatever machine; ends when its holder dies."""

    @abstractmethod
    def joined(self) -> AbstractContextManager[str]:
        """Be a worker: a name, alive until the block or the process ends."""

    @abstractmethod
    def alive(self, worker: str) -> bool:
        """Whether the worker of that name still works."""

    def insist(self, action: Callable[[], Result]) -> Result:
        """Do something that may be done twice, however often it takes."""
        return action()

    @contextmanager
    def naming_trouble(self) -> Iterator[None]:
        """Say in words what became of the storage, for who does not wait until it is back."""
        yield


def open_storage(url: str, folder: Path, study: str, heartbeat: int) -> Storage:
    """The storage at a URL, or the journal of a folder if there is none.

    Args:
        study: name of the study that the workers share.
        heartbeat: seconds between two signs of life where machines are many.
    """
    return Database(_with_password(url), study, heartbeat) if url else Journal(folder)


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


class Journal(Storage):
    """A file in the run directory. Whoever holds a lock file is alive: the system lets go of it."""

    def __init__(self, folder: Path) -> None:
        make_folder(folder)
        self.folder = folder
        self.place = str(folder)
        self.optuna = _open_journal(folder / JOURNAL)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        with FileLock(self.folder / "claim.lock"):
            yield

    @contextmanager
    def joined(self) -> Iterator[str]:
        name = _worker_name()
        path = self._lock_file(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path):
            yield name
        path.unlink(missing_ok=True)

    def alive(self, worker: str) -> bool:
        try:
            with FileLock(self._lock_file(worker), timeout=0):
                return False
        except Timeout:
            return True

    def _lock_file(self, worker: str) -> Path:
        return self.folder / "workers" / f"{worker}.lock"


class _JournalLock:
    """A lock that the system releases when its holder dies; Optuna's own outlives it."""

    def __init__(self, path: Path) -> None:
        self._lock = FileLock(path)

    def acquire(self) -> bool:
        self._lock.acquire()
        return True

    def release(self) -> None:
        self._lock.release()


class _JournalFile(JournalFileBackend):
    """A journal in which an entry that could not be written leaves nothing behind."""

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        lines = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs)
        self._lock.acquire()
        try:
            append_whole(Path(self._file_path), lines.encode())
        finally:
            self._lock.release()


def _open_journal(path: Path) -> JournalStorage:
    """The journal, without the unfinished line that a power cut can leave at its end."""
    lock = _JournalLock(path.with_suffix(".lock"))
    lock.acquire()
    try:
        if path.exists() and (whole := size_of_lines(path)) < path.stat().st_size:
            os.truncate(path, whole)
    finally:
        lock.release()
    return JournalStorage(_JournalFile(str(path), lock_obj=lock))  # type: ignore[arg-type]


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
        name = _worker_name()
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

    def alive(self, worker: str) -> bool:
        """By the clock of the database alone."""
        query = sqlalchemy.select(sqlalchemy.func.now(), _workers.c.seen)
        with self.engine.begin() as connection:
            found = connection.execute(query.where(_workers.c.name == worker)).one_or_none()
        if found is None:
            return False
        now, seen = found
        if seen.tzinfo is None:  # a database that keeps no time zones has but one
            now = now.replace(tzinfo=None)
        return now - seen <= timedelta(seconds=GRACE * self.heartbeat)

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


def _worker_name() -> str:
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
