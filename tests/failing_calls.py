"""Lets the n-th call of the system fail, as a full, broken or forbidden disk or a lost connection.

What counts is every open, write, fsync, rename and truncation of a file under a folder, by whatever
library, and every statement to a database, in the order in which they come.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy.engine import Engine
from sqlalchemy.exc import OperationalError

ERRORS = {"ENOSPC": errno.ENOSPC, "EIO": errno.EIO, "EACCES": errno.EACCES}


class Faults:
    """Counts calls; the one of a given number fails.

    Attributes:
        calls: what was called, in order.
        failed: whether the call that was to fail came.
    """

    def __init__(self, root: Path, number: int = -1, error: str = "") -> None:
        self.root, self.number, self.error = str(root), number, error
        self.calls: list[str] = []
        self.failed = False

    def concerns(self, path: Any) -> bool:
        """Locks are left out: they are the system's, not the disk's."""
        try:
            name = os.path.abspath(os.fsdecode(path))
        except TypeError:  # a handle, or nothing
            return False
        return name.startswith(self.root) and not name.endswith(("lock", ".locks"))

    def count(self, call: str) -> bool:
        """Note a call; whether it is to fail."""
        self.calls.append(call)
        if len(self.calls) - 1 != self.number:
            return False
        self.failed = True
        return True

    def check(self, call: str, path: Any) -> None:
        if self.concerns(path) and self.count(call):
            raise self.make(path)

    def make(self, path: Any) -> OSError:
        number = ERRORS[self.error]
        return OSError(number, os.strerror(number), os.fsdecode(path))


class _FailingFile(io.FileIO):
    """A file whose writes are counted; the one that fails has written half."""

    faults: Faults

    def write(self, content: Any) -> int:
        if self.faults.count("write"):
            super().write(memoryview(content).cast("B")[: len(content) // 2])
            raise self.faults.make(self.name)
        return super().write(content) or 0


def _open(faults: Faults) -> Callable[..., Any]:
    real = io.open

    def opening(file: Any, mode: str = "r", buffering: int = -1, *more: Any, **options: Any) -> Any:
        if not faults.concerns(file) or options.get("opener"):  # counted by what it opens
            return real(file, mode, buffering, *more, **options)
        writes = any(sign in mode for sign in "wax+")
        faults.check("open to write" if writes else "open to read", file)
        if not writes:
            return real(file, mode, buffering, *more, **options)
        raw = _FailingFile(file, mode.replace("b", "").replace("t", ""))
        raw.faults = faults
        if buffering == 0:
            return raw
        buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, *more[:1], **options)

    return opening


@contextmanager
def failing_files(
    monkeypatch: pytest.MonkeyPatch, root: Path, number: int = -1, error: str = ""
) -> Iterator[Faults]:
    """Within the block the call of that number fails; without a number, all are only counted."""
    faults = Faults(root, number, error)

    def of_path(name: str, position: int = 0) -> None:
        real = getattr(os, name)

        def call(*arguments: Any, **more: Any) -> Any:
            faults.check(name, arguments[position])
            return real(*arguments, **more)

        patched.setattr(os, name, call)

    real_fsync, real_open = os.fsync, os.open

    def opened(path: Any, *arguments: Any, **more: Any) -> int:
        faults.check("open", path)
        return real_open(path, *arguments, **more)

    def fsync(handle: int) -> None:
        faults.check("fsync", os.readlink(f"/proc/self/fd/{handle}"))
        real_fsync(handle)

    with monkeypatch.context() as patched:
        patched.setattr(builtins, "open", _open(faults))
        patched.setattr(io, "open", _open(faults))
        patched.setattr(os, "open", opened)
        patched.setattr(os, "fsync", fsync)
        for name in ("replace", "rename", "mkdir", "truncate"):
            of_path(name)
        yield faults


@contextmanager
def failing_statements(number: int = -1, for_good: bool = False) -> Iterator[Faults]:
    """The same for what is said to a database: the connection is lost before it hears of it.

    Args:
        for_good: all later ones fail, too.
    """
    faults = Faults(Path("/"), number)

    def stated(*arguments: Any) -> None:
        if faults.count("statement") or (for_good and faults.failed):
            raise OperationalError("statement", {}, Exception("server closed the connection"))

    sqlalchemy.event.listen(Engine, "before_cursor_execute", stated)
    try:
        yield faults
    finally:
        sqlalchemy.event.remove(Engine, "before_cursor_execute", stated)


@contextmanager
def read_only(monkeypatch: pytest.MonkeyPatch, root: Path) -> Iterator[None]:
    """Within the block nothing under a folder can be made or changed, not even a lock."""

    def refuse(path: Any) -> None:
        if os.path.abspath(os.fsdecode(path)).startswith(str(root)):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), os.fsdecode(path))

    real_open, real_io = os.open, io.open

    def opened(path: Any, flags: int, *more: Any, **options: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            refuse(path)
        return real_open(path, flags, *more, **options)

    def opening(file: Any, mode: str = "r", *more: Any, **options: Any) -> Any:
        if isinstance(file, str | bytes | os.PathLike) and any(sign in mode for sign in "wax+"):
            refuse(file)
        return real_io(file, mode, *more, **options)

    def of_path(name: str) -> None:
        real = getattr(os, name)

        def call(path: Any, *more: Any, **options: Any) -> Any:
            refuse(path)
            return real(path, *more, **options)

        patched.setattr(os, name, call)

    with monkeypatch.context() as patched:
        patched.setattr(builtins, "open", opening)
        patched.setattr(io, "open", opening)
        patched.setattr(os, "open", opened)
        for name in ("replace", "rename", "mkdir", "truncate", "unlink"):
            of_path(name)
        yield
