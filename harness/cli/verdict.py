"""`harness verdict`: which claims hold, and where a loss of yours stands."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.display import say
from harness.cli.options import Given, full_name, takes_config

SHOWN = 5  # problems of records; the rest is counted


@takes_config("verdict")
def verdict(
    given: Given,
    method: Annotated[
        str | None,
        typer.Argument(help="Row of a table, or your loss. Default: the claims of the papers."),
    ] = None,
    dataset: Annotated[str | None, typer.Option(help="Name of the data set. Default: all.")] = None,
    protocol: Annotated[
        str | None, typer.Option(help="Name of the protocol. Default: all.")
    ] = None,
    trunk: Annotated[str | None, typer.Option(help="Name of the trunk. Default: all.")] = None,
    against: Annotated[
        str | None,
        typer.Option(
            help="Folder of further results to compare with, or none. "
            "Default: the results that come with the package."
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Write the verdict to this file instead of printing it.")
    ] = None,
) -> None:
    """Explain in words what the tables show, with statistical tests and caveats.

    Uses records only. For your own loss, shows its rank among the losses that come with results,
    without running any of them again.

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
    text = write_verdict(method, given.results, against, wanted, problems, full_name)
    if output is None:
        say(text, end="")
    else:
        write_text(output, text)
        say(f"wrote {output}")
    for problem in problems[:SHOWN]:
        say(f"warning: {problem}", file=sys.stderr)
    if len(problems) > SHOWN:
        say(f"warning: and {len(problems) - SHOWN} more records", file=sys.stderr)
