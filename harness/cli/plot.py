"""`harness plot`: a single figure for a paper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.cli.display import say
from harness.cli.options import (
    Against,
    FigureColumns,
    Given,
    Serif,
    check_output,
    rows_named,
    takes_config,
)
from harness.errors import HarnessError, unknown

MOONS = "moons"


@takes_config("plot")
def plot(
    given: Given,
    figure: Annotated[
        str,
        typer.Argument(
            metavar="FIGURE",
            help="Figure to draw: scores, differences, search, contour, training, selection, "
            "classes, cost or moons.",
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="File to write: FILE.svg, .pdf or .png.")
    ],
    method: Annotated[
        list[str] | None,
        typer.Option(help="Row of the table. Repeat it for several. Default: all."),
    ] = None,
    metric: Annotated[str, typer.Option(help="Metric, such as map_at_r or p_at_1.")] = "map_at_r",
    embedding: Annotated[
        str, typer.Option(help="Embeddings to score: concatenated or separated.")
    ] = "concatenated",
    columns: FigureColumns = 1,
    serif: Serif = False,
    against: Against = None,
) -> None:
    """Draw a figure of one table as vector graphics, readable in greyscale.

    The figure moons illustrates temperatures and needs no table.

    $ harness plot scores --dataset glyphs --output scores.pdf

    $ harness plot classes --method ccp-c2 --method proxyanchor --output classes.svg --serif
    """
    from harness.metrics.names import EMBEDDINGS
    from harness.report.figures import FIGURES, FORMATS, Choice, draw, save
    from harness.report.table import read_table

    # Before any record is read.
    if figure not in (*FIGURES, MOONS):
        raise unknown("figure", figure, [*FIGURES, MOONS])
    check_output(output, *FORMATS)
    if figure == MOONS:
        from harness.report.moons import draw_moons

        save(draw_moons(columns, serif), output)
        say(f"{output}: two moons at three temperatures")
        return
    if embedding not in EMBEDDINGS:
        raise unknown("embedding", embedding, EMBEDDINGS)
    table = read_table(given.table, against)
    if table is None:
        raise HarnessError(f"no record in {given.table} can be used")
    methods = rows_named(method, table.methods)
    save(draw(figure, Choice(table, methods, embedding, metric), columns, serif), output)
    say(f"{output}: {figure} of {table.name}")
