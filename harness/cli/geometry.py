"""`harness geometry`: how tight classes are and how far apart, by stage of training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.cli.display import say
from harness.cli.options import (
    FigureColumns,
    Given,
    Serif,
    Verbose,
    check_output,
    progress,
    takes_config,
)
from harness.cli.printed_table import print_columns


@takes_config("geometry")
def geometry(
    given: Given,
    folds: Annotated[int, typer.Option(min=1, help="Number of folds to train.")] = 1,
    test: Annotated[
        bool, typer.Option("--test", help="Also measure the test classes; noted in the ledger.")
    ] = False,
    picture: Annotated[
        Path | None,
        typer.Option(help="Draw the stages of the first fold to FILE.svg, .pdf or .png."),
    ] = None,
    of: Annotated[
        str, typer.Option(help="Classes in the picture: training, validation or test.")
    ] = "validation",
    columns: FigureColumns = 2,
    serif: Serif = False,
    verbose: Verbose = False,
) -> None:
    """Measure how compact and how far apart classes are, before training and after each stage.

    The table has MAP@R, covering radius and class distance. CCP has one stage per instance, other
    methods have a single stage. Trains the published hyper-parameters independently of all
    searches and keeps the best weights of each stage. The picture shows two-dimensional embeddings
    directly and others by t-SNE, with the proxies of training classes.

    $ harness geometry --loss ccp-c2 --dataset cub --protocol ablation-ccp

    $ harness geometry --loss ccp-c2 --trunk convnet --protocol ablation-ccp+embedding_size=2
    --picture proxies.pdf --of training
    """
    if picture is not None:
        from harness.report.figures import FORMATS

        check_output(picture, *FORMATS, flag="--picture")
    from harness.evaluation.geometry import measure_stages

    configs = given.configs
    for one in configs:
        with progress(verbose) as listener:
            kept_part = of if picture is not None else ""
            table = measure_stages(one, folds, test, kept_part, listener)
        print_columns(table.table)
        say(f"files: {', '.join(map(str, table.files))}")
        if picture is not None:
            from harness.report.figures import save
            from harness.report.stage_maps import draw_stages

            # Of several losses each has its own.
            place = picture.with_stem(f"{picture.stem}-{one.loss}") if configs[1:] else picture
            save(draw_stages(table.views, columns, serif), place)
            say(f"{place}: {of} classes, stage by stage")
