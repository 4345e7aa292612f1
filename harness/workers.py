"""Processes that share a piece of work, each with its own cores or its own GPU."""

from __future__ import annotations

import multiprocessing
import os
import queue
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from harness.config import RunConfig
from harness.device import choose_device, device_count
from harness.errors import HarnessError
from harness.progress import Event, Listener

# Libraries read these when they are loaded, so they must be set before a worker starts.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")

# target(job, device, listener), a function of a module: workers are new processes.
Target = Callable[[Any, str, Listener], None]


class WorkerLost(HarnessError):
    """A worker died of something that it could not report."""


def worker_count(config: RunConfig, threads: int, units: int) -> int:
    """How many workers to start: what was asked for, or as many as the machine can feed."""
    gpus = device_count(config.device)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    limit = gpus or max(1, (cores or 1) // threads)
    if gpus and config.workers > gpus:
        raise HarnessError(f"--workers {config.workers} is more than the {gpus} GPU(s) here")
    return max(1, min(config.workers or limit, units))


def run_workers(
    target: Target, job: Any, device: str, count: int, threads: int, listener: Listener
) -> None:
    """Run `target` in `count` processes until all return; in this one if it is the only one."""
    if count == 1:
        target(job, str(choose_device(device)), listener)
        return
    context = multiprocessing.get_context("spawn")
    events: Any = context.Queue()
    with _thread_limit(threads):
        processes = [
            context.Process(
                target=_work,
                args=(number, target, job, _device_of(device, number), events),
                daemon=True,
            )
            for number in range(count)
        ]
        for process in processes:
            process.start()
    try:
        _listen(processes, events, listener)
    except BaseException:
        for process in processes:
            process.terminate()
        raise
    finally:
        for process in processes:
            process.join()


def _device_of(name: str, number: int) -> str:
    device = choose_device(name)
    if device.type == "cuda" and device.index is None:
        return f"cuda:{number}"
    return str(device)


def _listen(processes: list[Any], events: Any, listener: Listener) -> None:
    """Pass events on until every worker has ended; raise what ended one."""
    while True:
        running = any(process.is_alive() for process in processes)
        try:
            event = events.get(timeout=0.2)
        except queue.Empty:
            if not running:
                break
            continue
        if isinstance(event, BaseException):
            raise event
        listener(event)
    crashed = [process.exitcode for process in processes if process.exitcode]
    if crashed:
        raise WorkerLost(
            f"a worker ended with exit code {crashed[0]} (killed, or out of memory?); "
            "repeat the command to go on where it stopped"
        )


def _work(number: int, target: Target, job: Any, device: str, events: Any) -> None:
    def report(event: Event) -> None:
        parent = multiprocessing.parent_process()
        if parent is not None and not parent.is_alive():
            raise SystemExit(1)  # nobody is left to hear of it, or to stop it
        events.put(replace(event, worker=number))

    try:
        target(job, device, report)
    except HarnessError as error:
        events.put(error)
    except KeyboardInterrupt:
        pass  # the parent was interrupted too, and says so
    except Exception:
        events.put(RuntimeError(f"worker {number}:\n{traceback.format_exc()}"))


@contextmanager
def _thread_limit(threads: int) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in THREAD_VARIABLES}
    os.environ.update({name: str(threads) for name in THREAD_VARIABLES})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
