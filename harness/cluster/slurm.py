"""The programs of Slurm: submit, ask, cancel; their refusals in words."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.cluster.batch import Resources
from harness.errors import HarnessError

PROBE_SECONDS = 10  # that a node may take to become free for a look at a folder

# Options that decide on which nodes a job may run.
_WHERE = ("account", "qos", "constraint", "reservation", "nodelist", "exclude", "clusters")

# What a login node keeps to itself: Slurm would write it into its spool.
SECRETS = ("HARNESS_STORAGE", "PGPASSWORD")


@dataclass(frozen=True)
class TaskState:
    """What Slurm says about a task.

    Attributes:
        state: such as PENDING, RUNNING, COMPLETED, TIMEOUT, OUT_OF_MEMORY or NODE_FAIL.
        reason: why it waits, if it does.
    """

    state: str
    node: str = ""
    reason: str = ""


def has_slurm() -> bool:
    """Whether jobs can be submitted from here."""
    return shutil.which("sbatch") is not None


def submit_script(script: Path) -> str:
    """Submit a batch script; returns the id of the job."""
    public = {name: value for name, value in os.environ.items() if name not in SECRETS}
    done = _run("sbatch", "--parsable", str(script), environment=public)
    if done.returncode:
        said = done.stderr.strip().replace("sbatch: ", "").replace("error: ", "")
        raise HarnessError(
            "Slurm refused the job:\n  "
            + "\n  ".join(said.splitlines() or ["sbatch gave no reason"])
            + "\n  change --partition, --gpus, --cpus, --hours or --slurm; "
            "`sinfo` shows the partitions and their nodes"
        )
    return done.stdout.strip().partition(";")[0]


def cancel_jobs(jobs: Sequence[str]) -> None:
    """Cancel jobs; those that have ended stay as they are."""
    done = _run("scancel", *jobs)
    if done.returncode:
        raise HarnessError(f"Slurm did not cancel the jobs: {done.stderr.strip()}")


def cores_per_gpu(partition: str) -> int:
    """The CPU cores that a node of a partition has for each of its GPUs; the smallest number.

    0 if no node has GPUs, or if Slurm does not say.
    """
    where = ("-p", partition) if partition else ()
    shares = []
    for line in _run("sinfo", "-h", "-N", *where, "-o", "%c|%G").stdout.splitlines():
        cores, _, gres = line.partition("|")
        gpus = sum(int(number) for number in re.findall(r"gpu(?::[^:,(]+)?:(\d+)", gres))
        if gpus and cores.rstrip("+").isdigit():
            shares.append(max(1, int(cores.rstrip("+")) // gpus))
    return min(shares, default=0)


def node_sees(folder: Path, resources: Resources) -> bool | None:
    """Whether a node sees a folder of this machine; None if no node was free to look."""
    given = {"partition": resources.partition, **resources.slurm}
    where = [f"--{name}={given[name]}" for name in ("partition", *_WHERE) if given.get(name)]
    how = ["--ntasks=1", "--time=1", f"--immediate={PROBE_SECONDS}", "--job-name=harness-probe"]
    look = ["sh", "-c", 'test -d "$1" && echo seen || echo unseen', "sh", str(folder)]
    try:
        done = _run("srun", *how, *where, *look, seconds=3 * PROBE_SECONDS)
    except subprocess.TimeoutExpired:
        return None
    answers = {"seen": True, "unseen": False}
    return answers.get(done.stdout.strip())


def task_states(job: str) -> dict[int, TaskState]:
    """Number of a task -> what Slurm says about it.

    From the accounting where there is any, else from the controller, which forgets a job some
    minutes after its end; a task that neither knows is left out.
    """
    return {**_from_accounting(job), **_from_controller(job)}


def _from_accounting(job: str) -> dict[int, TaskState]:
    if shutil.which("sacct") is None:
        return {}
    columns = "JobID,State,NodeList"
    done = _run("sacct", "-n", "-X", "-P", "-j", job, f"--format={columns}")
    found = {}
    for line in done.stdout.splitlines() if done.returncode == 0 else ():
        name, state, node = line.split("|")
        task = name.partition("_")[2]
        if task.isdigit():  # not a range of tasks that wait
            found[int(task)] = TaskState(state.partition(" ")[0], node)
    return found


def _from_controller(job: str) -> dict[int, TaskState]:
    done = _run("squeue", "-h", "-r", "-t", "all", "-j", job, "-o", "%K|%T|%N|%r")
    found = {}
    for line in done.stdout.splitlines() if done.returncode == 0 else ():
        task, state, node, reason = line.split("|")
        if task.isdigit():
            found[int(task)] = TaskState(state, node, "" if reason == "None" else reason)
    return found


def _run(
    *command: str, environment: Mapping[str, str] | None = None, seconds: float | None = None
) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=seconds
        )
    except FileNotFoundError:
        raise HarnessError(
            f"{command[0]} is not installed here; run this where Slurm's commands are, such as "
            "the login node of the cluster"
        ) from None
