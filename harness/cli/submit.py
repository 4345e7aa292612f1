"""`harness submit`: a search on the nodes of a cluster."""

from __future__ import annotations

from typing import Annotated

import typer

from harness.cli import options
from harness.cli.display import say
from harness.cli.options import next_command, read_search_configs
from harness.errors import HarnessError


def submit(
    loss: options.Loss = None,
    more: options.MoreLosses = None,
    nodes: Annotated[int, typer.Option(help="Machines, each with its workers.")] = 1,
    partition: Annotated[str, typer.Option(help="Of Slurm.")] = "",
    gpus: Annotated[int, typer.Option(help="Per node.")] = 0,
    cpus: Annotated[int, typer.Option(help="Per node.")] = 0,
    hours: Annotated[float, typer.Option(help="After which a task is queued again.")] = 24.0,
    slurm: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Any option of sbatch.")
    ] = None,
    dataset: options.Dataset = None,
    protocol: options.Protocol = None,
    split: options.Split = None,
    trunk: options.Trunk = None,
    weights: options.Weights = None,
    trunk_lr: options.TrunkLr = None,
    space: options.Space = None,
    trials: options.Trials = None,
    trials_per_dimension: options.TrialsPerDimension = None,
    until_flat: options.UntilFlat = None,
    max_trials: options.MaxTrials = None,
    sampler: options.Sampler = None,
    prune: options.Prune = False,
    preset: options.Preset = None,
    seed: options.Seed = None,
    workers: options.Workers = None,
    per_gpu: options.PerGpu = None,
    device: options.Device = None,
    crops: options.Crops = None,
    micro_batch: options.MicroBatch = None,
    checkpoint_gradients: options.CheckpointGradients = None,
    data_root: options.DataRoot = None,
    allow_missing: options.AllowMissing = None,
    cache: options.Cache = None,
    cache_dir: options.CacheDir = None,
    storage: options.Storage = None,
    runs_dir: options.RunsDir = None,
    config: options.ConfigFile = None,
    set_: options.Set = None,
) -> None:
    """Run a search on many nodes through Slurm, or on this machine where there is none.

    $ harness submit --nodes 8 --gpus 4 --loss ccp --dataset cars --storage postgresql+psycopg://...
    """
    configs = read_search_configs(config, set_, locals(), [*(loss or []), *(more or [])])
    from harness.searching import cluster

    asked = cluster.Nodes(nodes, partition, gpus, cpus, hours, _pairs(slurm or []))
    jobs = cluster.submit(configs, asked)
    for job in jobs:
        say(f"job {job.job_id}: {job.paths.stdout}")
    if not cluster.has_slurm():
        for job in jobs:
            cluster.wait_for(job)
    given = {} if runs_dir is None else {"runs_dir": runs_dir}
    say(f"next: {next_command('show', values=given, keys=('runs_dir',))}")


def _pairs(options: list[str]) -> dict[str, str]:
    wrong = [option for option in options if "=" not in option]
    if wrong:
        raise HarnessError(f"--slurm takes KEY=VALUE, got '{wrong[0]}'")
    return dict(option.split("=", 1) for option in options)
