"""The batch script of one step: a `harness` command as the tasks of an array."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.errors import HarnessError
from harness.system.stopping import TERMINATED

SIGNAL_SECONDS = 120  # between the signal that stops a command and the time limit

_OPTION = re.compile(r"[a-z][a-z-]*")


@dataclass(frozen=True)
class Resources:
    """What to ask Slurm for.

    Attributes:
        nodes: number of tasks, each on one node.
        gpus: GPUs of each task.
        cpus: CPU cores of each task. 0: the share of its GPUs, or without GPUs the whole node.
        hours: time limit of a task, which is then queued again.
        slurm: further options of sbatch, without dashes; the value is empty for an option without
            a value, such as `exclusive`.
    """

    nodes: int = 1
    partition: str = ""
    gpus: int = 0
    cpus: int = 0
    hours: float = 24.0
    slurm: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.nodes < 1:
            raise HarnessError(f"--nodes must be at least 1, got {self.nodes}")
        if not self.hours > 0 or self.gpus < 0 or self.cpus < 0:
            raise HarnessError("--hours must be positive, --gpus and --cpus not negative")
        for value in (self.partition, *self.slurm.values()):
            if "\n" in value:
                raise HarnessError(f"an option of sbatch is one line, got {value!r}")

    @property
    def minutes(self) -> int:
        return max(1, round(60 * self.hours))


def parse_options(texts: Sequence[str]) -> dict[str, str]:
    """Options of sbatch by name, from KEY=VALUE, or KEY for one that takes no value."""
    options = {}
    for text in texts:
        key, _, value = text.removeprefix("--").partition("=")
        name = key.replace("_", "-")
        if not _OPTION.fullmatch(name):
            raise HarnessError(
                f"--slurm takes an option of sbatch, KEY=VALUE or KEY, got '{text}'; "
                "for example --slurm qos=high --slurm exclusive"
            )
        options[name] = value
    return options


@dataclass(frozen=True)
class Step:
    """One step of a submission: an array of tasks that run the same command.

    Attributes:
        name: the command, such as `search`.
        about: what it works on, for the name of the job.
        commands: the words of each `harness` command, in order; all but the last must succeed.
        shares: one value for each task, which takes the place of SHARE in the commands. Without
            them the tasks share the work out among themselves.
        cores_per_gpu: CPU cores to ask for with each GPU if `resources` does not say.
    """

    name: str
    commands: Sequence[Sequence[str]]
    resources: Resources
    about: str = ""
    shares: Sequence[str] = ()
    cores_per_gpu: int = 0

    @property
    def tasks(self) -> int:
        return len(self.shares) or self.resources.nodes

    @property
    def job_name(self) -> str:
        return "-".join(filter(None, ["harness", self.name, self.about]))


# A word of a command that stands for the task's own share.
SHARE = "{share}"

# What a task notes about itself, which `harness status` reads.
STARTED = "started"
AT_LIMIT = "time limit: queued again"
BY_SIGNAL = "stopped by SIGTERM"
EXIT_CODE = "exit code "

# The first lines of every task. USR1 comes before the time limit, TERM when the task is cancelled
# or its node is taken away, INT from Ctrl-C. All stop the command: it saves a checkpoint and
# returns its unit of work. Before the command has started, they keep it from starting.
SIGNALS = """\
stopped=
command=
stop() {
    stopped=${stopped:-$1}
    if [ -n "$command" ]; then kill -TERM "$command" 2>/dev/null; fi
}
trap 'stop limit' USR1
trap 'stop term' TERM INT
"""

# What every task does around its command. `scontrol requeue` puts a task back into the queue as
# often as needed; the array, the jobs that depend on it and the logs stay the same.
AROUND = """\
work() {{
{work}
}}

notes={logs}/{name}_$task.notes
note() {{ echo "$(date +%FT%T) ${{SLURMD_NODENAME:-$(hostname)}}: $*" >> "$notes"; }}
note "{started}${{SLURM_RESTART_COUNT:+ again ($SLURM_RESTART_COUNT)}}, process $$"

