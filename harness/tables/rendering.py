"""Any table as CSV and as Markdown, and the list of its columns."""

from __future__ import annotations

import html
from collections.abc import Sequence

import pandas as pd

from harness.plain_text import markdown_cell, markdown_code, markdown_text, spreadsheet_text
from harness.tables.column import Table, View


def to_csv(frame: pd.DataFrame) -> str:
    """Full precision; no text in it is one that a spreadsheet would run."""
    safe = frame.rename(columns=spreadsheet_text)
    for column in safe.columns:
        if not pd.api.types.is_numeric_dtype(safe[column]):
            safe[column] = safe[column].map(
                lambda cell: spreadsheet_text(cell) if isinstance(cell, str) else cell
            )
    return safe.to_csv(index=False)


def to_markdown(table: Table) -> str:
    """The table with its title above, and below it how to read it and what made it."""
    lines = [
        f"# {markdown_text(table.title)}",
        "",
        *markdown_table(table.texts(View.MARKDOWN)),
        "",
        *(f"- {markdown_text(remark)}" for remark in table.remarks),
        *_made_by(table.commands),
    ]
    return "\n".join(lines) + "\n"


def to_html(table: Table) -> str:
    """The table for a notebook: the columns that a terminal shows, and the remarks."""
    remarks = "".join(f"<li>{html.escape(remark)}</li>" for remark in table.remarks)
    cells = table.texts(View.TERMINAL).to_html(index=False, border=0)
    return f"<p><b>{html.escape(table.title)}</b></p>{cells}<ul>{remarks}</ul>"


def _made_by(commands: Sequence[str]) -> list[str]:
    """One command within a sentence, several as a block."""
    if len(commands) > 1:
        return ["", "Made by:", "", "```", *commands, "```"]
    return ["", *(f"Made by {markdown_code(command)}." for command in commands)] if commands else []


def markdown_table(table: pd.DataFrame) -> list[str]:
    """Its lines; every cell is printed as it stands."""
    return _table_lines(table.astype(str).map(markdown_cell).rename(columns=markdown_cell))


def _table_lines(table: pd.DataFrame) -> list[str]:
    return [
        f"| {' | '.join(table.columns)} |",
        f"|{'---|' * len(table.columns)}",
        *(f"| {' | '.join(row)} |" for row in table.to_numpy()),
    ]


def describe_columns(table: Table, file: str) -> str:
    """What each column of a CSV file holds, as Markdown."""
    lines = [
        f"# Columns of {file}",
        "",
        "Scores are fractions at full precision; an empty cell means that there is no such value.",
        "",
        *_table_lines(
            pd.DataFrame(
                {
                    "column": [f"`{column.name}`" for column in table.columns],
                    "what it holds": [column.explanation for column in table.columns],
                }
            )
        ),
    ]
    return "\n".join(lines) + "\n"
