"""Processes that share a piece of work, each with its own cores or its own GPU."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import FrameType, ModuleType
from typing import Any

import torch

from harness.config import RunConfig
from harness.errors import DeviceLost, HarnessError
from harness.system.cards import VISIBLE
from harness.system.device import choose_device, device_count, thread_limit
from harness.system.files import naming_disk_trouble
from harness.system.progress import Event, Listener, Stopping
from harness.system.stopping import TERMINATED, Terminated, hear_sigterm
from harness.system.trouble import naming_trouble

logger = logging.getLogger(__name__)

# So many lost devices, with no work done between, are the device's own.
DEVICES_IN_A_ROW = 3

MOST_PER_CORE = 32  # workers: with more, a machine does nothing but change between them

START = "spawn"  # how workers start: CUDA cannot be used in a fork of a process that used it

# target(job, device, listener), a function of a module: workers are new processes.
Target = Callable[[Any, str, Listener], None]


class WorkerLost(HarnessError):
    """A worker died of something that it could not report."""


class _Orphaned(BaseException):
    """Nobody is left to hear what a worker has to say, or to stop it."""


def worker_count(
    config: RunConfig,
    threads: int,
    units: int,
    device: torch.device | None = None,
    per_gpu: int | None = None,
) -> int:
    """How many workers to start: what was asked for, or as many as the machine can feed.

    Args:
        threads: of each worker.
        units: pieces of work; no more workers are started.
        device, per_gpu: what those of the config were settled to, if that was done.
    """
    gpus = device_count(device or choose_device(config.device))
    shared = per_gpu or config.per_gpu
    limit = max(1, cores() // threads)
    if config.workers > MOST_PER_CORE * cores():
        raise HarnessError(
            f"--workers {config.workers} is more than {MOST_PER_CORE} for each of the {cores()} "
            "cores here"
        )
    if gpus and shared != "auto":  # which is settled by what is trained
        limit = gpus * shared
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
    device: torch.device,
    count: int,
    threads: int,
    listener: Listener,
    apart: bool = False,
) -> None:
    """Run `target` in `count` processes until all return; in this one if it is the only one.

    A worker that loses its device is followed by a new process, which finds the rest of its work.
    A worker that ends with an error does not end the others; the first error is raised at the end.
    After Ctrl-C they stop when they next report something; after another one, at once. After
    SIGTERM they stop after the next step.

    Args:
        apart: in a process of its own even then, which takes what it holds of a card with it.
    """
    if count == 1 and not apart:
        try:
            _run_here(target, job, str(device), listener)
            return
        except DeviceLost as lost:
            logger.warning("%s; a new process goes on", lost)
    _Crew(target, job, device, threads, listener).run(count)


class _Crew:
    """Processes at the same work, each with a pipe that it reports through."""

    def __init__(
        self, target: Target, job: Any, device: torch.device, threads: int, listener: Listener
    ) -> None:
        self.target, self.job, self.device = target, job, device
        self.threads, self.listener = threads, listener
        self.context: Any = multiprocessing.get_context(START)
        # Without a lock, which a killed process would keep.
        self.stop: Any = self.context.RawValue("b", 0)
        self.processes: list[BaseProcess] = []
        self.pipes: dict[Connection, int] = {}
        self.lost: Counter[int] = Counter()  # devices in a row, by number of the worker
        self.errors: list[HarnessError] = []  # that ended workers

    def run(self, count: int) -> None:
        for number in range(count):
            self._start(number)
        try:
            with _asking_first(self._ask):
                while self.pipes:
                    for pipe in wait(list(self.pipes)):
                        assert isinstance(pipe, Connection)
                        self._hear(pipe)
        except Terminated:  # workers save their work
            for process in self.processes:
                process.terminate()
            raise
        except BaseException:
            for process in self.processes:
                process.kill()
            raise
        finally:
            for process in self.processes:
                process.join()
        if self.stop.value:
            raise KeyboardInterrupt
        if self.errors:
            raise self.errors[0]
        crashed = [process.exitcode for process in self.processes if process.exitcode]
        if crashed:
            raise WorkerLost(
                f"a worker ended with exit code {crashed[0]} (killed, or out of memory?); "
                "repeat the command to go on where it stopped"
            )
        for number, times in self.lost.items():
            if times == DEVICES_IN_A_ROW:
                raise WorkerLost(
                    f"{_device_of(self.device, number)} failed {times} times in a row, each time "
                    "in a new process; see to it, then repeat the command to go on"
                )

    def _start(self, number: int) -> None:
        # A pipe for each: who is killed while it reports holds up nobody else.
        ours, theirs = self.context.Pipe(duplex=False)
        device = _device_of(self.device, number)
        arguments = (number, self.target, self.job, device, theirs, self.stop)
        # Not a daemon: it may start processes of its own, which load images.
        process = self.context.Process(target=_work, args=arguments)
        # It never hears of Ctrl-C: we tell it.
        ignoring = _answering_interrupts(signal.SIG_IGN)
        with thread_limit(self.threads), ignoring, _without_main():
            process.start()
        theirs.close()
        self.processes.append(process)
        self.pipes[ours] = number

    def _ask(self) -> None:
        self.stop.value = 1
        self.listener(Stopping())

    def _hear(self, pipe: Connection) -> None:
        """Pass an event on, or note what ended a worker: the others go on without it."""
        try:
            event = pipe.recv()
        except EOFError:  # it has ended
            del self.pipes[pipe]
            return
        if isinstance(event, DeviceLost):
            self._replace(self.pipes[pipe], event)
        elif isinstance(event, HarnessError):
            self.errors.append(event)
            if len(self.pipes) > 1:
                number = self.pipes[pipe] + 1
                logger.warning("worker %d ended: %s\n  the others go on", number, event)
        elif isinstance(event, BaseException):  # a bug, which they have as well
            raise event
        else:
            if getattr(event, "score", None) is not None:  # something went well
                self.lost[event.worker - 1] = 0
            self.listener(event)

    def _replace(self, number: int, lost: DeviceLost) -> None:
        self.lost[number] += 1
        if self.lost[number] < DEVICES_IN_A_ROW:
            logger.warning("worker %d: %s; a new process goes on", number + 1, lost)
            self._start(number)


def _run_here(target: Target, job: Any, device: str, listener: Listener) -> None:
    stop = threading.Event()

    def ask() -> None:
        stop.set()
        listener(Stopping())

    def tell(event: Event) -> None:
        listener(event)
        if stop.is_set():
            raise KeyboardInterrupt

    if device.startswith("cuda:"):
        torch.cuda.set_device(device)  # else the first card would hold a context, too
    with _asking_first(ask), naming_disk_trouble(), naming_trouble():
        target(job, device, tell)


def _asking_first(ask: Callable[[], None]) -> AbstractContextManager[None]:
    """Answer the first Ctrl-C with a question; the next one interrupts as ever."""

    def first(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        ask()

    return _answering_interrupts(first)


@contextmanager
def _answering_interrupts(answer: Any) -> Iterator[None]:
    """Have Ctrl-C call a function or be ignored; only the main thread hears of signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, answer)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _without_main() -> Iterator[None]:
    """Processes that are started here do not run the user's script again to find its functions.

    What workers do is in our modules; a script needs no `if __name__ == "__main__":` for them.
    """
    with _main:
        script = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = script


