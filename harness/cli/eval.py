"""`harness eval`: reproductions at the best parameters, and the tables made of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.cli import options
from harness.cli.display import say
from harness.cli.leaderboard import Published, show_tables
from harness.cli.options import next_command, progress, read_values, split_metrics
from harness.errors import HarnessError

Metrics = Annotated[
    list[str] | None,
    typer.Option(help="Also recall@1,2,4,8 nmi covering_radius class_distance."),
]


Single = Annotated[
    bool,
    typer.Option("--single-512", help="Also one model as large as all folds' together."),
]


def evaluate(
    loss: options.Loss = None,
    more: options.MoreLosses = None,
    dataset: options.Dataset = None,
    protocol: options.Protocol = None,
    split: options.Split = None,
    trunk: options.Trunk = None,
    weights: options.Weights = None,
    preset: options.Preset = None,
    seed: options.Seed = None,
    space: options.Space = None,
    select: options.Select = None,
    reproductions: options.Reproductions = None,
    workers: options.Workers = None,
    per_gpu: options.PerGpu = None,
    device: options.Device = None,
    micro_batch: options.MicroBatch = None,
    checkpoint_gradients: options.CheckpointGradients = None,
    data_root: options.DataRoot = None,
    allow_missing: options.AllowMissing = None,
    cache: options.Cache = None,
    cache_dir: options.CacheDir = None,
    storage: options.Storage = None,
    runs_dir: options.RunsDir = None,
    results_dir: options.ResultsDir = None,
    config: options.ConfigFile = None,
    set_: options.Set = None,
    metrics: Metrics = None,
    single_512: Single = False,
    published: Published = False,
    verbose: options.Verbose = False,
) -> None:
    """Train the best parameters again with new seeds, open the test classes, write the tables.

    Without flags, every search in --runs-dir; nothing is done twice. With --preset, or under a
    protocol that leaves nothing to search, a fixed configuration without any search.
    Exit code 2 if something could not be evaluated; the tables then hold the rest.

    $ harness eval --loss proxyanchor --dataset glyphs

    $ harness eval --loss proxygml --preset paper --dataset cars --protocol classic-proxygml

    $ harness eval --metrics recall@1,2,4,8 nmi --single-512
    """
    values = read_values(config, set_, locals())
    from harness.config import RunConfig
    from harness.metrics.names import parse_metrics

    wanted, losses = split_metrics(metrics, [*(loss or []), *(more or [])])
    with progress(verbose) as listener:
        from harness.evaluation.reproductions import evaluate as run_evaluation

        done = run_evaluation(losses, values, listener, parse_metrics(wanted), single_512)
    results = Path(values.get("results_dir", RunConfig.results_dir))
    show_tables(done.tables, results, published)
    command = next_command("report", values=values, keys=("results_dir", "runs_dir"))
    say(f"a page about all of it: {command} (with --pictures: images, too)")
    if done.problems:
        raise HarnessError("\n  ".join(["not everything could be evaluated:", *done.problems]))
