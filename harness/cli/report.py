"""`harness report`: one page with all that results, searches and kept models can show."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.display import say
from harness.cli.options import Against, Given, check_output, find_file, rows_named, takes_config
from harness.loss_file import is_file
from harness.plain_text import counted


@takes_config("report")
def report(
    given: Given,
    tables: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TABLE",
            help="Part of a table's name, such as cub or mlrc/glyphs. Default: all.",
        ),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="HTML file to write.")] = Path(
        "report.html"
    ),
    pictures: Annotated[
        bool, typer.Option("--pictures", help="Include images, which opens the test classes.")
    ] = False,
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="Method to show images for. Repeat it for several. Default: the best four."
        ),
    ] = None,
    query: Annotated[
        list[str] | None,
        typer.Option(help="Part of the file name of a query image. Repeat it for several."),
    ] = None,
    queries: Annotated[
        int, typer.Option(help="Number of random, of best and of worst queries to show.")
    ] = 4,
    neighbours: Annotated[int, typer.Option(help="Number of neighbours per query.")] = 8,
    pixels: Annotated[int, typer.Option(help="Longer side of a thumbnail in pixels.")] = 64,
    points: Annotated[int, typer.Option(help="Number of points in a map.")] = 600,
    against: Against = None,
) -> None:
    """Write one self-contained HTML page about every table in --results-dir.

    The page is made from the records. With --pictures the test classes are opened once per
    method, which is noted in the ledger; this needs the models that eval left in --runs-dir.

    $ harness report

    $ harness report glyphs --pictures --output glyphs.html
    """
    started = time.perf_counter()
    check_output(output, ".html")
    from harness.report.page import read_report
    from harness.report.write import add_pictures, write_report

    made = read_report(given.results, tables or [], against)
    if pictures:
        from harness.report.galleries import PictureSettings

        method = [find_file(name) for name in method or ()]
        settings = PictureSettings(
            methods=rows_named(method, {row for t in made.tables for row in t.methods}),
            count=queries,
            neighbours=neighbours,
            queries=tuple(query or ()),
            pixels=pixels,
            points=points,
            loss_files=tuple(filter(is_file, method)),
        )
        add_pictures(made, given.values, settings)
    written = write_report(made, output)
    for problem in made.problems:
        say(f"warning: {problem}", file=sys.stderr)
    for name, parts in made.missing.items():
        for reason in parts.values():
            say(f"warning: {name}: {reason}", file=sys.stderr)
    size, seconds = written / 1e6, time.perf_counter() - started
    say(f"{output}: {counted(len(made.tables), 'table')}, {size:.1f} MB, {seconds:.1f} s")
    say("open it in a browser; it is one file and makes no network requests")
