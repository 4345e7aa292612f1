"""`harness verdict`: which claims hold, and where a loss of yours stands."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.display import say
from harness.cli.options import ResultsDir, full_name

SHOWN = 5  # problems of records; the rest is counted


def verdict(
    method: Annotated[
        str | None,
        typer.Argument(help="One row, or your own loss. Default: the claims of the papers."),
    ] = None,
    dataset: Annotated[str | None, typer.Option(help="Only this one. Default: all.")] = None,
    protocol: Annotated[str | None, typer.Option(help="Only this one. Default: all.")] = None,
    trunk: Annotated[str | None, typer.Option(help="Only this one. Default: all.")] = None,
    results_dir: ResultsDir = None,
    against: Annotated[
        str | None,
        typer.Option(help="Results to add, or none. Default: those that came with the package."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Write it into this file, instead of printing it.")
    ] = None,
) -> None:
    """Say in plain words what the tables show, with its tests and with reasons to doubt it.

    Made from records alone. For your own loss: where it stands among those that were searched
    for you, without running any of them again.

    $ harness verdict

    $ harness verdict my_loss --dataset cub --protocol frozen

    $ harness verdict --results-dir results --against none --output results/VERDICT.md
    """
    from harness.records.layout import fits
    from harness.system.files import write_text
    from harness.verdicts.text import write_verdict

    def wanted(table: Path) -> bool:
        return fits(table, protocol, dataset, trunk)

    problems: list[str] = []
    results = Path(results_dir or "results")
    text = write_verdict(method, results, against, wanted, problems, full_name)
    if output is None:
        say(text, end="")
    else:
        write_text(output, text)
        say(f"wrote {output}")
    for problem in problems[:SHOWN]:
        say(f"warning: {problem}", file=sys.stderr)
    if len(problems) > SHOWN:
        say(f"warning: and {len(problems) - SHOWN} more records", file=sys.stderr)
