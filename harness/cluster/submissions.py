"""What was submitted, kept with the studies: scripts, logs and job ids in runs/submitted/."""

from __future__ import annotations

import json
import shlex
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from harness.cluster import slurm
from harness.cluster.batch import Step, write_script
from harness.errors import HarnessError
from harness.foreign_files import read_foreign
from harness.redact import redact
from harness.system.files import make_folder, write_text
from harness.typed import convert

SUBMITTED = "submitted"  # folder in that of the runs
SUBMISSION = "submission.json"
STORAGE = "storage"  # file with the URL of a database that has a password
SCRIPT = "submit.sbatch"

URL_VARIABLE = "HARNESS_STORAGE"


@dataclass(frozen=True)
class SubmittedStep:
    """A step whose tasks were submitted.

    Attributes:
        job: id of its array in Slurm; empty for tasks on this machine.
        command: what its tasks run, for people.
    """

    name: str
    job: str
    tasks: int
    command: str


@dataclass(frozen=True)
class Submission:
    """Steps that follow one another, each an array of tasks.

    Attributes:
        folder: its scripts, and usually the logs.
        logs: folder of the logs and notes, which may be on the nodes.
        studies: folders of the studies that it works on, relative to that of the runs.
    """

    folder: Path
    logs: Path
    studies: tuple[str, ...]
    steps: tuple[SubmittedStep, ...]

    @property
    def id(self) -> str:
        """The job id of the first step; on this machine the name of the folder."""
        return self.steps[0].job or self.folder.name

    @property
    def jobs(self) -> list[str]:
        return [step.job for step in self.steps if step.job]

    def log(self, step: SubmittedStep, task: int) -> Path:
        return self.logs / f"{step.name}_{task}.log"

    def notes(self, step: SubmittedStep, task: int) -> list[str]:
        """What a task wrote about its starts and ends, oldest first."""
        try:
            return (self.logs / f"{step.name}_{task}.notes").read_text().splitlines()
        except (OSError, UnicodeDecodeError):
            return []

    def last_error(self, step: SubmittedStep, task: int) -> str:
        """The last error in the log of a task, without the word; empty if there is none."""
        try:
            lines = self.log(step, task).read_text(errors="replace").splitlines()
        except OSError:
            return ""
        error = "error: "
        return next((x.removeprefix(error) for x in reversed(lines) if x.startswith(error)), "")

    def write(self) -> None:
        values = {**asdict(self), "folder": str(self.folder), "logs": str(self.logs)}
        write_text(self.folder / SUBMISSION, json.dumps(values, indent=1) + "\n")


def find_submissions(runs: Path) -> list[Submission]:
    """Every submission of a folder of runs, oldest first; one that cannot be read is left out."""
    found = []
    for path in sorted((runs / SUBMITTED).glob(f"*/{SUBMISSION}")):
        try:
            values = json.loads(read_foreign(path))
            steps = tuple(convert(one, SubmittedStep, str(path)) for one in values["steps"])
            logs, studies = Path(values["logs"]), tuple(map(str, values["studies"]))
            found.append(Submission(path.parent, logs, studies, steps))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return found


def new_folder(runs: Path, name: str) -> Path:
    """Where the next submission keeps its files; it does not exist yet."""
    first = runs.absolute() / SUBMITTED / time.strftime(f"%Y%m%d-%H%M%S-{name}")
    folder, number = first, 1
    while folder.exists():
        number += 1
        folder = first.with_name(f"{first.name}-{number}")
    return folder


def script_path(folder: Path, steps: Sequence[Step], number: int) -> Path:
    """The batch script of a step of a submission."""
    return folder / (f"then_{number}_{steps[number].name}.sbatch" if number else SCRIPT)


def script_of(step: Step, folder: Path, logs: Path, url: str, after: str = "") -> str:
    """The batch script of a step that is submitted from here.

    Args:
        folder: of the submission.
        logs: see `Submission`.
        url: of the database, if there is one.
        after: id of the job that must have succeeded before.
    """
    variables = {URL_VARIABLE: _storage(url, folder)} if url else {}
    return write_script(step, Path.cwd(), logs, variables, after)


def submit(
    steps: Sequence[Step], folder: Path, logs: Path, url: str, studies: Sequence[str]
) -> Submission:
    """Submit steps that follow one another; if one is refused, none of them stays.

    Args:
        folder: for the scripts; see `new_folder`.
        logs: see `Submission`.
        url: of the database, if there is one. A password goes into a file of mode 600.
        studies: see `Submission`.
    """
    make_folder(folder)
    folder.chmod(0o700)
    if redact(url) != url:
        write_secret(folder / STORAGE, url)
    jobs: list[str] = []
    try:
        check_seen(steps[0], folder, logs)
        for number, step in enumerate(steps):
            path = script_path(folder, steps, number)
            write_text(path, script_of(step, folder, logs, url, "".join(jobs[-1:])))
            jobs.append(slurm.submit_script(path))
    except BaseException:
        if jobs:
            slurm.cancel_jobs(jobs)
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return keep(steps, folder, logs, studies, jobs)


def keep(
    steps: Sequence[Step], folder: Path, logs: Path, studies: Sequence[str], jobs: Sequence[str]
) -> Submission:
    """Note a submission in its folder.

    Args:
        jobs: ids in Slurm; empty for tasks on this machine.
    """
    submitted = tuple(
        SubmittedStep(step.name, job, step.tasks, shlex.join(["harness", *step.commands[-1]]))
        for step, job in zip(steps, jobs or [""] * len(steps), strict=True)
    )
    submission = Submission(folder, logs, tuple(studies), submitted)
    submission.write()
    return submission


def check_seen(step: Step, folder: Path, logs: Path) -> None:
    """Refuse a folder of logs that the nodes do not have: a task would die without a word."""
    if slurm.node_sees(logs, step.resources) is False:
        raise HarnessError(
            f"the nodes of the cluster do not have the folder {logs}\n"
            "  give --runs-dir a folder that this machine and all nodes share; without any such "
            "folder give --logs DIR, a folder that exists on every node, and --storage URL"
        )
    if logs != folder and (folder / STORAGE).exists():
        raise HarnessError(
            "without a shared folder the tasks cannot read the password of --storage\n"
            "  put it into ~/.pgpass on the nodes, and leave it out of the URL"
        )


def write_secret(path: Path, text: str) -> None:
    """A file that only its owner can read, from the first byte on."""
    path.touch(mode=0o600)
    path.write_text(text + "\n")


def _storage(url: str, folder: Path) -> str:
    """A URL as the shell reads it: from a file if it has a password."""
    if redact(url) == url:
        return shlex.quote(url)
    return f'"$(cat {shlex.quote(str(folder / STORAGE))})"'
