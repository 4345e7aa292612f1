"""`harness merge`: records of other machines and labs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.cli.display import say
from harness.cli.leaderboard import show_tables
from harness.cli.options import Given, takes_config
from harness.errors import HarnessError


@takes_config("merge")
def merge(
    given: Given,
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR", help="Results folders to copy records from.")
    ],
) -> None:
    """Copy records of other machines or labs into --results-dir and update its tables.

    Records that do not match the table are refused with a reason. Nothing is overwritten.

    $ harness merge their/results

    $ harness merge node1/results node2/results --results-dir results
    """
    from harness.records import merge as merging

    done = merging.merge(folders, given.results)
    show_tables(done.tables, given.results, problems=done.problems)
    say(f"{done.copied} records copied, {done.known} were there, {len(done.refused)} refused")
    if done.refused:
        raise HarnessError("\n  ".join(["these records were refused:", *done.refused]))
