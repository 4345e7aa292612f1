"""Processes that share a piece of work, each with its own cores or its own GPU.

A process serves one method. When a worker goes on to the next method, it does so in a new process.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import torch

from harness.config import RunConfig
from harness.errors import DeviceLost, HarnessError
from harness.system.device import choose_device, device_count, thread_limit
from harness.system.files import naming_disk_trouble
from harness.system.heartbeat import make_heartbeat
from harness.system.process_state import is_own_process, wants_own_processes
from harness.system.progress import Event, Listener, Stopping
from harness.system.stopping import GRACE_SECONDS, TERMINATED, Terminated
from harness.system.trouble import naming_trouble
from harness.system.watching import POLL, Limits, Watch
from harness.system.worker_process import (
    Assignment,
    Done,
    Failed,
    Moved,
    Target,
    Turn,
    read_message,
    work,
)

logger = logging.getLogger(__name__)

# So many processes that were lost, with no work done between, are no accident.
LOST_IN_A_ROW = 3

PATIENCE = 10.0  # seconds for a process to end that was told to; then it is killed
NO_LIMITS = Limits()

MOST_PER_CORE = 32  # workers: with more, a machine does nothing but change between them

START = "spawn"  # how workers start: CUDA cannot be used in a fork of a process that used it


class WorkerLost(HarnessError):
    """A worker died of something that it could not report."""


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
    turns: Iterable[Turn],
    device: torch.device,
    count: int,
    threads: int,
    listener: Listener,
    limits: Limits = NO_LIMITS,
) -> None:
    """Have `count` workers do all turns, each turn in a new process, until all have ended.

    A process that loses its device or exceeds a limit is followed by a new one, which finds the
    rest of its work. An error ends neither other workers nor later turns; the first one is raised
    at the end. After Ctrl-C they stop when they next report something; after another one, at
    once. After SIGTERM they stop after the next step.
    """
    turns = list(turns)
    if count == 1 and _does_without():
        try:
            for turn in turns:
                _run_here(target, turn.job, str(device), listener)
            return
        except DeviceLost as lost:
            logger.warning("%s; a new process goes on", lost)
    _Crew(target, turns, device, threads, listener, limits).run(count)


def call_apart(
    target: Target,
    turn: Turn,
    device: torch.device,
    threads: int,
    listener: Listener,
    limits: Limits = NO_LIMITS,
    always: bool = False,
) -> Any:
    """What `target` returns for a turn, in a process that ends with it.

    Args:
        always: also in a method's own process, and where tests do without.
    """
    if _does_without() and not always:
        return _run_here(target, turn.job, str(device), listener)
    crew = _Crew(target, [turn], device, threads, listener, limits)
    crew.run(1)
    return crew.result


def _does_without() -> bool:
    """Whether a single worker needs no process of its own."""
    return is_own_process() or not wants_own_processes()


@dataclass(eq=False)
class _Worker:
    """A process at a turn.

    Attributes:
        slot: number of the worker, from 0, whose processes follow one another.
        rest: turns that come next.
    """

    slot: int
    turn: Turn
    rest: deque[Turn]
    process: BaseProcess
    watch: Watch


class _Crew:
    """Processes at the same work, each with a pipe that it reports through."""

    def __init__(
        self,
        target: Target,
        turns: Sequence[Turn],
        device: torch.device,
        threads: int,
        listener: Listener,
        limits: Limits,
    ) -> None:
        self.target, self.turns, self.device = target, turns, device
        self.threads, self.listener, self.limits = threads, listener, limits
        self.context: Any = multiprocessing.get_context(START)
        # Without a lock, which a killed process would keep.
        self.stop: Any = self.context.RawValue("b", 0)
        self.workers: dict[Connection, _Worker] = {}
        self.started = 0
        self.lost: Counter[int] = Counter()  # processes in a row, by number of the worker
        self.errors: list[HarnessError] = []  # that ended workers
        self.result: Any = None  # of the last turn
        self.stacks = Path()  # folder of the files that processes write their stacks to

    def run(self, count: int) -> None:
        with tempfile.TemporaryDirectory(prefix="harness-") as folder:
            self.stacks = Path(folder)
            try:
                with _asking_first(self._ask):
                    for slot in range(count):
                        self._begin_next(slot, deque(self.turns))
                    while self.workers:
                        self._listen()
            except Terminated:  # workers save their work
                for worker in self.workers.values():
                    worker.process.terminate()
                for worker in self.workers.values():
                    worker.process.join(2 * GRACE_SECONDS)
                raise
            except BaseException:
                for worker in self.workers.values():
                    worker.process.kill()
                raise
            finally:
                for worker in self.workers.values():
                    _join(worker.process)
        if self.stop.value:
            raise KeyboardInterrupt
        if self.errors:
            raise self.errors[0]

    def _begin_next(self, slot: int, rest: deque[Turn]) -> None:
        if rest and not self.stop.value:
            self._start(slot, rest.popleft(), rest)

    def _start(self, slot: int, turn: Turn, rest: deque[Turn]) -> None:
        # A pipe for each: who is killed while it reports holds up nobody else.
        ours, theirs = self.context.Pipe(duplex=False)
        heartbeat = make_heartbeat(self.context, self.stop)
        self.started += 1
        assignment = Assignment(
            number=slot,
            turn=turn,
            target=self.target,
            device=_device_of(self.device, slot),
            heartbeat=heartbeat,
            stack=str(self.stacks / str(self.started)),
            may_move_on=not turn.waits and any(not later.waits for later in rest),
            log_level=logging.getLogger().getEffectiveLevel(),
        )
        # Not a daemon: it may start processes of its own, which load images.
        process = self.context.Process(target=work, args=(assignment, theirs))
        # It never hears of Ctrl-C: we tell it.
        ignoring = _answering_interrupts(signal.SIG_IGN)
        with thread_limit(self.threads), ignoring, _without_main():
            process.start()
        theirs.close()
        watch = Watch(process.pid, heartbeat, self.limits, Path(assignment.stack))
        self.workers[ours] = _Worker(slot, turn, rest, process, watch)

    def _ask(self) -> None:
        self.stop.value = 1
        self.listener(Stopping())

    def _listen(self) -> None:
        for pipe in wait(list(self.workers), POLL):
            assert isinstance(pipe, Connection)
            self._hear(pipe)
        for pipe, worker in list(self.workers.items()):
            if worker.process.exitcode is not None:
                if not pipe.poll():  # which a process that it forked may hold open
                    self._note_loss(pipe)
            elif excess := worker.watch.find_excess():
                worker.watch.ask_for_stack()
                self._charge(worker, excess)
                worker.process.kill()
                self._go_on(pipe)

    def _hear(self, pipe: Connection) -> None:
        """Pass an event on, or note how the work of a process ended."""
        worker = self.workers[pipe]
        try:
            message = read_message(pipe)
        except (EOFError, OSError):
            self._note_loss(pipe)
            return
        match message:
            case Event():
                if getattr(message, "score", None) is not None:  # something went well
                    self.lost[worker.slot] = 0
                self.listener(message)
            case logging.LogRecord():
                logging.getLogger(message.name).handle(message)
            case Failed():  # of a bug, which the others have as well
                raise message.as_error()
            case _:
                self._note_outcome(worker, message)
                self._go_on(pipe)

    def _note_outcome(self, worker: _Worker, outcome: Done | Moved | HarnessError) -> None:
        match outcome:
            case Done():
                self.result = outcome.result
            case Moved():
                worker.rest.append(replace(worker.turn, waits=True))
            case DeviceLost():
                if self._try_again(worker, str(outcome)):
                    return
                device = _device_of(self.device, worker.slot)
                trouble = f"{device} failed {LOST_IN_A_ROW} times in a row, each time in a new"
                advice = "see to it, then repeat the command to go on"
                self._note_error(worker, WorkerLost(f"{trouble} process; {advice}"))
            case HarnessError():
                self._note_error(worker, outcome)

    def _try_again(self, worker: _Worker, reason: str) -> bool:
        """Have a new process go on with a turn, unless that was in vain."""
        self.lost[worker.slot] += 1
        if self.lost[worker.slot] == LOST_IN_A_ROW:
            self.lost[worker.slot] = 0
            return False
        logger.warning("worker %d: %s; a new process goes on", worker.slot + 1, reason)
        worker.rest.appendleft(worker.turn)
        return True

    def _note_error(self, worker: _Worker, error: HarnessError) -> None:
        self.errors.append(error)
        goes_on = len(self.workers) > 1 or worker.rest
        if goes_on and not isinstance(error, WorkerLost):  # which is said once all have ended
            logger.warning("worker %d ended: %s\n  the others go on", worker.slot + 1, error)

    def _charge(self, worker: _Worker, reason: str) -> None:
        """Have the model fail that a process was training when it ended of this reason."""
        note = worker.watch.heartbeat.note
        if note is not None:
            with suppress(OSError):
                note.write_text(f"{reason}\n\n{worker.watch.read_stack()}")
            if self._try_again(worker, f"{worker.turn.name}: {reason}"):
                return
        again = f", {LOST_IN_A_ROW} times in a row" if note is not None else ""
        self._note_error(worker, WorkerLost(f"a worker of {worker.turn.name}: {reason}{again}"))

    def _note_loss(self, pipe: Connection) -> None:
        """A process ended without a word."""
        worker = self.workers[pipe]
        _join(worker.process)
        code = worker.process.exitcode or 0
        if not self.stop.value:
            if code == TERMINATED:  # by somebody else: what follows goes on from what it saved
                self._note_error(worker, WorkerLost(_killed(worker, code)))
            elif code >= 0:  # no signal: its own code has ended it
                self._charge(worker, f"it ended with exit code {code}, as by os._exit")
            else:
                self._note_error(worker, WorkerLost(_killed(worker, code)))
        self._go_on(pipe)

    def _go_on(self, pipe: Connection) -> None:
        """The process of a worker is done; the next turn begins in another one."""
        worker = self.workers.pop(pipe)
        pipe.close()
        _join(worker.process)
        self._begin_next(worker.slot, worker.rest)


def _killed(worker: _Worker, code: int) -> str:
    """In words, with the place in the code if the process could still tell it."""
    place = next((line for line in worker.watch.read_stack().splitlines() if "File" in line), "")
    return (
        f"a worker of {worker.turn.name} ended with exit code {code} (killed, or out of memory?)"
        f"{place and f', in {place.strip()}'}; repeat the command to go on where it stopped"
    )


def _join(process: BaseProcess) -> None:
    """Wait for the end of a process that is about to end, whatever it does about signals."""
    process.join(PATIENCE)
    if process.exitcode is None:
        process.kill()
        process.join()


def _run_here(target: Target, job: Any, device: str, listener: Listener) -> Any:
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
        return target(job, device, tell)


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
