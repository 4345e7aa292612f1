"""Files of the cache that are memory-mapped, with a checksum of every block.

Damage is found in seconds, and the message says where it is. Caches that were written before there
were such checksums get theirs when they are next opened.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TypedDict

from harness.errors import EnvironmentFault
from harness.system.files import read_json, write_json
from harness.system.workers import cores
from harness.typed import convert

BLOCK_BYTES = 2**20
CHECKSUMS = "checksums.json"  # in the folder of the file


class _Checksums(TypedDict):
    """What checksums.json says of a file: the CRC-32 of each of its blocks."""

    block_bytes: int
    crc32: list[int]


class ChecksummingWriter:
    """Writes to a file, and computes the checksum of every block on the way."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.checksums: list[int] = []
        self._filled = BLOCK_BYTES  # bytes in the last block

    def write(self, data: bytes) -> int:
        left = memoryview(data).cast("B")
        while left:
            if self._filled == BLOCK_BYTES:
                self.checksums.append(0)
                self._filled = 0
            part = left[: BLOCK_BYTES - self._filled]
            self.checksums[-1] = zlib.crc32(part, self.checksums[-1])
            self._filled += len(part)
            left = left[len(part) :]
        return self.file.write(data)

    def sync(self) -> None:
        """Wait until the data is on the disk."""
        self.file.flush()
        os.fsync(self.file.fileno())

    def write_checksums(self, folder: Path) -> None:
        _write_checksums(folder, self.checksums)


@dataclass(frozen=True)
class MappedFile:
    """A file of the cache that this process has mapped, and what its bytes should be.

    Attributes:
        meta: the file without which its folder counts as damaged and is built again.
        inode: device and number of the file that was mapped.
        size: bytes.
        checksums: CRC-32 of each block.
    """

    path: Path
    meta: Path
    inode: tuple[int, int]
    size: int
    checksums: Sequence[int]

    @classmethod
    def describe(cls, path: Path, meta: Path) -> MappedFile:
        """Describe a file that was just mapped. ValueError if its checksums are damaged."""
        status = path.stat()
        try:
            found = convert(read_json(path.parent / CHECKSUMS), _Checksums, CHECKSUMS)
        except FileNotFoundError:  # the cache is older than these checksums
            with open(path, "rb") as file:
                checksums = list(_checksums_of(file))
            with suppress(OSError):  # a cache that others own: computed every time
                _write_checksums(path.parent, checksums)
        else:
            checksums = found["crc32"]
            blocks = -(-status.st_size // BLOCK_BYTES)
            if found["block_bytes"] != BLOCK_BYTES or len(checksums) != blocks:
                raise ValueError(f"{CHECKSUMS} is not of {path.name}")
        return cls(path, meta, (status.st_dev, status.st_ino), status.st_size, checksums)

    def moved(self, folder: Path) -> MappedFile:
        """A copy of the file in another folder, with the checksums that it should have."""
        path = folder / self.path.name
        _write_checksums(folder, list(self.checksums))
        status = path.stat()
        return replace(
            self, path=path, meta=folder / self.meta.name, inode=(status.st_dev, status.st_ino)
        )

    def check(self) -> None:
        """Raise EnvironmentFault if the file is not what it was, and have it built again.

        The file is read, not the mapped memory: reading what is behind the end of a file that was
        cut short would end the process. A cache that was deleted is no fault: the mapped data
        remain until the process ends.
        """
        try:
            damage = self.find_damage()
        except FileNotFoundError:
            return
        except OSError as error:
            damage = f"cannot be read: {error.strerror}"
        if not damage:
            return
        with suppress(OSError):
            self.meta.unlink()
        rebuilt = "it is built again when you repeat the command"
        if self.meta.exists():
            rebuilt = f"delete {self.path.parent}, then repeat the command"
        raise EnvironmentFault(
            f"{self.path} {damage}\n"
            f"  {rebuilt}; if this happens again, check the disk and its file system"
        )

    def find_damage(self) -> str:
        """What is wrong with the file; empty if every block is what it was."""
        with open(self.path, "rb") as file:
            status = os.fstat(file.fileno())
            if (status.st_dev, status.st_ino) != self.inode:
                return "was replaced by another process while it was in use"
            if status.st_size != self.size:
                return f"has {status.st_size:,} bytes instead of {self.size:,}"
            found = list(_checksums_of(file))
        pairs = enumerate(zip(found, self.checksums, strict=True))
        damaged = [number for number, (now, before) in pairs if now != before]
        if not damaged:
            return ""
        first, last = damaged[0] * BLOCK_BYTES, min((damaged[-1] + 1) * BLOCK_BYTES, self.size)
        return (
            f"is damaged between bytes {first:,} and {last:,}: {len(damaged)} of "
            f"{len(found)} blocks have another checksum"
        )


def _checksums_of(file: IO[bytes]) -> Iterator[int]:
    """CRC-32 of each block of an open file."""
    size, handle = os.fstat(file.fileno()).st_size, file.fileno()
    # Both os.pread and zlib.crc32 work without Python's lock.
    with ThreadPoolExecutor(cores()) as pool:
        yield from pool.map(
            lambda start: zlib.crc32(os.pread(handle, BLOCK_BYTES, start)),
            range(0, size, BLOCK_BYTES),
        )


def _write_checksums(folder: Path, checksums: list[int]) -> None:
    content: _Checksums = {"block_bytes": BLOCK_BYTES, "crc32": checksums}
    write_json(folder / CHECKSUMS, content)
