"""`harness sweep`: how a score depends on some settings, point by point."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Annotated, Any

import typer

from harness.cli import options
from harness.cli.display import say
from harness.cli.eval import Metrics
from harness.cli.options import progress, read_values, split_metrics
from harness.cli.printed_table import print_table
from harness.errors import HarnessError

Over = Annotated[
    list[str] | None,
    typer.Option(
        "--over",
        metavar="KEY=VALUES",
        help="What varies: params.NAME, protocol.FIELD or a config key; 1,4,8 or 1..12.",
    ),
]


def sweep(
    loss: options.Loss = None,
    more: options.MoreLosses = None,
    over: Over = None,
    variant: Annotated[
        list[str] | None,
        typer.Option(
            "--variant",
            metavar="NAME:KEY=VALUE;...",
            help="Settings that change together; each with all values of --over: an ablation.",
        ),
    ] = None,
    figure: Annotated[
        str, typer.Option(help="Of a paper, instead of all these: `harness list figures`.")
    ] = "",
    quick: Annotated[
        bool, typer.Option("--quick", help="A figure on glyphs, with few steps and values.")
    ] = False,
    zip_: Annotated[
        bool, typer.Option("--zip", help="First values together, then second ones: no grid.")
    ] = False,
    test: Annotated[
        bool, typer.Option("--test", help="Open the test classes at every point; in the ledger.")
    ] = False,
    seeds: Annotated[
        int | None,
        typer.Option(min=1, help="Of each point; from 2 on, intervals. Default: 1, or a figure's."),
    ] = None,
    name: Annotated[str, typer.Option(help="Of the folder in results/sweeps.")] = "",
    max_points: Annotated[int, typer.Option(min=1, help="A larger grid is refused.")] = 200,
    metrics: Metrics = None,
    dataset: options.Dataset = None,
    protocol: options.Protocol = None,
    split: options.Split = None,
    trunk: options.Trunk = None,
    weights: options.Weights = None,
    trunk_lr: options.TrunkLr = None,
    preset: options.Preset = None,
    seed: options.Seed = None,
    workers: options.Workers = None,
    per_gpu: options.PerGpu = None,
    device: options.Device = None,
    micro_batch: options.MicroBatch = None,
    checkpoint_gradients: options.CheckpointGradients = None,
    data_root: options.DataRoot = None,
    allow_missing: options.AllowMissing = None,
    cache: options.Cache = None,
    cache_dir: options.CacheDir = None,
    runs_dir: options.RunsDir = None,
    results_dir: options.ResultsDir = None,
    config: options.ConfigFile = None,
    set_: options.Set = None,
    verbose: options.Verbose = False,
) -> None:
    """Train a grid of settings and put every point into one table; repeat the command to go on.

    Judges by the validation classes, unless --test opens the others. Exit code 2 if a point
    failed; the table then holds the rest.

    $ harness sweep --loss proxygml --over params.proxies_per_class=1,4,8 --over params.ratio=0.1,1

    $ harness sweep --loss c2 ccp-c2 --over protocol.batch_size=16,32,64 --seeds 3 --test

    $ harness sweep --figure ccp-batch-size --quick
    """
    values = read_values(config, set_, locals())
    from harness.metrics.names import parse_metrics
    from harness.records.layout import SWEEP_CSV, SWEEP_LATEX, SWEEP_MARKDOWN
    from harness.sweeping.axes import parse_axis, parse_variant
    from harness.sweeping.run import Sweep
    from harness.sweeping.run import sweep as run_sweep
    from harness.tables.sweeps import heading, notes_on, shown

    wanted, losses = split_metrics(metrics, [*(loss or []), *(more or [])])
    given: dict[str, Any] = {
        "losses": losses,
        "axes": [parse_axis(text) for text in over or []],
        "variants": dict(parse_variant(text) for text in variant or []),
        "name": name,
        "zipped": zip_,
        "metrics": parse_metrics(wanted),
    }
    if figure:
        from harness.sweeping.paper_sweeps import find_figure, sweep_of

        axes = given.pop("axes")
        asked = sweep_of(find_figure(figure), values, axes, quick, test, seeds)
        # What is given stands in the place of the figure's own.
        asked = replace(asked, **{key: value for key, value in given.items() if value})
    elif quick:
        raise HarnessError("--quick is for a figure of a paper: --figure NAME")
    else:
        asked = Sweep(values=values, test=test, seeds=seeds or 1, **given)
    with progress(verbose) as listener:
        table = run_sweep(replace(asked, max_points=max_points), listener)
    print_table(shown(table), heading(table))
    for note in notes_on(table):
        say(note)
    say(f"files in {table.folder}: {SWEEP_CSV}, {SWEEP_MARKDOWN}, {SWEEP_LATEX}")
    for problem in table.problems:
        say(f"warning: {problem}", file=sys.stderr)
    if table.failed:
        raise HarnessError("\n  ".join(["not every point could be trained:", *table.failed]))
