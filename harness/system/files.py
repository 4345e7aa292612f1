"""Files that are either there whole or not at all."""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, TypeVar

from filelock import FileLock

from harness.errors import HarnessError, MachineError
from harness.foreign_files import check_not_a_link, read_foreign

logger = logging.getLogger(__name__)

UNFINISHED = ".unfinished"
LONGEST_WRITE = 3600  # seconds; of one file, which takes less than one

# What a write fails with when the disk is full, over quota, or not ours to write to.
DISK_TROUBLE = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG),
    *(errno.EROFS, errno.EACCES, errno.EPERM),
)
MIN_FREE = 200_000_000  # bytes; a search needs some for checkpoints

# What reading a file that is gone, cut short or overwritten raises.
DAMAGE = (FileNotFoundError, IsADirectoryError, ValueError, KeyError, TypeError, EOFError)

Opened = TypeVar("Opened")


def is_disk_trouble(error: BaseException) -> bool:
    """Whether an error is the disk's or its owner's, and would meet every other run too."""
    return isinstance(error, OSError) and error.errno in DISK_TROUBLE


@contextmanager
def naming_disk_trouble() -> Iterator[None]:
    """Turn what the system refused into an error that says what to do."""
    try:
        yield
    except OSError as error:
        mend = "make room or get the rights" if is_disk_trouble(error) else "see to it"
        raise MachineError(
            f"cannot use {spell_os_error(error)}\n"
            f"  {mend}, then repeat the command to go on where it stopped"
        ) from error


def spell_os_error(error: OSError) -> str:
    """The file, or the disk where it is known to be one's, then what is wrong with it."""
    if error.strerror is None or (error.filename is None and not is_disk_trouble(error)):
        return f"{type(error).__name__}: {error.strerror or error}"
    return f"{error.filename or 'the disk'}: {error.strerror}"


def check_writable(folder: Path) -> None:
    """Refuse a folder that cannot be made or written to, or whose disk is almost full."""
    above = folder.absolute()
    while not above.exists():
        above = above.parent
    try:
        with tempfile.TemporaryFile(dir=above):
            pass
        free = shutil.disk_usage(above).free
    except OSError as error:
        raise HarnessError(f"cannot write to {folder}: {error.strerror}") from None
    if free < MIN_FREE:
        raise HarnessError(
            f"only {free / 1e6:.0f} MB are free for {folder}; at least {MIN_FREE / 1e6:.0f} MB are "
            "needed"
        )


def make_folder(folder: Path) -> None:
    """A folder that survives a power cut, with those it lies in."""
    if not folder.exists():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def remove_leftovers(folder: Path) -> None:
    """Remove what a writer that was killed left behind; only for who holds the folder's lock."""
    for path in folder.glob(f".*{UNFINISHED}"):
        path.unlink(missing_ok=True)


def remove_old_leftovers(folder: Path) -> None:
    """The same below a folder that others write to: only what nobody can still be writing."""
    for path in folder.rglob(f".*{UNFINISHED}"):
        with suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime > LONGEST_WRITE:
                path.unlink()


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file to write that takes the place of `path` only when it is complete and on disk."""
    make_folder(path.parent)
    # Not by tempfile, whose files are closed to everybody else, whatever the umask says.
    name = path.parent / f".{path.name}.{uuid.uuid4().hex}{UNFINISHED}"
    try:
        with open(name, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException as error:
        name.unlink(missing_ok=True)
        _name_file(error, path)
        raise
    sync_folder(path.parent)


def set_aside(path: Path, reason: object) -> None:
    """Move a damaged file out of the way, and say so; what it held is then made again."""
    place = path.with_name(f"{path.stem}.damaged{path.suffix}")
    os.replace(path, place)
    logger.warning("%s is damaged (%s); it is kept as %s, and made again", path, reason, place.name)


def build_once(
    folder: Path, build: Callable[[Path], None], read: Callable[[Path], Opened]
) -> Opened:
    """What is in `folder`, whole: one process builds it, others wait for it.

    Args:
        build: fills an empty folder, which takes its place when it is complete.
        read: opens the folder; for one that is damaged, which is then built again, it raises one
            of DAMAGE.
    """
    with suppress(*DAMAGE):
        return read(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        try:
            return read(folder)  # another process was faster
        except DAMAGE as error:
            if folder.exists():
                logger.warning("%s is damaged (%s) and is built again", folder, error)
        for left_behind in folder.parent.glob(f".{folder.name}.*"):  # by one that was killed
            shutil.rmtree(left_behind, ignore_errors=True)
        work = folder.parent / f".{folder.name}.{uuid.uuid4().hex}"
        work.mkdir()
        try:
            build(work)
            if folder.exists():
                os.replace(folder, work.with_name(f"{work.name}.damaged"))
            os.replace(work, folder)
        except BaseException:
            shutil.rmtree(work, ignore_errors=True)
            raise
        shutil.rmtree(work.with_name(f"{work.name}.damaged"), ignore_errors=True)
        sync_folder(folder.parent)
        try:
            return read(folder)
        except DAMAGE as error:
            raise MachineError(f"{folder} cannot be read back as it was written: {error}") from None


def sync_folder(folder: Path) -> None:
    """Make renames in a folder survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_text(path: Path, text: str) -> None:
    with replacing(path) as file:
        file.write(text.encode())


