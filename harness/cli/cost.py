"""`harness cost`: what losses cost in time and memory."""

from __future__ import annotations

from typing import Annotated

import typer

from harness.cli import options
from harness.cli.display import say
from harness.cli.options import progress, read_values
from harness.cli.printed_table import print_table


def cost(
    loss: options.Loss = None,
    more: options.MoreLosses = None,
    dataset: options.Dataset = None,
    protocol: options.Protocol = None,
    trunk: options.Trunk = None,
    weights: options.Weights = None,
    preset: options.Preset = None,
    seed: options.Seed = None,
    device: options.Device = None,
    data_root: options.DataRoot = None,
    allow_missing: options.AllowMissing = None,
    cache: options.Cache = None,
    cache_dir: options.CacheDir = None,
    runs_dir: options.RunsDir = None,
    results_dir: options.ResultsDir = None,
    config: options.ConfigFile = None,
    set_: options.Set = None,
    folds: Annotated[int, typer.Option(min=1, help="Means over so many of the folds.")] = 1,
    verbose: options.Verbose = False,
) -> None:
    """Time of a step, time until converged, peak memory: losses side by side, papers beside them.

    Each is trained at its published parameters in a process of its own; nothing is tested.

    $ harness cost --loss c2 ccp-c2 proxygml --dataset glyphs
    """
    values = read_values(config, set_, locals())
    from harness.sweeping.cost import NOTES, measure_costs, shown

    with progress(verbose) as listener:
        costs = measure_costs([*(loss or []), *(more or [])], values, folds, listener)
    print_table(shown(costs.frame), costs.title)
    for note in NOTES:
        say(note)
    say(f"files: {', '.join(map(str, costs.files))}")
