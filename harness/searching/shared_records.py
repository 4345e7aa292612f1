"""Records and configs in a database, for machines that share no folder.

Every machine keeps its runs and results in folders of its own, and copies its records to the
database. It fetches those of other machines when it needs them. Weights are not copied.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import optuna
import sqlalchemy
from sqlalchemy import exc

from harness.config import RunConfig
from harness.errors import HarnessError
from harness.experiment import Experiment
from harness.foreign_files import read_foreign
from harness.records.layout import LEDGER, RECORDS
from harness.records.ledger import Opening, add_openings, read_ledger
from harness.searching.database_tables import COPIES, LEASES
from harness.searching.shared import Result, Storage
from harness.searching.storage import Database, open_storage
from harness.system.files import write_text
from harness.typed import convert

CONFIG_FACT = "config"  # of a study

# What a config says of one machine; another one decides for itself.
OF_MACHINE = (
    *("runs_dir", "results_dir", "cache_dir", "stage_to", "data_root", "storage"),
    *("device", "workers", "per_gpu", "loader_workers"),
)

# A database may be somebody else's: no name in it leads out of our folders.
_PART = r"(?!\.)[^/\\]+"
_STUDY = re.compile(rf"{_PART}/{_PART}/{_PART}(/seed-\d+)?")
_RECORD = re.compile(rf"{RECORDS}/{_PART}/{_PART}\.json")
_OPENING = re.compile(rf"{re.escape(LEDGER)}#\w+")

_AT_ONCE = 100  # copies in one query


def find_stored_configs(url: str) -> dict[str, dict[str, Any]]:
    """Name of a study -> the config that goes on with it, for all studies of a database.

    Studies that were begun before configs were kept with them are left out.
    """
    storage = open_storage(url, Path(), study="", heartbeat=RunConfig().heartbeat)
    with storage.naming_trouble(), storage.transaction():
        studies = storage.optuna.get_all_studies()
    found = {one.study_name: one.user_attrs.get(CONFIG_FACT) for one in studies}
    return {
        name: config
        for name, config in found.items()
        if isinstance(config, dict) and _STUDY.fullmatch(name)
    }


def shared_records(experiment: Experiment, storage: Storage) -> SharedRecords:
    """Those of an experiment's search and table."""
    config = experiment.config
    return SharedRecords(storage, Path(config.runs_dir), Path(config.results_dir))


