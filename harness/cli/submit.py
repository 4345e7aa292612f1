"""`harness submit`: a search on the nodes of a cluster."""

from __future__ import annotations

from typing import Annotated

import typer

from harness.cli.display import say
from harness.cli.options import Given, next_command, takes_config
from harness.errors import HarnessError


@takes_config("submit")
def submit(
    given: Given,
    nodes: Annotated[int, typer.Option(help="Number of nodes. Each runs its own workers.")] = 1,
    partition: Annotated[str, typer.Option(help="Slurm partition.")] = "",
    gpus: Annotated[int, typer.Option(help="Number of GPUs per node.")] = 0,
    cpus: Annotated[int, typer.Option(help="Number of CPU cores per node.")] = 0,
    hours: Annotated[
        float, typer.Option(help="Time limit of a job. Unfinished jobs are queued again.")
    ] = 24.0,
    slurm: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Any option of sbatch. Repeat it for several."),
    ] = None,
) -> None:
    """Run a search on several nodes with Slurm, or on this machine if Slurm is not installed.

    $ harness submit --nodes 8 --gpus 4 --loss ccp --dataset cars --storage postgresql+psycopg://...
    """
    configs = given.configs
    from harness.searching import cluster

    asked = cluster.Nodes(nodes, partition, gpus, cpus, hours, _pairs(slurm or []))
    jobs = cluster.submit(configs, asked)
    for job in jobs:
        say(f"job {job.job_id}: {job.paths.stdout}")
    if not cluster.has_slurm():
        for job in jobs:
            cluster.wait_for(job)
    say(f"next: {next_command('show', values=given.values, keys=('runs_dir',))}")


def _pairs(options: list[str]) -> dict[str, str]:
    wrong = [option for option in options if "=" not in option]
    if wrong:
        raise HarnessError(f"--slurm takes KEY=VALUE, got '{wrong[0]}'")
    return dict(option.split("=", 1) for option in options)
