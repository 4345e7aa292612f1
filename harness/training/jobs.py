"""Jobs on workers: one function that places jobs, starts workers and hands the jobs to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from harness.system.progress import Listener
from harness.system.workers import run_workers
from harness.training.opened import OpenedExperiment
from harness.training.placement import place


@dataclass(frozen=True)
class Job:
    """Work on one experiment, which any number of workers share."""

    opened: OpenedExperiment


AnyJob = TypeVar("AnyJob", bound=Job)

# work(jobs, listener), a function of a module: workers are new processes.
Work = Callable[[Iterable[AnyJob], Listener], None]


def run_jobs(
    work: Work[AnyJob], jobs: Sequence[AnyJob], most_workers: int, listener: Listener
) -> None:
    """Do the jobs on as many workers as the machine can feed; return when all workers have.

    Every worker gets all jobs, in this order, and does of each what no other worker has done or
    is doing. A single worker is this process, which goes on with the experiments as they are.

    Args:
        work: what one worker does. The jobs it gets are opened one after the other.
        most_workers: the number of pieces that the jobs can be shared in.
        listener: hears the events of all workers, and where they train.
    """
    placement = place([job.opened.experiment for job in jobs], most_workers, listener)
    device, threads = placement.device, placement.threads
    given = (work, list(jobs), placement.loader_workers)
    run_workers(_work, given, device, placement.workers, threads, listener)


def _work(given: tuple[Work[AnyJob], list[AnyJob], int], device: str, listener: Listener) -> None:
    work, jobs, loader_workers = given

    def placed(job: AnyJob) -> AnyJob:
        return replace(job, opened=job.opened.placed(device, loader_workers))

    work(map(placed, jobs), listener)
