"""`harness tables`: the papers' own numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.cli.display import say
from harness.cli.options import ResultsDir
from harness.cli.printed_table import print_table
from harness.errors import HarnessError


def tables(
    paper: Annotated[str, typer.Argument(help="mlrc, ccp, drml, hpl, proxygml or proxynca++.")],
    dataset: Annotated[str | None, typer.Option(help="Only this one. Default: all.")] = None,
    results_dir: ResultsDir = None,
) -> None:
    """Print the numbers of a paper that results/published holds, table by table.

    $ harness tables ccp --dataset cars
    """
    from harness.records.published import PAPERS, find_folder, tables_of

    found = tables_of(find_folder(Path(results_dir or "results")), paper, dataset)
    if not found:
        raise HarnessError(
            f"no numbers of {paper} on '{dataset}'; without --dataset: all there are"
        )
    say(f"{PAPERS[paper]}, as published; scores in percent")
    for title, rows in found:
        say()
        print_table(rows, title)
