"""Where a study lives: a journal file for one machine, or a database that many machines reach."""

from __future__ import annotations

import json
import logging
import os
import random
import re
import secrets
import threading
import time
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import sqlalchemy
from filelock import FileLock
from optuna.exceptions import StorageInternalError
from optuna.storages import RDBStorage
from sqlalchemy import exc
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from harness.errors import HarnessError
from harness.foreign_files import read_foreign
from harness.records.layout import FOLDER_ID, LOCK
from harness.redact import lacks_password, redact, without_secrets
from harness.searching.database_tables import CLAIMS, TABLES, WORKERS
from harness.searching.journal import Journal
from harness.searching.shared import Result, Storage, worker_name
from harness.system.files import make_folder, write_text

logger = logging.getLogger(__name__)

URL_VARIABLE = "HARNESS_STORAGE"

EXAMPLE = "postgresql+psycopg://user@host/database"
CONNECT_SECONDS = 10  # then a database counts as unreachable
# Seconds between attempts, ten minutes in all, if a database is full, restarts or was lost.
PATIENCE = (0.25, 0.5, 1, 2, 4, 8, 15, 30, 60, 60, 60, 120, 240)
GRACE = 4  # heartbeats that a worker may miss before it counts as dead
FORGOTTEN = 86400  # seconds after which the row of a worker that was killed is deleted

_FOLDER_ID = re.compile(rb"[0-9a-f]{16}")
IN_FOLDER = "."  # in the name of a worker, before the name of its folder

# What a database says that will take connections later. Anything else is refused at once.
PASSING_TROUBLE = (
    *("too many clients", "too many connections", "connection slots are reserved"),
    *("starting up", "shutting down", "in recovery mode", "administrator command"),
    *("connection refused", "connection reset", "timeout expired", "connection timeout"),
    *("server closed the connection", "temporary failure in name resolution"),
    *("no route to host", "network is unreachable", "database is locked"),
)

# Held while this process has a connection: its threads take turns, so it never has two.
_turn = threading.RLock()


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
        return Database(_with_password(url), folder, study, heartbeat)
    return Journal(folder, reads_only)


def _with_password(url: str) -> str:
    """A URL that can be connected to: one that was written down lacks its password.

    The environment has it, or the password file that PostgreSQL's own programs read.
    """
    if not lacks_password(url):
        return url
    given = os.environ.get(URL_VARIABLE, "")
    if given:
        return given
    if url.startswith("postgresql") and password_file().is_file():
        return sqlalchemy.make_url(url)._replace(password=None).render_as_string()
    raise HarnessError(
        f"the password of {url} was not written down; give --storage again, or set "
        f"{URL_VARIABLE}, or put the password into {password_file()}, with mode 600"
    )


def password_file() -> Path:
    """PostgreSQL's file of passwords. It is ignored if others may read it."""
    return Path(os.path.expanduser(os.environ.get("PGPASSFILE") or "~/.pgpass"))


