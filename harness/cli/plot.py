"""`harness plot`: a single figure for a paper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.cli.display import say
from harness.cli.options import Protocol, ResultsDir, Trunk, check_output, rows_named
from harness.errors import HarnessError, unknown

MOONS = "moons"


def plot(
    figure: Annotated[
        str,
        typer.Argument(
            metavar="FIGURE",
            help="scores, differences, search, contour, training, selection, classes, cost, "
            "or moons.",
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="FILE.svg, .pdf or .png.")],
    method: Annotated[
        list[str] | None, typer.Option(help="A row of the table; repeat it. Default: all.")
    ] = None,
    dataset: Annotated[str, typer.Option(help="Whose table.")] = "glyphs",
    protocol: Protocol = None,
    trunk: Trunk = None,
    metric: Annotated[str, typer.Option(help="Of scores: map_at_r, p_at_1, ...")] = "map_at_r",
    embedding: Annotated[str, typer.Option(help="concatenated or separated.")] = "concatenated",
    columns: Annotated[int, typer.Option(help="Width: 1 or 2 columns of a paper.")] = 1,
    serif: Annotated[bool, typer.Option("--serif", help="Letters with serifs.")] = False,
    results_dir: ResultsDir = None,
) -> None:
    """Draw one figure of one table, in vectors, readable in grey; moons is of no table.

    $ harness plot scores --dataset glyphs --output scores.pdf

    $ harness plot classes --method ccp-c2 --method proxyanchor --output classes.svg --serif
    """
    from harness.judgement.compare import find_table
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
    folder = find_table(Path(results_dir or "results"), protocol or "mlrc", dataset, trunk)
    table = read_table(folder)
    if table is None:
        raise HarnessError(f"no record in {folder} can be used")
    methods = rows_named(method, table.methods)
    save(draw(figure, Choice(table, methods, embedding, metric), columns, serif), output)
    say(f"{output}: {figure} of {table.name}")
