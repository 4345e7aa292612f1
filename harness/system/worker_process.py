"""What a worker's process does: one turn of one method, told through a pipe."""

from __future__ import annotations

import faulthandler
import logging
import os
import pickle
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from logging.handlers import QueueHandler
from multiprocessing.connection import Connection
from typing import Any

from harness.errors import HarnessError
from harness.system.cards import VISIBLE
from harness.system.files import naming_disk_trouble
from harness.system.heartbeat import Heartbeat, beat, use
from harness.system.process_state import belong_to
from harness.system.progress import Event, Idle, Listener
from harness.system.stopping import TERMINATED, Terminated, hear_sigterm
from harness.system.trouble import naming_trouble
from harness.system.watching import DUMP_SIGNAL

# target(job, device, listener), a function of a module: workers are new processes.
Target = Callable[[Any, str, Listener], Any]


@dataclass(frozen=True)
class Turn:
    """The work of one method, which each worker does in a process of its own.

    Attributes:
        name: of the method, for messages.
        waits: whether to stay until other workers are done with it, too.
    """

    name: str
    job: Any
    waits: bool = False


@dataclass(frozen=True)
class Assignment:
    """What a process is given.

    Attributes:
        number: of the worker, from 0.
        stack: file for the stack of all threads, if it is asked for or crashes.
        may_move_on: whether there is other work while others finish this turn.
        log_level: below which nobody wants to hear anything.
    """

    number: int
    turn: Turn
    target: Target
    device: str
    heartbeat: Heartbeat
    stack: str
    may_move_on: bool
    log_level: int


@dataclass(frozen=True)
class Done:
    """The turn is over; the result is what the target returned."""

    result: Any


@dataclass(frozen=True)
class Moved:
    """Others are still at the turn, and this worker has other work."""


@dataclass(frozen=True)
class Failed:
    """A bug, with its traceback; the error is left out if another process may not know it."""

    error: BaseException | None
    trace: str

    def as_error(self) -> BaseException:
        told = RuntimeError(self.trace)
        if self.error is None:
            return told
        self.error.__cause__ = told
        return self.error


class _Orphaned(BaseException):
    """Nobody is left to hear what a worker has to say, or to stop it."""


class _MovingOn(BaseException):
    """Leaves the turn where it has nothing to do."""


class _Pipe:
    """Sends whole messages, from whatever thread."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._turn = threading.Lock()

    def send(self, message: Any) -> None:
        # Not as the connection pickles: tensors would stay in memory that ends with this process.
        content = pickle.dumps(message)
        try:
            with self._turn:
                self._connection.send_bytes(content)
        except OSError:
            raise _Orphaned from None


class _LogSender(QueueHandler):
    """Hands what is logged to the process that shows it."""

    def __init__(self, pipe: _Pipe) -> None:
        super().__init__(None)  # type: ignore[arg-type]  # there is no queue, but a pipe
        self._pipe = pipe

    def enqueue(self, record: logging.LogRecord) -> None:
        self._pipe.send(record)


def read_message(connection: Connection) -> Any:
    """What a process sent; raises EOFError if it has ended."""
    return pickle.loads(connection.recv_bytes())


def work(assignment: Assignment, connection: Connection) -> None:
    """Do one turn and tell how it ended."""
    turn, heartbeat, pipe = assignment.turn, assignment.heartbeat, _Pipe(connection)
    belong_to(turn.name)
    use(heartbeat)
    root = logging.getLogger()
    root.setLevel(assignment.log_level)
    root.handlers[:] = [_LogSender(pipe)]
    stack = open(assignment.stack, "w")  # noqa: SIM115  # for as long as the process lives
    faulthandler.enable(stack)
    if DUMP_SIGNAL is not None:
        faulthandler.register(DUMP_SIGNAL, stack, all_threads=True)

    def tell(event: Event) -> None:
        beat()
        pipe.send(replace(event, worker=assignment.number + 1))
        if heartbeat.stop.value:
            raise KeyboardInterrupt
        if isinstance(event, Idle) and assignment.may_move_on:
            raise _MovingOn

    hear_sigterm()
    try:
        with naming_disk_trouble(), naming_trouble():
            result = assignment.target(turn.job, _own_card(assignment.device), tell)
        pipe.send(Done(result))
    except HarnessError as error:
        pipe.send(error)
    except _MovingOn:
        pipe.send(Moved())
    except Terminated:
        raise SystemExit(TERMINATED) from None
    except KeyboardInterrupt:
        if not heartbeat.stop.value:  # else the parent was interrupted, and says so
            pipe.send(HarnessError(f"{turn.name} interrupts its own process"))
    except _Orphaned:
        raise SystemExit(1) from None
    except Exception as error:
        known = type(error).__module__.partition(".")[0] in ("builtins", "harness")
        trace = f"worker {assignment.number + 1}:\n{traceback.format_exc()}"
        pipe.send(Failed(error if known else None, trace))


def _own_card(device: str) -> str:
    """Let this new process see no card but its own, which is then its first."""
    type_, _, number = device.partition(":")
    if type_ == "cuda" and number:
        named = [name for name in os.environ.get(VISIBLE, "").split(",") if name.strip()]
        os.environ[VISIBLE] = named[int(number)] if named else number
        return "cuda:0"
    return device
