"""Finding the files of a data set, and reading the tables among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# The files that a data set is recognised by. Each has one or more usual places, by its name.
Layout = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class DatasetFiles:
    """Where the files of a data set may lie, and what to tell whoever lacks them.

    Attributes:
        folders: usual names of its folder.
        expected: the folder's layout, for people.
        page: where it is obtained.
    """

    name: str
    folders: tuple[str, ...]
    expected: str
    page: str

    def find(self, root: Path | None, *layouts: Layout) -> dict[str, Path]:
        """Paths of the files of the first layout that is complete, in root or a folder of it."""
        if root is None:
            raise ValueError(
                f"data set '{self.name}' needs its files: --data-root PATH or HARNESS_DATA=PATH\n"
                f"{self.advice()}"
            )
        if not root.is_dir():
            raise ValueError(f"data set '{self.name}': no folder at {root}\n{self.advice()}")
        folders = [root, *(root / name for name in self.folders if (root / name).is_dir())]
        complaints = []
        for folder in folders:
            for layout in layouts:
                found = {name: _first(folder, places) for name, places in layout.items()}
                lacking = [name for name, path in found.items() if path is None]
                if not lacking:
                    return {name: path for name, path in found.items() if path is not None}
                complaints.append(f"  in {folder}: no {', no '.join(lacking)}")
        absent = ", ".join(name for name in self.folders if root / name not in folders)
        raise ValueError(
            f"data set '{self.name}' is not in {root}\n"
            + "\n".join(complaints)
            + (f"\n  and no folder named {absent}" if absent else "")
            + f"\n{self.advice()}"
        )

    def advice(self) -> str:
        """The layout and where to get it."""
        layout = "\n".join(f"    {line}" for line in self.expected.strip().splitlines())
        folders = ", ".join(self.folders)
        return (
            f"  PATH is a folder as follows, or one that holds it by a usual name ({folders}):\n"
            f"{layout}\n  to get it: {self.page}"
        )


def _first(folder: Path, places: Sequence[str]) -> Path | None:
    return next((folder / place for place in places if (folder / place).exists()), None)


def read_rows(path: Path, columns: Mapping[str, type], skip: int = 0) -> list[tuple[Any, ...]]:
    """Rows of a text table with blanks between columns, each column of its type.

    Args:
        path: of the file.
        columns: type by name; the names are for the message about a wrong line.
        skip: heading lines.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise ValueError(
            f"{path} is no text in UTF-8 (packed, perhaps?); expected lines of {' '.join(columns)}"
        ) from None
    rows = []
    for number, line in enumerate(lines, start=1):
        if number <= skip or not line.strip():
            continue
        try:
            words = zip(columns.values(), line.split(), strict=True)
            rows.append(tuple(type_(word) for type_, word in words))
        except ValueError:
            raise ValueError(
                f"{path}, line {number}: expected {' '.join(columns)}, got {line.strip()!r}"
            ) from None
    if not rows:
        raise ValueError(f"{path} lists nothing; expected lines of {' '.join(columns)}")
    return rows
