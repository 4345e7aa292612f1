"""Processes that share a piece of work, each with its own cores or its own GPU."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from types import FrameType
from typing import Any

import torch

from harness.config import RunConfig
from harness.errors import HarnessError
from harness.system.cards import VISIBLE
from harness.system.device import choose_device, device_count, thread_limit
from harness.system.files import naming_disk_trouble
from harness.system.progress import Event, Listener, Stopping

START = "spawn"  # how workers start: CUDA cannot be used in a fork of a process that used it

# target(job, device, listener), a function of a module: workers are new processes.
Target = Callable[[Any, str, Listener], None]


class WorkerLost(HarnessError):
    """A worker died of something that it could not report."""


def worker_count(config: RunConfig, threads: int, units: int) -> int:
    """How many workers to start: what was asked for, or as many as the machine can feed."""
    gpus, per_gpu = device_count(config.device), config.per_gpu
    limit = max(1, cores() // threads)
    if gpus and per_gpu != "auto":  # which is settled by what is trained
        limit = gpus * per_gpu
        if config.workers > limit:
            raise HarnessError(
                f"--workers {config.workers} is more than the {gpus} GPU(s) here take; give at "
                f"most {limit}, more of them with --per-gpu, or --device cpu"
            )
    return max(1, min(config.workers or limit, units))


def cores() -> int:
    """That this process may use."""
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return found or 1


def run_workers(
    target: Target,
    job: Any,
    device: str,
    count: int,
    threads: int,
    listener: Listener,
    apart: bool = False,
) -> None:
    """Run `target` in `count` processes until all return; in this one if it is the only one.

    After Ctrl-C they stop when they next report something; after another one, at once.

    Args:
        apart: in a process of its own even then, which takes what it holds of a card with it.
    """
    if count == 1 and not apart:
        _run_here(target, job, str(choose_device(device)), listener)
        return
    context: Any = multiprocessing.get_context(START)
    stop = context.RawValue("b", 0)  # without a lock, which a killed process would keep
    processes, reports = [], []
    with thread_limit(threads), _ignoring_interrupts():
        for number in range(count):
            # A pipe for each: who is killed while it reports holds up nobody else.
            ours, theirs = context.Pipe(duplex=False)
            arguments = (number, target, job, _device_of(device, number), theirs, stop)
            # Not a daemon: it may start processes of its own, which load images.
            process = context.Process(target=_work, args=arguments)
            process.start()
            theirs.close()
            processes.append(process)
            reports.append(ours)

    def ask() -> None:
        stop.value = 1
        listener(Stopping())

    try:
        with _asking_first(ask):
            _listen(reports, listener)
    except BaseException:
        for process in processes:
            process.terminate()
        raise
    finally:
        for process in processes:
            process.join()
    if stop.value:
        raise KeyboardInterrupt
    crashed = [process.exitcode for process in processes if process.exitcode]
    if crashed:
        raise WorkerLost(
            f"a worker ended with exit code {crashed[0]} (killed, or out of memory?); "
            "repeat the command to go on where it stopped"
        )


def _run_here(target: Target, job: Any, device: str, listener: Listener) -> None:
    stop = threading.Event()

    def ask() -> None:
        stop.set()
        listener(Stopping())

    def report(event: Event) -> None:
        listener(event)
        if stop.is_set():
            raise KeyboardInterrupt

    if device.startswith("cuda:"):
        torch.cuda.set_device(device)  # else the first card would hold a context, too
    with _asking_first(ask), naming_disk_trouble():
        target(job, device, report)


@contextmanager
def _asking_first(ask: Callable[[], None]) -> Iterator[None]:
    """Answer the first Ctrl-C with a question; the next one interrupts as ever."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread hears of signals
        return

    def first(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        ask()

    before = signal.signal(signal.SIGINT, first)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _ignoring_interrupts() -> Iterator[None]:
    """Processes that are started here never hear of Ctrl-C: their parent tells them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _device_of(name: str, number: int) -> str:
    device = choose_device(name)
    if device.type == "cuda" and device.index is None:
        return f"cuda:{number % torch.cuda.device_count()}"
    return str(device)


def _own_card(device: str) -> str:
    """Let this new process see no card but its own, which is then its first."""
    kind, _, number = device.partition(":")
    if kind == "cuda" and number:
        named = [name for name in os.environ.get(VISIBLE, "").split(",") if name.strip()]
        os.environ[VISIBLE] = named[int(number)] if named else number
        return "cuda:0"
    return device


def _listen(reports: list[Any], listener: Listener) -> None:
    """Pass events on until every worker has ended; raise what ended one."""
    while reports:
        for report in wait(reports):
            assert isinstance(report, Connection)
            try:
                event = report.recv()
            except EOFError:  # it has ended
                reports.remove(report)
                continue
            if isinstance(event, BaseException):
                raise event
            listener(event)


def _work(number: int, target: Target, job: Any, device: str, reports: Any, stop: Any) -> None:
    def report(event: Event) -> None:
        try:
            reports.send(replace(event, worker=number + 1))
        except OSError:
            raise SystemExit(1) from None  # nobody is left to hear of it, or to stop it
        if stop.value:
            raise KeyboardInterrupt

    try:
        with naming_disk_trouble():
            target(job, _own_card(device), report)
    except HarnessError as error:
        reports.send(error)
    except KeyboardInterrupt:
        pass  # the parent was interrupted, and says so
    except Exception:
        reports.send(RuntimeError(f"worker {number}:\n{traceback.format_exc()}"))
