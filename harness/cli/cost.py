"""`harness cost`: what losses cost in time and memory."""

from __future__ import annotations

from typing import Annotated

import typer

from harness.cli.display import say
from harness.cli.options import Given, Verbose, progress, takes_config
from harness.cli.printed_table import print_columns


@takes_config("cost")
def cost(
    given: Given,
    folds: Annotated[int, typer.Option(min=1, help="Number of folds to average over.")] = 1,
    verbose: Verbose = False,
) -> None:
    """Measure the time per step, time to convergence and peak memory of losses.

    Trains each loss with its published hyper-parameters in a separate process, without the test
    classes. The table includes the numbers that papers report.

    $ harness cost --loss c2 ccp-c2 proxygml --dataset glyphs
    """
    from harness.sweeping.cost import measure_costs

    with progress(verbose) as listener:
        costs = measure_costs(given.losses, given.values, folds, listener)
    print_columns(costs.table)
    say(f"files: {', '.join(map(str, costs.files))}")
