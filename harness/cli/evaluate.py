"""`harness eval`: reproductions at the best parameters, and the tables made of them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from harness.cli.options import (
    ConfigFile,
    DataRoot,
    Dataset,
    Device,
    Loss,
    MoreLosses,
    Protocol,
    Reproductions,
    ResultsDir,
    RunsDir,
    Set,
    Storage,
    Trunk,
    Verbose,
    Workers,
    progress,
    read_values,
)


def evaluate(
    loss: Loss = None,
    more: MoreLosses = None,
    dataset: Dataset = None,
    protocol: Protocol = None,
    trunk: Trunk = None,
    reproductions: Reproductions = None,
    workers: Workers = None,
    device: Device = None,
    data_root: DataRoot = None,
    storage: Storage = None,
    runs_dir: RunsDir = None,
    results_dir: ResultsDir = None,
    config: ConfigFile = None,
    set_: Set = None,
    verbose: Verbose = False,
) -> None:
    """Train the best parameters again with new seeds, open the test classes, write the tables.

    Without flags, every search in --runs-dir; nothing is done twice.

    harness eval --loss proxyanchor --dataset glyphs
    """
    values = read_values(config, set_, locals())
    from harness import leaderboard
    from harness.evaluation import evaluate as run_evaluation

    with progress(verbose) as listener:
        done = run_evaluation([*(loss or []), *(more or [])], values, listener)
    problems = list(done.problems)
    for table in done.tables:
        board = leaderboard.build(table)
        files = leaderboard.write(board)
        _print_leaderboard(board, files)
        problems.extend(board.problems)
    for problem in problems:
        print(f"warning: {problem}", file=sys.stderr)


def _print_leaderboard(board: Any, files: list[Path]) -> None:
    from rich.console import Console
    from rich.table import Table

    from harness.leaderboard import notes_on, shown, title_of

    table = Table(title=title_of(board.frame).lstrip("# "), title_justify="left")
    rows = shown(board.frame)
    for column in rows.columns:
        left = column in ("method",)
        table.add_column(column, justify="left" if left else "right", overflow="fold")
    for row in rows.astype(str).to_numpy():
        table.add_row(*row)
    # A terminal wraps what does not fit; a file has room for the whole table.
    width = None if sys.stdout.isatty() else 200
    Console(width=width).print(table)
    for note in notes_on(board.frame):
        print(note)
    print("files: " + ", ".join(str(path) for path in files))