_main = threading.Lock()


def _device_of(device: torch.device, number: int) -> str:
    if device.type == "cuda" and device.index is None:
        return f"cuda:{number % torch.cuda.device_count()}"
    return str(device)


def _own_card(device: str) -> str:
    """Let this new process see no card but its own, which is then its first."""
    type_, _, number = device.partition(":")
    if type_ == "cuda" and number:
        named = [name for name in os.environ.get(VISIBLE, "").split(",") if name.strip()]
        os.environ[VISIBLE] = named[int(number)] if named else number
        return "cuda:0"
    return device


def _work(number: int, target: Target, job: Any, device: str, pipe: Any, stop: Any) -> None:
    def tell(event: Event) -> None:
        try:
            pipe.send(replace(event, worker=number + 1))
        except OSError:
            raise _Orphaned from None
        if stop.value:
            raise KeyboardInterrupt

    hear_sigterm()
    try:
        with naming_disk_trouble(), naming_trouble():
            target(job, _own_card(device), tell)
    except HarnessError as error:
        pipe.send(error)
    except Terminated:
        raise SystemExit(TERMINATED) from None
    except KeyboardInterrupt:
        pass  # the parent was interrupted, and says so
    except _Orphaned:
        raise SystemExit(1) from None
    except Exception:
        pipe.send(RuntimeError(f"worker {number}:\n{traceback.format_exc()}"))