class Database(Storage):
    """An Optuna database with tables of ours beside it.

    Optuna's heartbeat runs only inside `study.optimize`, so workers have a table of their own.
    Another one has a row per study: the process that has locked the row may claim a trial, and a
    lost connection unlocks it. Two more are those of SharedRecords.

    A process has at most one connection, which is opened when it is needed and closed afterwards.
    A server with the usual limit of 100 connections can thus serve hundreds of workers.
    """

    optuna: RDBStorage

    def __init__(self, url: str, folder: Path, study: str, heartbeat: int) -> None:
        self.url, self.place = url, redact(url)
        self.folder, self.study = folder, study
        self.heartbeat = heartbeat
        self._open = threading.local()  # has the connection of a thread while it has one
        database = self._opened(url)
        self.optuna, self.engine = database, database.engine

    def _opened(self, url: str) -> RDBStorage:
        try:
            parsed = sqlalchemy.make_url(url)
            if parsed.get_backend_name() == "sqlite" and parsed.database in (None, "", ":memory:"):
                raise HarnessError("--storage sqlite:// forgets everything; give sqlite:///FILE")
            options = _engine_options(parsed)
            database = self._repeat(lambda: self._created(url, options), _will_pass)
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
                TABLES.create_all(database.engine)
                if self.study:
                    self._insert(database.engine, CLAIMS.insert().values(study=self.study))
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
        advice = (
            "its tables are damaged, or belong to another program: restore them from a backup, or "
            "give --storage another database"
            if _is_damage(error)
            else "check that it runs, that the name and the password are right, and that you may "
            "create tables there"
        )
        reason = "\n  ".join(self._reason(error).splitlines())
        return HarnessError(f"the storage {self.place} cannot be used:\n  {reason}\n  {advice}")

    def _reason(self, error: Exception) -> str:
        """What the database said, without the password."""
        return without_secrets(_said(error), self.url).strip()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Run all statements of a block, Optuna's as well, on one connection and all or none."""
        if self._is_file:  # Optuna writes to it through connections of its own
            yield
            return
        with self.connected():
            yield

    @contextmanager
    def connected(self) -> Iterator[sqlalchemy.Connection]:
        """The connection of the block around this one, or a new one with its transaction."""
        around = getattr(self._open, "connection", None)
        if around is not None:
            yield around
            return
        with _turn, self.engine.begin() as connection:
            self._open.connection = connection
            if not self._is_file:
                # Optuna commits after each step, which here ends a savepoint of our transaction.
                joined = Session(connection, join_transaction_mode="create_savepoint")
                self.optuna.scoped_session.registry.set(joined)
            try:
                yield connection
            finally:
                self._open.connection = None
                self.optuna.scoped_session.remove()

    @property
    def _is_file(self) -> bool:
        """Whether the database is a file of SQLite: on one machine, and without locks on rows."""
        return self.engine.dialect.name == "sqlite"

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        if self._is_file:
            with FileLock(f"{self.engine.url.database}.lock"):
                yield
            return
        row = sqlalchemy.select(CLAIMS).where(CLAIMS.c.study == self.study).with_for_update()
        with self.connected() as connection:
            if self.engine.dialect.name == "postgresql":
                # A machine without power does not close its connections.
                seconds = GRACE * self.heartbeat
                limit = f"SET LOCAL idle_in_transaction_session_timeout = '{seconds}s'"
                connection.execute(sqlalchemy.text(limit))
            connection.execute(row)
            yield

    @contextmanager
    def joined(self) -> Iterator[str]:
        name = f"{worker_name()}{IN_FOLDER}{self.folder_id}"
        stopped = threading.Event()
        ours = WORKERS.c.name == name
        self.insist(lambda: self._show(name))

        def beat() -> None:
            while not stopped.wait(self.heartbeat):
                try:
                    self._show(name)
                except exc.SQLAlchemyError:
                    continue  # it may come back before anybody misses us

        thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
        thread.start()
        leave = partial(self._execute, WORKERS.delete().where(ours))
        try:
            yield name
        except BaseException:
            stopped.set()
            thread.join()
            with suppress(*LOST):  # others then wait until its heartbeat is missed
                leave()
            raise
        stopped.set()
        thread.join()
        self.insist(leave)

    def _show(self, worker: str) -> None:
        """Show that a worker lives; delete the rows of those that were killed long ago."""
        now = sqlalchemy.func.now()
        with self.connected() as connection:
            seen = WORKERS.update().where(WORKERS.c.name == worker).values(seen=now)
            if not connection.execute(seen).rowcount:
                connection.execute(WORKERS.insert().values(name=worker, seen=now))
                oldest = connection.execute(sqlalchemy.select(now)).scalar_one() - timedelta(
                    seconds=max(FORGOTTEN, GRACE * self.heartbeat)
                )
                connection.execute(WORKERS.delete().where(WORKERS.c.seen < oldest))

    def living(self, workers: Collection[str]) -> set[str]:
        """By the clock of the database alone, in one query for all that are asked after."""
        query = sqlalchemy.select(sqlalchemy.func.now(), WORKERS.c.name, WORKERS.c.seen)
        with self.connected() as connection:
            found = connection.execute(query.where(WORKERS.c.name.in_(workers))).all()
        living = set()
        for now, name, seen in found:
            if seen.tzinfo is None:  # a database that keeps no time zones has but one
                now = now.replace(tzinfo=None)
            if now - seen <= timedelta(seconds=GRACE * self.heartbeat):
                living.add(name)
        return living

    @cached_property
    def folder_id(self) -> str:
        """Names the folder of this storage's runs to all who share it, on whatever machine."""
        path = self.folder / FOLDER_ID
        make_folder(self.folder)
        with FileLock(self.folder / f"{FOLDER_ID}.{LOCK}"):
            if not (path.is_file() and _FOLDER_ID.fullmatch(read_foreign(path))):
                write_text(path, secrets.token_hex(8))
            return read_foreign(path).decode()

    def is_beside(self, worker: str) -> bool:
        return worker.endswith(f"{IN_FOLDER}{self.folder_id}")

    def has_living(self, folder_id: str) -> bool:
        """Whether a worker in the folder of that name still works."""
        of_folder = WORKERS.c.name.like(f"%{IN_FOLDER}{folder_id}")
        with self.connected() as connection:
            names = connection.execute(sqlalchemy.select(WORKERS.c.name).where(of_folder)).scalars()
            return bool(self.living(list(names)))

    def insist(self, action: Callable[[], Result]) -> Result:
        """A database that restarts does not end the search; one that stays away does."""
        try:
            return self._repeat(action, _is_lost)
        except (*LOST, *DAMAGE) as error:
            raise self._unusable(error) from None

    def _repeat(self, action: Callable[[], Result], passes: Callable[[Exception], bool]) -> Result:
        """Repeat an action with growing pauses while it fails for a reason that may pass."""
        for pause in (*_pauses(), None):
            try:
                with _turn:
                    return action()
            except LOST as error:
                if pause is None or not passes(error):
                    raise
                reason = self._reason(error).splitlines() or [type(error).__name__]
                logger.log(
                    logging.WARNING if pause >= 1 else logging.DEBUG,
                    "the storage %s does not answer (%s); trying again in %.0f s",
                    *(self.place, reason[-1].strip(), pause),
                )
            time.sleep(pause)
        raise AssertionError("the last attempt returns or raises")

    @contextmanager
    def naming_trouble(self) -> Iterator[None]:
        try:
            yield
        except (exc.SQLAlchemyError, StorageInternalError, json.JSONDecodeError) as error:
            raise self._unusable(error) from None

    def _execute(self, statement: Any) -> None:
        with self.connected() as connection:
            connection.execute(statement)


