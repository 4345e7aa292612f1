"""A search on many machines: the same work on each, submitted through submitit."""

from __future__ import annotations

import atexit
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.config import RunConfig
from harness.errors import HarnessError
from harness.redact import redact
from harness.searching.loop import check, search
from harness.searching.storage import URL_VARIABLE
from harness.system.cards import VISIBLE, visible_cards
from harness.system.device import choose_device, device_count
from harness.system.files import make_folder
from harness.system.workers import worker_count


@dataclass(frozen=True)
class Nodes:
    """What to ask Slurm for.

    Attributes:
        gpus: of each node.
        hours: until a task is stopped; it is then queued again and goes on.
        slurm: further options of sbatch, as qos or account.
    """

    count: int = 1
    partition: str = ""
    gpus: int = 0
    cpus: int = 0
    hours: float = 24.0
    slurm: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.count < 1:
            raise HarnessError(f"--nodes must be at least 1, got {self.count}")
        if not self.hours > 0 or self.gpus < 0 or self.cpus < 0:
            raise HarnessError("--hours must be positive, --gpus and --cpus not negative")


class SearchTask:
    """What every node runs. Stopped by Slurm, it asks to be queued again: nothing is lost."""

    def __init__(self, configs: Sequence[RunConfig], cards: Sequence[str] = ()) -> None:
        self.configs, self.cards = list(configs), list(cards)

    def __call__(self) -> int:
        if self.cards:
            os.environ[VISIBLE] = ",".join(self.cards)
        return sum(summary.trials for summary in search(self.configs))

    def checkpoint(self) -> Any:
        import submitit

        return submitit.helpers.DelayedSubmission(self)


def has_slurm() -> bool:
    return shutil.which("sbatch") is not None


def submit(configs: Sequence[RunConfig], nodes: Nodes) -> list[Any]:
    """Start the search on every node; returns submitit's jobs.

    Without Slurm the tasks run on this machine, beside each other.
    """
    try:
        import submitit
    except ImportError:
        raise HarnessError(
            "submitit is not installed; pip install 'metric-harness[cluster]'"
        ) from None
    on_slurm = has_slurm()
    for config in configs:
        _check_shared(config, nodes.count, on_slurm)
        check(config)
    folder = Path(configs[0].runs_dir) / "submitted"
    make_folder(folder)
    folder.chmod(0o700)  # its pickles are read back: nobody else may put one there
    executor = submitit.AutoExecutor(folder=folder, cluster="slurm" if on_slurm else "local")
    executor.update_parameters(**_options(nodes, on_slurm))
    tasks = [_for_a_node(config, nodes.count, on_slurm) for config in configs]
    if configs[0].storage:
        # Tasks are written to disk, and the environment is not.
        os.environ[URL_VARIABLE] = configs[0].storage
    shares = [[]] * nodes.count if on_slurm else _shares(configs[0], nodes)
    atexit.register(_leave_jobs_alone)
    with executor.batch():
        return [executor.submit(SearchTask(tasks, cards)) for cards in shares]


def _leave_jobs_alone() -> None:
    """When Python ends, jobs that tidy up after themselves stumble over its ruins, and say so."""
    from submitit.local.local import LocalJob

    LocalJob.__del__ = lambda job: None  # type: ignore[method-assign]


def wait_for(job: Any) -> None:
    """Wait until a task on this machine has ended; raise a HarnessError if it failed.

    A task that was killed leaves no result behind, which is another error of submitit.
    """
    from submitit.core.utils import FailedJobError, UncompletedJobError

    try:
        job.result()
    except FailedJobError as error:
        last = str(error).strip().splitlines()[-1].partition("HarnessError: ")
        reason = last[2] or last[0]
        raise HarnessError(f"job {job.job_id} failed: {reason}\n  see {job.paths.stderr}") from None
    except UncompletedJobError:
        raise HarnessError(
            f"job {job.job_id} ended without a result: it was killed, or the machine ran out of "
            f"memory\n  see {job.paths.stderr}\n  repeat the command to go on where it stopped"
        ) from None


def _check_shared(config: RunConfig, count: int, on_slurm: bool) -> None:
    file = not config.storage or config.storage.startswith("sqlite")
    if on_slurm and count > 1 and file:
        raise HarnessError(
            "several nodes need a database, --storage postgresql+psycopg://user@host/database: "
            "the locks of a file cannot be trusted on a network file system"
        )


def _shares(config: RunConfig, nodes: Nodes) -> list[list[str]]:
    """The cards of this machine that each task takes, dealt evenly; nothing on a CPU."""
    device = choose_device(config.device)
    if not device_count(device):
        return [[] for _ in range(nodes.count)]
    there = visible_cards()
    if device.index is not None:
        there = [there[device.index]]
    if nodes.gpus > len(there):
        raise HarnessError(f"--gpus {nodes.gpus} is more than the {len(there)} of this machine")
    if nodes.gpus:
        turns = [range(i * nodes.gpus, (i + 1) * nodes.gpus) for i in range(nodes.count)]
    else:  # all of them; where there are more tasks than cards, one each, in turn
        turns = [range(i, max(i + 1, len(there)), nodes.count) for i in range(nodes.count)]
    return [[there[turn % len(there)] for turn in turns_of_one] for turns_of_one in turns]


def _for_a_node(config: RunConfig, count: int, on_slurm: bool) -> RunConfig:
    values: dict[str, Any] = {"storage": redact(config.storage)}
    if on_slurm:
        return config.updated(values)
    if device_count(choose_device(config.device)):  # each sees its cards alone
        values["device"] = "cuda"
    elif not config.workers:  # they share one machine
        values["workers"] = max(1, worker_count(config, threads=1, units=10**6) // count)
    return config.updated(values)


def _options(nodes: Nodes, on_slurm: bool) -> dict[str, Any]:
    options: dict[str, Any] = {"name": "harness", "timeout_min": max(1, round(60 * nodes.hours))}
    if nodes.gpus and on_slurm:  # elsewhere submitit would give all tasks the first ones
        options["gpus_per_node"] = nodes.gpus
    if nodes.cpus:
        options["cpus_per_task"] = nodes.cpus
    if on_slurm:
        options["slurm_array_parallelism"] = nodes.count
        if nodes.partition:
            options["slurm_partition"] = nodes.partition
        if nodes.slurm:
            options["slurm_additional_parameters"] = dict(nodes.slurm)
    return options
