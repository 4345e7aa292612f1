"""`harness tables`: the papers' own numbers."""

from __future__ import annotations

from typing import Annotated

import typer

from harness.cli.display import say
from harness.cli.options import Given, takes_config
from harness.cli.printed_table import print_table
from harness.errors import HarnessError


@takes_config("tables")
def tables(
    given: Given,
    paper: Annotated[
        str, typer.Argument(help="Paper: mlrc, ccp, drml, hpl, proxygml or proxynca++.")
    ],
    dataset: Annotated[str | None, typer.Option(help="Name of the data set. Default: all.")] = None,
) -> None:
    """Print the numbers that a paper reports, table by table.

    $ harness tables ccp --dataset cars
    """
    from harness.records.published import PAPERS, find_folder, tables_of

    found = tables_of(find_folder(given.results), paper, dataset)
    if not found:
        raise HarnessError(
            f"no numbers of {paper} on '{dataset}'; without --dataset: all there are"
        )
    say(f"{PAPERS[paper]}, as published; scores in percent")
    for title, rows in found:
        say()
        print_table(rows, title)