# Errors of a connection. PostgreSQL reports an idle transaction that it ended as an InternalError.
LOST = (exc.OperationalError, exc.InterfaceError, exc.InternalError, StorageInternalError)


# Errors of tables that are not ours, or not whole.
DAMAGE = (exc.ProgrammingError, exc.DataError, exc.IntegrityError, json.JSONDecodeError)


def _is_lost(error: Exception) -> bool:
    """Whether to try again on a database that worked before."""
    return isinstance(error, LOST) and not _is_damage(error)


def _is_damage(error: Exception) -> bool:
    """Whether the tables are not as they should be, which no waiting changes."""
    missing = re.search(r"no such (table|column)|has no column", _said(error))  # SQLite's words
    return isinstance(error, DAMAGE) or isinstance(error.__cause__, DAMAGE) or bool(missing)


def _will_pass(error: Exception) -> bool:
    """Whether to try again on a database that was never reached: not with a wrong password."""
    said = _said(error).lower()
    return any(words in said for words in PASSING_TROUBLE)


def _said(error: Exception) -> str:
    """What the database itself said."""
    while isinstance(error, StorageInternalError) and isinstance(error.__cause__, Exception):
        error = error.__cause__
    return str(getattr(error, "orig", None) or error.__cause__ or error)


def _pauses() -> Iterator[float]:
    """Seconds between attempts, different in each worker so that not all return at once."""
    chance = random.SystemRandom()  # leaves the random numbers of the training alone
    return (pause * chance.uniform(0.5, 1.5) for pause in PATIENCE)


def _engine_options(url: sqlalchemy.URL) -> dict[str, Any]:
    """Keep no connection open, and notice an address where nobody answers."""
    wait = "timeout" if url.get_backend_name() == "sqlite" else "connect_timeout"
    known = url.get_backend_name() in ("sqlite", "postgresql", "mysql", "mariadb")
    given = {wait: CONNECT_SECONDS} if known and wait not in url.query else {}
    return {"poolclass": NullPool, "connect_args": given}
