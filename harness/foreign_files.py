"""The one way to read a file that somebody else may have written.

Results that are merged, run folders on a shared disk and caches come from others. Such a file may
be a device without an end, a pipe that nobody writes to, or a link to something private.
"""

from __future__ import annotations

import os
import stat
import zipfile
from pathlib import Path

MOST_BYTES = 256 * 2**20


class RefusedFile(ValueError):
    """A file that is not read, with the reason."""


def read_foreign(path: Path, within: Path | None = None, most_bytes: int = MOST_BYTES) -> bytes:
    """The content of a regular file of bounded size.

    Args:
        within: folder that a link must not lead out of. Default: the folder of the file. The
            folder itself may be a link.
        most_bytes: larger files are refused.

    Raises:
        RefusedFile: for anything but a regular file, for a larger one, and for a link that leads
            out of the folder.
        OSError: if the system refuses to open the file.
    """
    _check_link(path, within or path.parent)
    # Without O_NONBLOCK, opening a pipe waits until somebody writes to it.
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    with os.fdopen(handle, "rb") as file:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise RefusedFile("it is not a regular file")
        if found.st_size > most_bytes:
            raise _too_large(most_bytes)
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:  # it has grown since
        raise _too_large(most_bytes)
    return content


def check_archive(path: Path) -> None:
    """Refuse a file of torch that could grow in memory, or whose checksums are wrong.

    torch writes its entries as they are. A compressed entry of some kilobytes can unpack to
    gigabytes, and torch would do so without a word.
    """
    _check_link(path, path.parent)
    check_regular(path)
    with zipfile.ZipFile(path) as archive:
        packed = [e.filename for e in archive.infolist() if e.compress_type != zipfile.ZIP_STORED]
        if packed:
            raise RefusedFile(f"its entry {packed[0]} is compressed, which torch never does")
        torn = archive.testzip()
    if torn is not None:
        raise RefusedFile(f"the checksum of {torn} in it is another")


def check_regular(path: Path) -> None:
    """Refuse a device, a pipe or a folder in the place of a file."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise RefusedFile("it is not a regular file")


def check_not_a_link(path: Path) -> None:
    """Refuse to write through a link to a file that is elsewhere."""
    if path.is_symlink():
        raise OSError(0, "it is a link; remove it, then repeat the command", str(path))


def _check_link(path: Path, within: Path) -> None:
    if not path.resolve().is_relative_to(within.resolve()):
        raise RefusedFile(f"it is a link that leads out of {within}")


def _too_large(most_bytes: int) -> RefusedFile:
    return RefusedFile(f"it has more than {most_bytes / 2**20:.0f} MiB")
