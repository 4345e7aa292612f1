"""`harness merge`: records of other machines and labs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.cli.display import say
from harness.cli.leaderboard import show_tables
from harness.cli.options import ResultsDir
from harness.errors import HarnessError


def merge(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR", help="Results folders to bring in.")
    ],
    results_dir: ResultsDir = None,
) -> None:
    """Bring records of other machines or labs into --results-dir, and make its tables again.

    What does not belong together is refused and named; nothing is overwritten.

    $ harness merge their/results

    $ harness merge node1/results node2/results --results-dir results
    """
    from harness.records import merge as merging

    results = Path(results_dir or "results")
    done = merging.merge(folders, results)
    show_tables(done.tables, results, problems=done.problems)
    say(f"{done.copied} records copied, {done.known} were there, {len(done.refused)} refused")
    if done.refused:
        raise HarnessError("\n  ".join(["these records were refused:", *done.refused]))
