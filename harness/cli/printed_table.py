"""How a table is printed on a terminal, whatever its width."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from shutil import get_terminal_size
from typing import TYPE_CHECKING

from harness.cli.display import plain_console, say
from harness.plain_text import one_line

if TYPE_CHECKING:
    import pandas as pd

    from harness.tables.column import Table

LEFT = ("group", "method", "pair", "parameters", "source", "notes")

# Columns of words, which are wrapped -> the width that they keep at least.
WRAPPED = {"method": 16, "group": 5, "notes": 12}

WIDTH = 80  # of a table that is not printed on a terminal, unless COLUMNS is set


def print_columns(table: Table, names: Sequence[str] = ()) -> None:
    """Print the columns that people see first, or others by name, and the remarks on them."""
    from harness.tables.column import View

    wanted = [column.name for column in table.columns] if names == ["all"] else names
    print_table(table.texts(View.TERMINAL, wanted), table.title)
    for remark in table.remarks:
        say(remark)


def named_columns(text: str | None) -> list[str]:
    """What `--columns` names."""
    return [name.strip() for name in (text or "").split(",") if name.strip()]


def print_table(rows: pd.DataFrame, title: str, narrow: tuple[str, ...] = ()) -> None:
    """A table on the terminal; if it is too narrow, only columns that begin with a narrow name."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    rows = rows.astype(str).map(one_line).rename(columns=one_line)
    needed = 1 + sum(width_of(rows[column]) for column in rows.columns)
    # A file has room for the whole table, unless words in it can be wrapped.
    wide = WIDTH if "notes" in rows.columns else max(needed, 100)
    if os.environ.get("COLUMNS", "").isdigit():
        wide = get_terminal_size().columns
    console = plain_console(width=None if sys.stdout.isatty() else wide)
    if narrow and needed > console.width:
        rows = rows[[c for c in rows.columns if c.startswith(narrow)]]
    for number, block in enumerate(blocks(rows, console.width)):
        # As it stands: brackets are no markup.
        table = Table(
            title=Text("" if number else one_line(title)), title_justify="left", box=SIMPLE_HEAD
        )
        for column in block.columns:
            left = column in LEFT
            table.add_column(Text(column), justify="left" if left else "right", overflow="fold")
        for row in block.to_numpy():
            table.add_row(*map(Text, row))
        console.print(table)


def width_of(column: pd.Series) -> int:
    """Letters that a column takes, with its border."""
    longest = max([len(str(column.name)), *column.str.len()])
    return min(longest, WRAPPED.get(str(column.name), longest)) + 3


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