code={terminated}
if [ -z "$stopped" ]; then
    work &
    command=$!
    if [ -n "$stopped" ]; then stop; fi
    wait "$command"
    code=$?
    while kill -0 "$command" 2>/dev/null; do
        wait "$command"
        code=$?
    done
fi

if [ "$stopped" = limit ] && [ $code != 0 ] && [ -n "$SLURM_JOB_ID" ]; then
    note "{at_limit}"
    trap - TERM
    scontrol requeue "${{SLURM_ARRAY_JOB_ID}}_$task" && sleep 600
    note "time limit: could not be queued again"
elif [ -n "$stopped" ] && [ $code != 0 ]; then
    note "{by_signal}"
else
    note "{exit_code}$code"
fi
exit $code
"""


def write_script(
    step: Step, folder: Path, logs: Path, variables: Mapping[str, str], after: str = ""
) -> str:
    """The text of a step's batch script, which also runs without Slurm.

    Args:
        folder: where the commands are run.
        logs: folder for the log and the notes of each task.
        variables: exported to the commands: name -> value as the shell reads it.
        after: id of a job that must have succeeded before this one starts.
    """
    options = _options(step, folder, logs, after)
    programs = shlex.quote(str(Path(sys.executable).parent))
    exported = {"PATH": f'{programs}:"$PATH"', "PYTHONUNBUFFERED": "1", **variables}
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH --{name}={value}" if value else f"#SBATCH --{name}" for name, value in options),
        "",
        "# Written by `harness submit`. Finished work is not repeated if it is submitted again.",
        SIGNALS,
        *(f"export {name}={value}" for name, value in exported.items()),
        f"cd {shlex.quote(str(folder))}",
        "task=${SLURM_ARRAY_TASK_ID:-0}",
        *([f"shares=({shlex.join(step.shares)})"] if step.shares else []),
        AROUND.format(
            work=_work(step),
            logs=shlex.quote(str(logs)),
            name=step.name,
            started=STARTED,
            at_limit=AT_LIMIT,
            by_signal=BY_SIGNAL,
            exit_code=EXIT_CODE,
            terminated=TERMINATED,
        ),
    ]
    return "\n".join(lines)


def _options(step: Step, folder: Path, logs: Path, after: str) -> list[tuple[str, str]]:
    """The options of sbatch; those that the user gave replace ours."""
    asked = step.resources
    seconds = min(SIGNAL_SECONDS, 60 * asked.minutes // 2)
    options = {
        "job-name": step.job_name,
        "array": f"0-{step.tasks - 1}%{min(step.tasks, asked.nodes)}",
        "nodes": "1",
        "ntasks": "1",
        **_cores(asked, step.cores_per_gpu),
        "time": str(asked.minutes),
        **({"partition": asked.partition} if asked.partition else {}),
        "requeue": "",
        "signal": f"B:USR1@{seconds}",
        "open-mode": "append",
        "output": str(logs / f"{step.name}_%a.log"),
        "chdir": str(folder),
        **({"dependency": f"afterok:{after}", "kill-on-invalid-dep": "yes"} if after else {}),
    }
    return list({**options, **asked.slurm}.items())


def _cores(asked: Resources, per_gpu: int) -> dict[str, str]:
    """The cores that were asked for, else a share of them for each GPU, else whole nodes."""
    gpus = {"gpus-per-node": str(asked.gpus)} if asked.gpus else {}
    if asked.cpus:
        return {**gpus, "cpus-per-task": str(asked.cpus)}
    return {**gpus, "cpus-per-gpu": str(per_gpu or 1)} if gpus else {"exclusive": ""}


def _work(step: Step) -> str:
    """The commands, the last of which takes the place of the shell and hears its signals."""
    has_script = Path(sys.executable).with_name("harness").exists()
    program = "harness" if has_script else f"{Path(sys.executable).name} -m harness"
    share = '"${shares[$task]}"'
    spelt = [
        " ".join([program, *(share if word == SHARE else shlex.quote(word) for word in words)])
        for words in step.commands
    ]
    return "\n".join([*(f"    {one} || return" for one in spelt[:-1]), f"    exec {spelt[-1]}"])