class SharedRecords:
    """Copies of records in the database of a study.

    Where trials are in a journal there are no other machines: nothing is copied, and every piece
    of work may be done here.

    Args:
        runs: folder of all runs.
        results: folder of all tables.
    """

    def __init__(self, storage: Storage, runs: Path, results: Path) -> None:
        self.storage = storage
        self._roots = {"runs": runs, "results": results}
        self._database = storage if isinstance(storage, Database) else None

    @property
    def are_shared(self) -> bool:
        return self._database is not None

    def keep_config(self, study: optuna.Study, config: RunConfig) -> None:
        """Keep with a study what goes on with it, for machines that do not see its folder."""
        values = {name: value for name, value in asdict(config).items() if name not in OF_MACHINE}
        if self.are_shared and study.user_attrs.get(CONFIG_FACT) != values:
            self.storage.insist(lambda: study.set_user_attr(CONFIG_FACT, values))

    def send(self, paths: Iterable[Path]) -> None:
        """Copy those of some files that exist. A copy that is there already stays as it is."""
        if self.are_shared:
            found = {self._name(path): path for path in paths if path.is_file()}
            missing = found.keys() - self._copies(found).keys()
            self._add({name: read_foreign(found[name]).decode() for name in missing})

    def fetch(self, paths: Iterable[Path]) -> None:
        """Bring those of some files that are copied and do not exist here."""
        if self.are_shared:
            missing = {self._name(path): path for path in paths if not path.exists()}
            for name, content in self._copies(missing).items():
                write_text(missing[name], content)

    def send_openings(self, table: Path) -> None:
        """Copy the ledger of a table."""
        if self.are_shared:
            lines = self._openings(table)
            known = self._names(f"{self._name(table / LEDGER)}#")
            self._add({name: lines[name] for name in lines.keys() - known})

    def fetch_table(self, table: Path) -> None:
        """Bring the records of a table, and the openings that its ledger lacks."""
        if not self.are_shared:
            return
        start = f"{self._name(table)}/"
        names = [name.removeprefix(start) for name in self._names(start)]
        self.fetch(table / name for name in names if _RECORD.fullmatch(name))
        openings = {start + name for name in names if _OPENING.fullmatch(name)}
        missing = self._copies(openings - self._openings(table).keys())
        add_openings(table, [_opening(line) for line in missing.values()])

    def lease(self, work: Path) -> bool:
        """Whether workers in this folder may do some work, because no other machine does it.

        The work stays theirs until it is released, or until the last of them has ended.

        Args:
            work: path of what comes of it.
        """
        database = self._database
        return database is None or database.insist(lambda: _lease(database, self._name(work)))

    def release(self, work: Path) -> None:
        """Leave some work to other machines."""
        if self._database is not None:
            ours = (LEASES.c.work == self._name(work), LEASES.c.folder == self._database.folder_id)
            self._run(LEASES.delete().where(*ours))

    def _name(self, path: Path) -> str:
        """What a file is called in the database: its path below one of the two folders."""
        above = {kind: root for kind, root in self._roots.items() if path.is_relative_to(root)}
        kind, root = max(above.items(), key=lambda item: len(item[1].parts))
        return f"{kind}/{path.relative_to(root).as_posix()}"

    def _openings(self, table: Path) -> dict[str, str]:
        """Name -> line, of the ledger that is here."""
        lines = [json.dumps(entry, sort_keys=True) for entry in read_ledger(table / LEDGER, [])]
        digests = [hashlib.sha256(line.encode()).hexdigest()[:24] for line in lines]
        ledger = self._name(table / LEDGER)
        return {f"{ledger}#{digest}": line for digest, line in zip(digests, lines, strict=True)}

    def _names(self, start: str) -> list[str]:
        """The copies whose names begin like this."""
        begins = sqlalchemy.func.substr(COPIES.c.path, 1, len(start)) == start
        return [path for (path,) in self._rows(sqlalchemy.select(COPIES.c.path).where(begins))]

    def _copies(self, names: Iterable[str]) -> dict[str, str]:
        """Name -> content, of those that are there."""
        found: dict[str, str] = {}
        asked = sorted(names)
        for start in range(0, len(asked), _AT_ONCE):
            some = COPIES.c.path.in_(asked[start : start + _AT_ONCE])
            query = sqlalchemy.select(COPIES.c.path, COPIES.c.content).where(some)
            found |= {path: content for path, content in self._rows(query)}
        return found

    def _add(self, contents: Mapping[str, str]) -> None:
        database = self._database
        assert database is not None, "asked only where records are shared"
        for name in sorted(contents):
            row = COPIES.insert().values(path=name, content=contents[name])
            database.insist(partial(_insert, database, row))

    def _rows(self, query: sqlalchemy.Select[Any]) -> list[tuple[Any, ...]]:
        return self._insist(lambda connection: [tuple(row) for row in connection.execute(query)])

    def _run(self, statement: sqlalchemy.Executable) -> None:
        self._insist(lambda connection: connection.execute(statement))

    def _insist(self, action: Callable[[sqlalchemy.Connection], Result]) -> Result:
        database = self._database
        assert database is not None, "asked only where records are shared"

        def act() -> Result:
            with database.connected() as connection:
                return action(connection)

        return database.insist(act)


def _lease(database: Database, work: str) -> bool:
    """Take a piece of work, unless workers in another folder are at it."""
    row, ours = LEASES.c.work == work, database.folder_id
    with database.exclusive(), database.connected() as connection:
        holder = connection.execute(sqlalchemy.select(LEASES.c.folder).where(row)).scalar()
        if holder is None:
            return _insert(database, LEASES.insert().values(work=work, folder=ours))
        if holder != ours:
            if database.has_living(holder):
                return False
            connection.execute(LEASES.update().where(row).values(folder=ours))
    return True


def _insert(database: Database, row: sqlalchemy.Insert) -> bool:
    """False if another machine has just inserted one with the same key."""
    try:
        with database.connected() as connection:
            connection.execute(row)
    except exc.IntegrityError:
        return False
    return True


def _opening(line: str) -> Opening:
    try:
        entry: Opening = msgspec.json.decode(line)
        convert(entry, Opening, "it")
    except (ValueError, RecursionError) as error:
        raise HarnessError(f"the database has a damaged ledger entry: {error}") from None
    return entry
