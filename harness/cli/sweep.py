"""`harness sweep`: how a score depends on some settings, point by point."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Annotated, Any

import typer

from harness.cli.display import say
from harness.cli.eval import Metrics
from harness.cli.options import Given, Verbose, progress, split_metrics, takes_config
from harness.cli.printed_table import print_columns
from harness.errors import HarnessError

Over = Annotated[
    list[str] | None,
    typer.Option(
        "--over",
        metavar="KEY=VALUES",
        help="Setting to vary: params.NAME, protocol.FIELD or a config key. "
        "Values: 1,4,8 or 1..12.",
    ),
]


@takes_config("sweep")
def sweep(
    given: Given,
    over: Over = None,
    variant: Annotated[
        list[str] | None,
        typer.Option(
            "--variant",
            metavar="NAME:KEY=VALUE;...",
            help="Settings to change together, for an ablation. Each variant gets all values "
            "of --over.",
        ),
    ] = None,
    figure: Annotated[
        str, typer.Option(help="Figure of a paper to reproduce: see `harness list figures`.")
    ] = "",
    quick: Annotated[
        bool, typer.Option("--quick", help="Run the figure on glyphs with few steps and values.")
    ] = False,
    zip_: Annotated[
        bool, typer.Option("--zip", help="Pair the values of all axes instead of making a grid.")
    ] = False,
    test: Annotated[
        bool,
        typer.Option("--test", help="Also score the test classes; noted in the ledger."),
    ] = False,
    seeds: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of seeds per point. Two or more give confidence intervals. "
            "Default: 1, or the number in the figure.",
        ),
    ] = None,
    name: Annotated[
        str,
        typer.Option(
            help="Name of the folder in results/sweeps. Default: losses, axes and data set."
        ),
    ] = "",
    max_points: Annotated[
        int, typer.Option(min=1, help="Maximum number of points. A larger grid is refused.")
    ] = 200,
    metrics: Metrics = None,
    verbose: Verbose = False,
) -> None:
    """Train a grid of settings and write one table of all points. Repeat it to continue.

    Scores the validation classes and, with --test, the test classes. Exit code 2 if a point
    failed; the table then contains the rest.

    $ harness sweep --loss proxygml --over params.proxies_per_class=1,4,8 --over params.ratio=0.1,1

    $ harness sweep --loss c2 ccp-c2 --over protocol.batch_size=16,32,64 --seeds 3 --test

    $ harness sweep --figure ccp-batch-size --quick
    """
    from harness.metrics.names import parse_metrics
    from harness.records.layout import SWEEP_CSV, SWEEP_LATEX, SWEEP_MARKDOWN
    from harness.sweeping.axes import parse_axis, parse_variant
    from harness.sweeping.run import Sweep
    from harness.sweeping.run import sweep as run_sweep

    wanted, losses = split_metrics(metrics, given.losses)
    own: dict[str, Any] = {
        "losses": losses,
        "axes": [parse_axis(text) for text in over or []],
        "variants": dict(parse_variant(text) for text in variant or []),
        "name": name,
        "zipped": zip_,
        "metrics": parse_metrics(wanted),
    }
    if figure:
        from harness.sweeping.figure_sweep import build_sweep
        from harness.sweeping.paper_figures import find_figure

        axes = own.pop("axes")
        asked = build_sweep(find_figure(figure), given.values, axes, quick, test, seeds)
        # Flags replace the settings of the figure.
        asked = replace(asked, **{key: value for key, value in own.items() if value})
    elif quick:
        raise HarnessError("--quick is for a figure of a paper: --figure NAME")
    else:
        asked = Sweep(values=given.values, test=test, seeds=seeds or 1, **own)
    with progress(verbose, given.config) as listener:
        table = run_sweep(replace(asked, max_points=max_points), listener)
    print_columns(table.table)
    say(f"files in {table.folder}: {SWEEP_CSV}, {SWEEP_MARKDOWN}, {SWEEP_LATEX}")
    for problem in table.problems:
        say(f"warning: {problem}", file=sys.stderr)
    if table.failed:
        raise HarnessError("\n  ".join(["not every point could be trained:", *table.failed]))
