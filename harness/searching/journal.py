"""The journal of a study: a file with one JSON line per event, for the workers of one machine.

The last line may be incomplete, after a power cut or while another worker writes it. A line in the
middle that is not an entry ends what can be trusted, because trials are numbered by their order.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import msgspec
from filelock import FileLock, Timeout
from optuna.storages import JournalStorage
from optuna.storages.journal import BaseJournalBackend

from harness.errors import HarnessError
from harness.records.layout import JOURNAL
from harness.records.records import Count, NotNegative, Setting
from harness.searching.shared import Storage, worker_name
from harness.system.files import append_whole, make_folder, size_of_lines

logger = logging.getLogger(__name__)


class _Identity(TypedDict):
    """The part of a study's identity that a summary relies on."""

    method: str
    protocol: dict[str, Setting]
    fixed_params: dict[str, Setting]
    space: NotRequired[dict[str, dict[str, Any]]]


class _StudyFacts(TypedDict, total=False):
    identity: _Identity
    wanted: Count


class _TrialFacts(TypedDict, total=False):
    """User attributes of a trial."""

    index: Count
    worker: str
    folds: list[float]
    seconds: NotNegative
    reason: str
    trouble: str
    retried: str


class _Entry(TypedDict):
    """The fields of an event that we rely on; Optuna checks the others when it replays it."""

    op_code: Count
    worker_id: str
    study_name: NotRequired[str]
    study_id: NotRequired[Count]
    trial_id: NotRequired[Count]
    values: NotRequired[list[float] | None]
    params: NotRequired[dict[str, float]]
    distributions: NotRequired[dict[str, str]]
    user_attrs: NotRequired[_TrialFacts]
    user_attr: NotRequired[dict[str, Any]]


# Optuna's numbers of the entries that hold user attributes.
SET_STUDY_FACT, SET_TRIAL_FACT = 2, 8


class DamagedJournal(HarnessError):
    """A journal that cannot be read to its end.

    Attributes:
        lines: number of lines before the damage.
        size: their bytes.
        reason: what is wrong with the next line.
    """

    def __init__(self, path: Path, lines: int, size: int, reason: str) -> None:
        super().__init__(
            f"{path}, line {lines + 1}: {reason}\n"
            "  stop all workers of this search, then repeat the command: the lines before it are "
            "kept, and finished folds are used again"
        )
        self.lines, self.size, self.reason = lines, size, reason


class Journal(Storage):
    """A file in the run directory. A worker is alive while it holds its lock file.

    The system releases the lock of a process that dies.

    Args:
        reads_only: write nothing, not even a lock, and leave out what follows a damaged line.
    """

    def __init__(self, folder: Path, reads_only: bool = False) -> None:
        self.folder = folder
        self.place = str(folder)
        path = folder / JOURNAL
        self.optuna = self._read(path) if reads_only else self._repaired(path)

    def _read(self, path: Path) -> JournalStorage:
        if not path.is_file():
            raise HarnessError(f"there is no {path}")
        file = _JournalFile(path)
        try:
            return file.replayed()
        except DamagedJournal as damage:
            file.most = damage.lines
            said = "only what precedes this line is shown"
            logger.warning("%s, line %d: %s; %s", path, damage.lines + 1, damage.reason, said)
            return file.replayed()

    def _repaired(self, path: Path) -> JournalStorage:
        """Cut off what cannot be read and keep a copy of all; trials may be lost with it."""
        make_folder(path.parent)
        (path.parent / "workers").mkdir(exist_ok=True)
        lock = FileLock(path.with_suffix(".lock"))
        with lock:
            # A search never leaves it empty. If there was none, there are no folds to count.
            self.lost = path.exists() and path.stat().st_size == 0
            path.touch()
            whole = size_of_lines(path)
            if whole < path.stat().st_size:  # incomplete since a power cut
                os.truncate(path, whole)
            try:
                return _JournalFile(path, lock).replayed()
            except DamagedJournal as damage:
                self._check_alone(path, damage)
                kept = path.with_suffix(".damaged.journal")
                shutil.copyfile(path, kept)
                os.truncate(path, damage.size)
                logger.warning(
                    "%s is damaged in line %d (%s): the lines before it are kept, a copy of the "
                    "whole file is in %s",
                    *(path, damage.lines + 1, damage.reason, kept.name),
                )
                self.lost = True
                return _JournalFile(path, lock).replayed()

    def _check_alone(self, path: Path, damage: DamagedJournal) -> None:
        """Refuse to cut what living workers have read, who would write behind it."""
        workers = [lock.stem for lock in (self.folder / "workers").glob("*.lock")]
        if self.living(workers):
            raise HarnessError(
                f"{path}, line {damage.lines + 1}: {damage.reason}\n"
                "  a worker of this search is still at work: stop it, then repeat the command"
            ) from None

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        with FileLock(self.folder / "claim.lock"):
            yield

    @contextmanager
    def joined(self) -> Iterator[str]:
        name = worker_name()
        path = self._lock_file(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path)
        with self.exclusive():  # else another worker may remove our file before we hold it
            lock.acquire()
            self._sweep()
        try:
            yield name
        finally:
            lock.release()
        path.unlink(missing_ok=True)

    def living(self, workers: Collection[str]) -> set[str]:
        return set(filter(self._holds_its_lock, workers))

    def _holds_its_lock(self, worker: str) -> bool:
        try:
            if not self._lock_file(worker).is_file():
                return False
            with FileLock(self._lock_file(worker), timeout=0):
                return False
        except Timeout:
            return True
        except (OSError, ValueError):  # not a name of ours
            return False

    def _sweep(self) -> None:
        """Remove the lock files of workers that were killed."""
        for lock in (self.folder / "workers").glob("*.lock"):
            if not self.alive(lock.stem):
                with suppress(OSError):
                    lock.unlink()

    def _lock_file(self, worker: str) -> Path:
        return self.folder / "workers" / f"{worker}.lock"


