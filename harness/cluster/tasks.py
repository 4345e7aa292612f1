"""What became of the tasks of a submission: from Slurm while it knows them, else from their notes.

A task notes its starts and ends in a file beside its log, wherever it runs.
"""

from __future__ import annotations

import os
import re
import signal
import socket
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from harness.cluster import slurm
from harness.cluster.batch import AT_LIMIT, BY_SIGNAL, EXIT_CODE, STARTED
from harness.cluster.submissions import Submission, SubmittedStep

WAITS, RUNS, DONE, FAILED, STOPPED, LOST, UNKNOWN = (
    *("waits", "runs", "done", "failed", "stopped", "lost", "unknown"),
)

# What Slurm calls the end of a task -> its state, and why it ended.
ENDS = {
    "COMPLETED": (DONE, ""),
    "TIMEOUT": (FAILED, "its time limit was reached"),
    "DEADLINE": (FAILED, "its deadline was reached"),
    "OUT_OF_MEMORY": (FAILED, "out of memory; ask for more, such as --slurm mem=64G"),
    "NODE_FAIL": (LOST, "its node failed"),
    "BOOT_FAIL": (LOST, "its node did not start"),
    "PREEMPTED": (STOPPED, "another job took its place"),
    "CANCELLED": (STOPPED, "cancelled"),
}
WAITING = ("PENDING", "REQUEUED", "REQUEUE_HOLD", "CONFIGURING", "SUSPENDED")

SILENT = "killed, or its machine was lost"  # how a start ended that left no note
KILLED = str(128 + signal.SIGKILL)  # exit code of a command that was killed

_NOTE = re.compile(r"\S+ (?P<host>[^\s:]+): (?P<text>.*)")
_PROCESS = re.compile(rf"{STARTED}.*, process (\d+)")


@dataclass(frozen=True)
class Note:
    """A line that a task wrote about itself, and where."""

    host: str
    text: str


@dataclass(frozen=True)
class End:
    """What a task does, or how it ended.

    Attributes:
        state: WAITS, RUNS, DONE, FAILED, STOPPED, LOST or UNKNOWN.
        reason: why it waits, or why it ended.
    """

    state: str
    reason: str = ""


@dataclass(frozen=True)
class Task:
    """A task of a submission.

    Attributes:
        now: what it does, or how it ended.
        node: where it runs, or ran last.
        earlier: how its earlier starts ended -> how often.
        process: its id, if it runs on this machine without Slurm.
    """

    number: int
    now: End
    node: str
    earlier: Counter[str]
    process: int | None = None


def tasks_of(submission: Submission, step: SubmittedStep) -> list[Task]:
    """Every task of a step."""
    known = slurm.task_states(step.job) if step.job and slurm.has_slurm() else {}
    return [_task(submission, step, number, known.get(number)) for number in range(step.tasks)]


def stop(submission: Submission) -> int:
    """Stop every task that has not ended; the number of those.

    A task gets SIGTERM: it saves a checkpoint and gives its trial back.
    """
    tasks = [task for step in submission.steps for task in tasks_of(submission, step)]
    going = [task for task in tasks if task.now.state in (WAITS, RUNS)]
    if going and submission.jobs:
        slurm.cancel_jobs(submission.jobs)
    for task in going:
        if task.process is not None:
            with suppress(ProcessLookupError):
                os.kill(task.process, signal.SIGTERM)
    return len(going)


def _task(
    submission: Submission, step: SubmittedStep, number: int, known: slurm.TaskState | None
) -> Task:
    notes = [
        Note(found["host"], found["text"])
        for line in submission.notes(step, number)
        if (found := _NOTE.fullmatch(line))
    ]
    process = None if step.job else _process(submission, notes)
    now = End(RUNS) if process else _by_notes(notes) if known is None else _by_slurm(known, notes)
    if now.state == FAILED and now.reason.startswith(EXIT_CODE):
        now = End(FAILED, submission.last_error(step, number) or now.reason)
    node = notes[-1].host if notes else ""
    return Task(number, now, (known and known.node) or node, _earlier(notes), process)


def _by_slurm(known: slurm.TaskState, notes: Sequence[Note]) -> End:
    if known.state in WAITING:
        return End(WAITS, known.reason)
    if known.state == "FAILED":
        return _by_notes(notes)
    return End(*ENDS.get(known.state, (RUNS, "")))


def _by_notes(notes: Sequence[Note]) -> End:
    last = notes[-1].text if notes else ""
    code = last.removeprefix(EXIT_CODE)
    if not last:
        return End(UNKNOWN, "it left no notes")
    if last == BY_SIGNAL:
        return End(STOPPED, BY_SIGNAL)
    if last == AT_LIMIT:
        return End(WAITS, AT_LIMIT)
    if code == last:  # it has started, and noted no end
        return End(LOST, SILENT)
    if code == "0":
        return End(DONE)
    if code == KILLED:
        return End(FAILED, "killed, usually because memory was short; ask for more")
    return End(FAILED, last)


def _earlier(notes: Sequence[Note]) -> Counter[str]:
    """How every start but the last one ended."""
    texts = [note.text for note in notes]
    return Counter(
        SILENT if text.startswith(STARTED) else text.partition(":")[0]
        for text, following in pairwise(texts)
        if following.startswith(STARTED)
    )


def _process(submission: Submission, notes: Sequence[Note]) -> int | None:
    """The process of a task on this machine, while it runs."""
    found = _PROCESS.fullmatch(notes[-1].text) if notes else None
    if found is None or notes[-1].host != socket.gethostname():
        return None
    try:
        os.kill(int(found[1]), 0)
        # Numbers of processes are used again.
        command = Path(f"/proc/{found[1]}/cmdline")
        ours = not command.exists() or str(submission.folder).encode() in command.read_bytes()
    except OSError:
        return None
    return int(found[1]) if ours else None
