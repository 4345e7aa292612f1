"""Folders of the cache, read from checked copies on a local disk if such copies are wanted."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from harness.data.mapped_file import MappedFile
from harness.errors import MachineError
from harness.system.files import build_cache, check_room

OR_ELSE = "give another folder: --stage-to PATH, or leave out --stage-to"


class _Opened(Protocol):
    """What a folder of the cache holds, with the file that is mapped, if any."""

    @property
    def file(self) -> MappedFile | None: ...


Opened = TypeVar("Opened", bound=_Opened)


def open_cache(
    folder: Path,
    build: Callable[[Path], None],
    read: Callable[[Path], Opened],
    stage: Path | None = None,
) -> Opened:
    """What is in a folder of the cache, or built into it now.

    Args:
        build, read: as for `build_once`.
        stage: folder for a copy, which is then read instead. One process copies, others wait. A
            copy that is there is used without a look at the original.
    """
    if stage is None:
        return build_cache(folder, build, read)

    def copy(work: Path) -> None:
        original = build_cache(folder, build, read)
        files = [path for path in folder.iterdir() if path.is_file()]
        needed = sum(path.stat().st_size for path in files)
        check_room(work, needed, f"the files of {folder}", elsewhere=OR_ELSE)
        for path in files:
            shutil.copyfile(path, work / path.name)
        if original.file is not None:
            _check_copy(original.file, work)

    return build_cache(stage / folder.name, copy, read, elsewhere=OR_ELSE)


def _check_copy(original: MappedFile, work: Path) -> None:
    """Compare every block of a copy with the checksums of the original."""
    damage = original.moved(work).find_damage()
    if damage:
        original.check()  # which names it if it is the one that is damaged
        raise MachineError(
            f"the copy of {original.path} {damage}\n  check the disk of {work.parent}, or {OR_ELSE}"
        )