# A list of plain numbers as `indent` spreads it; a raw line break never stands inside a string.
_SPREAD_NUMBERS = re.compile(r'\[\n([^\[\]{}"]*)\n *\]')


def write_json(path: Path, value: Any) -> None:
    """Indented for people, but every list of numbers on one line."""
    text = json.dumps(value, indent=1, sort_keys=True)
    packed = _SPREAD_NUMBERS.sub(lambda spread: f"[{' '.join(spread[1].split())}]", text)
    write_text(path, packed + "\n")


def read_json(path: Path) -> Any:
    """The value in a file; ValueError for one that holds none."""
    try:
        return json.loads(read_foreign(path))
    except RecursionError:
        raise ValueError(f"{path.name} is nested too deeply") from None


def append_lines(path: Path, values: Iterable[Any]) -> None:
    """Append JSON lines, all or none; only for who holds a lock on the file."""
    text = "".join(json.dumps(value, sort_keys=True) + "\n" for value in values)
    if text:
        make_folder(path.parent)
        append_whole(path, text.encode())


def append_whole(path: Path, lines: bytes) -> None:
    """Append lines, all or none, in the place of one that a power cut left torn."""
    check_not_a_link(path)
    with open(path, "ab", buffering=0) as file:  # else closing it would write what had failed
        whole = size_of_lines(path)
        file.truncate(whole)
        try:
            left = memoryview(lines)
            while left:
                left = left[file.write(left) :]
            os.fsync(file.fileno())
        except OSError as error:
            file.truncate(whole)
            _name_file(error, path)
            raise


def _name_file(error: BaseException, path: Path) -> None:
    """Say which disk is full: the system does not when it refuses to write to an open file."""
    if isinstance(error, OSError) and is_disk_trouble(error) and error.filename is None:
        error.filename = str(path)


def size_of_lines(path: Path) -> int:
    """Bytes of a file up to the end of its last whole line."""
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        if file.read(1) == b"\n":  # as almost always: a long file is not read
            return size
        file.seek(0)
        return file.read().rfind(b"\n") + 1


# Folders of the cache: built once, whole, and never so large that they fill the disk.

SPARE_BYTES = 2**30  # to leave free on the disk
ELSEWHERE = "give another folder: --cache-dir PATH, or HARNESS_CACHE=PATH"


def build_cache(
    folder: Path,
    build: Callable[[Path], None],
    read: Callable[[Path], Opened],
    elsewhere: str = ELSEWHERE,
) -> Opened:
    """`build_once`, with trouble of the disk in words.

    Args:
        elsewhere: what a user can do if the folder cannot be written to.
    """
    try:
        return build_once(folder, build, read)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise _no_room(folder.parent, "the disk became full", elsewhere) from None
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR):
            raise HarnessError(
                f"cannot write the cache in {folder.parent}: {error.strerror}\n  {elsewhere}"
            ) from None
        raise


def check_room(work: Path, needed: int, what: str, elsewhere: str = ELSEWHERE) -> None:
    """Refuse to build what would fill the disk.

    Args:
        work: the folder that `build` was given.
        needed: bytes.
        what: takes them, for the message.
        elsewhere: what a user can do beside making room.
    """
    free = shutil.disk_usage(work).free
    if needed + SPARE_BYTES > free:
        reason = f"{what} take about {needed / 1e9:.1f} GB; {free / 1e9:.1f} GB are free"
        raise _no_room(work.parent, reason, elsewhere)


def _no_room(cache_dir: Path, reason: str, elsewhere: str) -> HarnessError:
    return HarnessError(
        f"no room for the cache in {cache_dir}: {reason}\n  make room, or {elsewhere}"
    )
