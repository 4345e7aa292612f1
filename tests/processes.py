"""Commands in processes of their own that start with everything imported.

A new interpreter takes seconds to import torch; a fork of one that has done so takes none. For
what a process is (its signals, its end, its children) it makes no difference.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import TextIO

from harness.cli import main
from harness.system import worker_process, workers
from harness.system.worker_process import Assignment
from harness.training import environment_check

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    [
        *("harness.searching.loop", "harness.losses", "harness.datasets.folder"),
        *("torch._dynamo", "conftest", "processes"),
    ]
)

LONGEST = 300.0  # seconds until a process that should end is said to hang


class Command:
    """A `harness` command that runs beside the test; it hears Ctrl-C wherever the test runs.

    Attributes:
        stderr: what it says while it works; None if that goes elsewhere.
    """

    def __init__(
        self, *arguments: str, stderr: Connection | None = None, forks_workers: bool = False
    ) -> None:
        """Start it, in a group of processes of its own.

        Args:
            stderr: where to write what it says, shared with others.
            forks_workers: its workers start as it did, and not as new interpreters.
        """
        self._out, out = FORKS.Pipe(duplex=False)
        self._err, err = FORKS.Pipe(duplex=False)
        streams = (out, stderr or err)
        start = "fork" if forks_workers else workers.START
        self._process = FORKS.Process(
            target=_run, args=(arguments, streams, dict(os.environ), os.getcwd(), start)
        )
        self._process.start()
        out.close()
        err.close()
        self.pid = self._process.pid
        self.stderr: TextIO = os.fdopen(self._err.fileno(), closefd=False)

    @property
    def exit_code(self) -> int | None:
        """None while it runs; minus the signal that killed it."""
        return self._process.exitcode

    def read_until(self, text: str) -> None:
        """Wait until it says something."""
        while text not in self.stderr.readline():
            assert self.exit_code is None

    def signal(self, number: int) -> None:
        """Send a signal to it and to all that it has started."""
        os.killpg(self.pid, number)

    def finish(self) -> tuple[str, str]:
        """What it still writes, printed and said, until the last process that could has ended."""
        printed = os.fdopen(self._out.fileno(), closefd=False)
        with ThreadPoolExecutor(2) as pool:
            reads = [pool.submit(stream.read) for stream in (printed, self.stderr)]
            try:
                out, err = (read.result(LONGEST) for read in reads)
            except TimeoutError:
                self.signal(signal.SIGKILL)
                raise
        self._process.join()
        return out, err


def _run(
    arguments: Sequence[str],
    streams: tuple[Connection, Connection],
    environment: dict[str, str],
    folder: str,
    start: str,
) -> None:
    os.setsid()
    for stream, place in zip(streams, (1, 2), strict=True):
        os.dup2(stream.fileno(), place)
        stream.close()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.update(environment)
    os.chdir(folder)
    workers.START = start
    sys.exit(main(list(arguments)))


def work_trusting_the_machine(assignment: Assignment, connection: Connection) -> None:
    """What a worker's process does, without the training that tests the machine after a failure."""
    environment_check.train_in_fresh_process = lambda device: ""
    worker_process.work(assignment, connection)
