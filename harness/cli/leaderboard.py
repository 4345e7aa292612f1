"""`harness leaderboard`: the tables, made again from their records."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.display import say
from harness.cli.options import Against, Given, takes_config
from harness.cli.printed_table import named_columns, print_columns, print_table
from harness.errors import HarnessError

if TYPE_CHECKING:
    import pandas as pd

    from harness.tables.leaderboard import Leaderboard

Published = Annotated[
    bool, typer.Option("--published", help="Also show the numbers that papers report.")
]


Columns = Annotated[
    str | None,
    typer.Option(help="Columns of the CSV file to print, separated by commas, or all."),
]


@takes_config("leaderboard")
def leaderboard(
    given: Given,
    published: Published = False,
    columns: Columns = None,
    against: Against = None,
) -> None:
    """Write and print every table in --results-dir from its records.

    Opens no images and trains nothing. Prints your rows among the stored ones; the files contain
    your rows only, unless --against is given.

    $ harness leaderboard

    $ harness leaderboard --results-dir their/results --published

    $ harness leaderboard --columns method,map_at_r_separated,trials
    """
    from harness.records.layout import find_tables

    results = given.results
    tables = find_tables(results)
    if not tables:
        raise HarnessError(
            f"no records in {results}: they lie in PROTOCOL/DATASET-TRUNK/records there\n"
            "  `harness eval` writes them; --results-dir says where they are"
        )
    show_tables(tables, results, published, named_columns(columns), against)


def show_tables(
    tables: Iterable[Path],
    results: Path,
    published: bool = False,
    columns: Sequence[str] = (),
    against: str | None = None,
    problems: Iterable[str] = (),
) -> list[Leaderboard]:
    """Write and print tables, then everything that could not enter them."""
    from harness.records.published import find_folder
    from harness.tables.leaderboard import build, write

    numbers = find_folder(results) if published else None
    problems = list(problems)
    boards = []
    for folder in tables:
        board = build(folder, against)
        problems.extend(board.problems)
        if len(board.frame):
            with showing_closed(problems, board.folder):
                write(board)
            _print_board(board, columns)
            if numbers is not None:
                _print_beside(folder, numbers, problems)
        boards.append(board)
    for problem in problems:
        say(f"warning: {problem}", file=sys.stderr)
    return boards


@contextmanager
def showing_closed(problems: list[str], folder: Path) -> Iterator[None]:
    """A table in a folder that is not ours to write to is shown all the same."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise
        problems.append(f"{folder}: its files are left as they are ({error.strerror})")


def _print_board(board: Leaderboard, columns: Sequence[str]) -> None:
    from harness.records.layout import COLUMNS, CSV, LATEX, MARKDOWN
    from harness.tables.column import View
    from harness.tables.leaderboard import measured_on_demand

    table = board.table(whole=True)
    print_columns(table, columns)
    if not columns and (more := measured_on_demand(board.frame)):
        print_table(board.table().texts(View.TERMINAL, ["method", *more]), "Measured on demand")
    print_selection(table.frame)
    say(f"files in {board.folder}: {', '.join((CSV, MARKDOWN, LATEX, COLUMNS))}\n")


def print_selection(frame: pd.DataFrame) -> None:
    """Does validation choose what tests best? The methods of a table by both."""
    from harness.judgement.selection import scatter, selection_in
    from harness.tables.leaderboard import validation_title

    if selection := selection_in(frame):
        across = f"Validation {validation_title(frame)} (across)"
        say(f"\n{across} and test MAP@R of the concatenated embeddings (up):")
        say("\n".join(scatter(selection, "concatenated")))


def _print_beside(table: Path, numbers: Path, problems: list[str]) -> None:
    """Ours and the papers', and a file of both."""
    from harness.records.layout import BESIDE_PUBLISHED
    from harness.registry import settings_of
    from harness.system.files import write_text
    from harness.tables.beside_published import beside
    from harness.tables.rendering import to_csv

    found = beside(table, numbers, settings_of)
    if len(found.rows):
        path = table / BESIDE_PUBLISHED
        with showing_closed(problems, table):
            write_text(path, to_csv(found.rows))
        print_columns(found.table)
        say("± of the difference: of ours and theirs together, or of ours if they give none.")
        say(f"file: {path}\n")
    for reason in found.differences:
        say(f"published: {reason}")