class _JournalFile(BaseJournalBackend):
    """A journal whose lines are checked as they are read; a failed write leaves nothing in it.

    Optuna's own lock outlives a process that dies, ours does not.

    Args:
        lock: for writing; without it the file is only read.

    Attributes:
        most: number of lines to read; None for all.
        starts: positions of the lines that were read, and of the next one.
    """

    def __init__(self, path: Path, lock: FileLock | None = None) -> None:
        self.path, self.lock = path, lock
        self.most: int | None = None
        self.starts = [0]

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        assert self.lock is not None, "a journal that is only read"
        lines = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs)
        with self.lock:
            append_whole(self.path, lines.encode())

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        with open(self.path, "rb") as file:
            file.seek(self.starts[log_number_from])
            for number, line in enumerate(file, start=log_number_from):
                if number == self.most or not line.endswith(b"\n"):  # incomplete, or not yet whole
                    return
                try:
                    entry = _checked(line)
                except ValueError as error:
                    raise self._damaged(number, str(error)) from None
                if number + 1 == len(self.starts):
                    self.starts.append(self.starts[number] + len(line))
                yield entry

    def replayed(self) -> JournalStorage:
        """The trials of the journal.

        Raises:
            DamagedJournal: a line is not an entry, or Optuna cannot replay it.
        """
        try:
            return JournalStorage(self)
        except (HarnessError, OSError, MemoryError):  # the last two are no damage of the file
            raise
        except Exception as error:  # whatever Optuna makes of an entry that only looks like one
            last = len(self.starts) - 2
            raise self._damaged(last, f"{type(error).__name__}: {error}") from None

    def _damaged(self, line: int, reason: str) -> DamagedJournal:
        said = f"not an entry of a journal ({reason})"
        return DamagedJournal(self.path, line, self.starts[line], said)


def _checked(line: bytes) -> dict[str, Any]:
    """An entry whose types are right; ValueError for anything else."""
    try:
        entry: dict[str, Any] = msgspec.json.decode(line)
        msgspec.convert(entry, _Entry)
        if entry.get("params", {}).keys() != entry.get("distributions", {}).keys():
            raise ValueError("a trial whose parameters are not those of its ranges")
        of_study, of_trial = entry["op_code"] == SET_STUDY_FACT, entry["op_code"] == SET_TRIAL_FACT
        if of_study or of_trial:
            msgspec.convert(entry.get("user_attr"), _StudyFacts if of_study else _TrialFacts)
    except RecursionError as error:
        raise ValueError(str(error)) from None
    return entry
