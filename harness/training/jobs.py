"""Jobs on workers: one function that places jobs, starts workers and hands the jobs to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from harness.config import RunConfig
from harness.system.device import choose_device
from harness.system.process_state import record_settings
from harness.system.progress import Listener, ignore
from harness.system.watching import Limits
from harness.system.worker_process import Turn
from harness.system.workers import call_apart, run_workers
from harness.training.opened import OpenedExperiment
from harness.training.placement import place


@dataclass(frozen=True)
class Job:
    """Work on one experiment, which any number of workers share."""

    opened: OpenedExperiment


AnyJob = TypeVar("AnyJob", bound=Job)
Result = TypeVar("Result")

# work(jobs, listener), a function of a module: workers are new processes.
Work = Callable[[Iterable[AnyJob], Listener], None]


def run_jobs(
    work: Work[AnyJob], jobs: Sequence[AnyJob], most_workers: int, listener: Listener
) -> None:
    """Do the jobs on as many workers as the machine can feed; return when all workers have.

    Every worker does of each job what no other worker has done or is doing. It gets the jobs of one
    method together, in this order, and those of the next method in a new process.

    Args:
        work: what one worker does. The jobs it gets are opened one after the other.
        most_workers: the number of pieces that the jobs can be shared in.
        listener: hears the events of all workers, and where they train.
    """
    config = jobs[0].opened.experiment.config
    placement = place([job.opened.experiment for job in jobs], most_workers, listener)
    of_method: dict[str, list[AnyJob]] = {}
    for job in jobs:
        of_method.setdefault(job.opened.method, []).append(job)
    turns = [
        Turn(method, (work, together, placement.loader_workers))
        for method, together in of_method.items()
    ]
    device, threads = placement.device, placement.threads
    run_workers(_work, turns, device, placement.workers, threads, listener, limits_of(config))


def _work(given: tuple[Work[AnyJob], list[AnyJob], int], device: str, listener: Listener) -> None:
    work, jobs, loader_workers = given

    def placed(job: AnyJob) -> AnyJob:
        opened = job.opened.placed(device, loader_workers)
        record_settings()
        return replace(job, opened=opened)

    work(map(placed, jobs), listener)


def limits_of(config: RunConfig) -> Limits:
    """What a worker may take, as a config says."""
    return Limits(60 * config.stall_minutes, 1e9 * config.memory_limit)


def run_apart(
    function: Callable[..., Result],
    opened: OpenedExperiment,
    *arguments: Any,
    listener: Listener = ignore,
) -> Result:
    """What `function(opened, *arguments, listener)` returns, in a process of the method's own.

    Args:
        function: of a module; the process gets the experiment opened there.
        arguments: such as can be sent.
    """
    config = opened.experiment.config
    device, threads = choose_device(config.device), opened.experiment.protocol.threads
    turn = Turn(opened.method, (function, opened, arguments))
    return call_apart(_call, turn, device, threads, listener, limits_of(config))


def _call(given: tuple[Callable[..., Result], Any, Any], device: str, listener: Listener) -> Result:
    function, opened, arguments = given
    placed = opened.placed(device, loader_workers=-1)
    record_settings()
    return function(placed, *arguments, listener)
