"""`harness site`: all tables as a static site."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.display import say
from harness.cli.options import Against, Given, takes_config
from harness.errors import HarnessError
from harness.plain_text import counted


@takes_config("site")
def site(
    given: Given,
    tables: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TABLE",
            help="Part of a table's name, such as cub or mlrc/glyphs. Default: all.",
        ),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write.")] = Path("site"),
    against: Against = None,
) -> None:
    """Write a static site: a searchable leaderboard, a page per table and a page per method.

    Put the folder on any web server, or open its index.html from disk. It is made from records
    alone and makes no requests to other hosts.

    $ harness site --output public
    """
    if output.exists() and not output.is_dir():
        raise HarnessError(f"--output: {output} is not a folder; name a new or an existing folder")
    from harness.report.page import read_report
    from harness.report.site import Site

    made = Site(read_report(given.results, tables or [], against))
    paths = made.write(output)
    for problem in made.report.problems:
        say(f"warning: {problem}", file=sys.stderr)
    number = counted(len(made.report.tables), "table")
    size = sum(path.stat().st_size for path in paths) / 1e6
    say(f"{output}: {number}, {counted(len(made.methods), 'method')}, {size:.1f} MB")
    say(f"open {output / 'index.html'} in a browser, or publish the folder")
