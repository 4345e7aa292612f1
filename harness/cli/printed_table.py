"""How a table is printed on a terminal, whatever its width."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from harness.cli.display import plain_console
from harness.plain_text import one_line

if TYPE_CHECKING:
    import pandas as pd


def print_table(rows: pd.DataFrame, title: str, narrow: tuple[str, ...] = ()) -> None:
    """A table on the terminal; if it is too narrow, only columns that begin with a narrow name."""
    from rich.table import Table
    from rich.text import Text

    rows = rows.astype(str).map(one_line).rename(columns=one_line)
    needed = 1 + sum(width_of(rows[column]) for column in rows.columns)
    # A file has room for the whole table.
    console = plain_console(width=None if sys.stdout.isatty() else max(needed, 100))
    if narrow and needed > console.width:
        rows = rows[[c for c in rows.columns if c.startswith(narrow)]]
    for number, block in enumerate(blocks(rows, console.width)):
        # As it stands: brackets are no markup.
        table = Table(title=Text("" if number else one_line(title)), title_justify="left")
        for column in block.columns:
            left = column in ("method", "pair", "parameters", "source")
            table.add_column(Text(column), justify="left" if left else "right", overflow="fold")
        for row in block.to_numpy():
            table.add_row(*map(Text, row))
        console.print(table)


def width_of(column: pd.Series) -> int:
    """Letters that a column takes, with its border."""
    return max([len(str(column.name)), *column.str.len()]) + 3


def blocks(rows: pd.DataFrame, width: int) -> list[pd.DataFrame]:
    """The columns in parts that fit side by side, each behind the first one, which names rows."""
    first, *others = rows.columns
    widths = {column: width_of(rows[column]) for column in rows.columns}
    parts: list[list[str]] = [[first]]
    for column in others:
        taken = sum(widths[name] for name in parts[-1])
        if len(parts[-1]) > 1 and 1 + taken + widths[column] > width:
            parts.append([first])
        parts[-1].append(column)
    return [rows[part] for part in parts]
