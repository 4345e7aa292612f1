"""The journal of a study: a file of one JSON line per event, for the workers of one machine.

Its last line may be torn by a power cut, or be another worker's that is just being written. A line
that is none of ours in the middle ends what can be trusted: trials are known by their order.
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
from optuna.storages.journal import JournalFileBackend

from harness.errors import HarnessError
from harness.records.layout import JOURNAL
from harness.records.records import Count, NotNegative, Setting
from harness.searching.shared import Storage, worker_name
from harness.system.files import append_whole, make_folder, size_of_lines

logger = logging.getLogger(__name__)


class _Identity(TypedDict):
    """What a study measures, and what it searches, as far as a summary relies on it."""

    method: str
    protocol: dict[str, Setting]
    fixed_params: dict[str, Setting]
    space: NotRequired[dict[str, dict[str, Any]]]


class _StudyFacts(TypedDict, total=False):
    identity: _Identity


class _TrialFacts(TypedDict, total=False):
    """What trials say of themselves."""

    index: Count
    worker: str
    folds: list[float]
    seconds: NotNegative
    reason: str
    trouble: str
    retried: str


class _Entry(TypedDict):
    """One event, as far as we rely on it; Optuna refuses the rest as it replays it."""

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


# Optuna's numbers of the entries that hold such facts.
SET_STUDY_FACT, SET_TRIAL_FACT = 2, 8


class DamagedJournal(HarnessError):
    """A journal that cannot be read to its end."""


class Journal(Storage):
    """A file in the run directory. Whoever holds a lock file is alive: the system lets go of it.

    Args:
        reads_only: nothing is written, not even a lock; what stands behind a damage is left out.
    """

    def __init__(self, folder: Path, reads_only: bool = False) -> None:
        self.folder = folder
        self.place = str(folder)
        path = folder / JOURNAL
        self.optuna = self._read(path) if reads_only else self._mended(path)

    def _read(self, path: Path) -> JournalStorage:
        if not path.is_file():
            raise HarnessError(f"there is no {path}")
        file = _JournalFile(path, _NoLock())
        try:
            return _replayed(file)
        except _Unreadable as damage:
            file.most = damage.lines
            said = "what stands before that line is all that can be shown"
            logger.warning("%s, line %d: %s; %s", path, damage.lines + 1, damage.reason, said)
            return JournalStorage(file)

    def _mended(self, path: Path) -> JournalStorage:
        """Cut off what cannot be read, and keep it beside; trials may be lost with it."""
        make_folder(path.parent)
        (path.parent / "workers").mkdir(exist_ok=True)
        lock = _JournalLock(path.with_suffix(".lock"))
        lock.acquire()
        try:
            if path.exists():
                # No search leaves it empty; if none was here, nothing will be found.
                self.lost = path.stat().st_size == 0
                whole = size_of_lines(path)
                if whole < path.stat().st_size:  # torn by a power cut
                    os.truncate(path, whole)
            try:
                return _replayed(_JournalFile(path, lock))
            except _Unreadable as damage:
                self._check_alone(path, damage.lines + 1, damage.reason)
                kept = path.with_suffix(".damaged.journal")
                shutil.copyfile(path, kept)
                os.truncate(path, damage.start)
                logger.warning(
                    "%s is damaged in line %d (%s): what stands before it is kept, all of it is in "
                    "%s",
                    *(path, damage.lines + 1, damage.reason, kept.name),
                )
                self.lost = True
                return JournalStorage(_JournalFile(path, lock))
        finally:
            lock.release()

    def _check_alone(self, path: Path, line: int, reason: str) -> None:
        """Whoever is at work has read more than will be left, and would write behind it."""
        workers = [lock.stem for lock in (self.folder / "workers").glob("*.lock")]
        if self.living(workers):
            raise DamagedJournal(
                f"{path}, line {line}: {reason}\n"
                "  somebody is still at work on this search: stop it, then repeat the command"
            )

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
        with self.exclusive():  # else another one might sweep ours before it is held
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
            with FileLock(self._lock_file(worker), timeout=0):
                return False
        except Timeout:
            return True
        except (OSError, ValueError):  # a name that no file of ours has
            return False

    def _sweep(self) -> None:
        """Remove the lock files of workers that were killed."""
        for lock in (self.folder / "workers").glob("*.lock"):
            if not self.alive(lock.stem):
                with suppress(OSError):
                    lock.unlink()

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


class _NoLock:
    """For who only reads: a line that is being written is not yet looked at."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        pass


class _JournalFile(JournalFileBackend):
    """A journal whose lines are checked as they are read; a failed write leaves nothing in it.

    Attributes:
        most: so many lines are read and no more; None stands for all.
        starts: where each line begins that was read, and the next one.
    """

    def __init__(self, path: Path, lock: Any) -> None:
        super().__init__(str(path), lock_obj=lock)
        self.path = path
        self.most: int | None = None
        self.starts = [0]

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        lines = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs)
        self._lock.acquire()
        try:
            append_whole(self.path, lines.encode())
        finally:
            self._lock.release()

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:  # type: ignore[override]
        with open(self.path, "rb") as file:
            file.seek(self.starts[log_number_from])
            for number, line in enumerate(file, start=log_number_from):
                if number == self.most or not line.endswith(b"\n"):  # torn, or not yet whole
                    return
                try:
                    entry = _checked(line)
                except ValueError as error:
                    raise DamagedJournal(
                        f"{self.path}, line {number + 1}: {error}\n"
                        "  stop whoever is at work on this search, then repeat the command: what "
                        "stands before that line is kept, and so are finished folds"
                    ) from None
                if number + 1 == len(self.starts):
                    self.starts.append(self.starts[number] + len(line))
                yield entry


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
    except (ValueError, RecursionError) as error:  # of msgspec, too
        raise ValueError(f"no entry of a journal ({error})") from None
    return entry


class _Unreadable(Exception):
    """How many lines can be replayed, where the next one starts, and why it cannot."""

    def __init__(self, lines: int, start: int, reason: str) -> None:
        super().__init__(reason)
        self.lines, self.start, self.reason = lines, start, reason


def _replayed(file: _JournalFile) -> JournalStorage:
    """A journal that was read to its end, or the damage that this found."""
    try:
        return JournalStorage(file)
    except DamagedJournal as error:
        reason = str(error).partition("\n")[0].rpartition(": no entry")[2]
        raise _Unreadable(len(file.starts) - 1, file.starts[-1], f"no entry{reason}") from None
    except (OSError, MemoryError):  # no damage of the file
        raise
    except Exception as error:  # whatever an entry makes Optuna stumble over, it is no entry
        said = f"no entry of a journal ({type(error).__name__}: {error})"
        raise _Unreadable(len(file.starts) - 2, file.starts[-2], said) from None
