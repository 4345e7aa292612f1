"""A column of a table, declared once: its name, its meaning, its value and where it is shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Flag, auto
from typing import Any, Generic, TypeVar, cast

import pandas as pd

from harness.errors import unknown

Line = TypeVar("Line", contravariant=True)  # what a line of the table is made from
Cells = Mapping[str, Any]  # column -> value, of one line of a frame


class View(Flag):
    """Where a column is shown besides the CSV file, which has every column."""

    CSV = 0
    TERMINAL = auto()
    MARKDOWN = auto()
    LATEX = auto()
    PAGE = auto()
    TEXT = TERMINAL | MARKDOWN
    ALL = TERMINAL | MARKDOWN | LATEX | PAGE


@dataclass(frozen=True)
class Column(Generic[Line]):
    """One column: everything that the harness knows about it.

    Attributes:
        name: in the CSV file and of `--columns`.
        explanation: what it holds, for the list of columns beside the CSV file.
        value: computes the cell of a line at full precision. Default: the entry of that name, of a
            line that is a mapping.
        shown: where people see it.
        title: its heading for people. Default: the name.
        text: spells the cell for people, from all cells of its line. Default: the value, floats
            with four digits.
        dtype: pandas type, where some lines may have no value.
        place: people see columns in the order of their places, and then as they are declared.
    """

    name: str
    explanation: str
    value: Callable[[Line], Any] | None = None
    shown: View = View.CSV
    title: str = ""
    text: Callable[[Cells], str] | None = None
    dtype: str = ""
    place: int = 0

    def cell(self, line: Line) -> Any:
        """The value at full precision."""
        return cast(Cells, line)[self.name] if self.value is None else self.value(line)

    @property
    def heading(self) -> str:
        return self.title or self.name

    def spell(self, cells: Cells) -> str:
        """The cell as people read it."""
        if self.text is not None:
            return self.text(cells)
        value = cells[self.name]
        if is_missing(value):
            return ""
        return f"{value:.4g}" if isinstance(value, float) else str(value)


def is_missing(value: Any) -> bool:
    """Whether a cell has no value, whichever way pandas says so."""
    return value is None or (pd.api.types.is_scalar(value) and bool(pd.isna(value)))


def frame_of(columns: Sequence[Column[Line]], lines: Iterable[Line]) -> pd.DataFrame:
    """Every column of every line, at full precision."""
    frame = pd.DataFrame(
        [{column.name: column.cell(line) for column in columns} for line in lines],
        columns=[column.name for column in columns],
    )
    return frame.astype({column.name: column.dtype for column in columns if column.dtype})


@dataclass(frozen=True)
class Table:
    """A table for people and for programs.

    Attributes:
        frame: every column at full precision.
        remarks: sentences below the table.
        commands: that made it.
    """

    title: str
    columns: Sequence[Column[Any]]
    frame: pd.DataFrame
    remarks: Sequence[str] = ()
    commands: Sequence[str] = ()

    def texts(self, view: View, names: Sequence[str] = ()) -> pd.DataFrame:
        """The columns that a view shows, as text; those without any text are left out.

        Args:
            names: columns to show instead, empty or not.
        """
        chosen = sorted((c for c in self.columns if view in c.shown), key=lambda c: c.place)
        if names:
            chosen = [self._named(name) for name in names]
        lines = cast(list[dict[str, Any]], self.frame.to_dict("records"))
        texts = {column.heading: [column.spell(line) for line in lines] for column in chosen}
        return pd.DataFrame({title: cells for title, cells in texts.items() if names or any(cells)})

    def _named(self, name: str) -> Column[Any]:
        for column in self.columns:
            if column.name == name:
                return column
        raise unknown("column", name, [column.name for column in self.columns])
