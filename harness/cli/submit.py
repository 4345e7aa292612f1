"""`harness submit`: commands on the nodes of a cluster, one after the other."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from harness.cli.display import say
from harness.cli.options import Given, next_command, read_given
from harness.cluster.batch import SHARE, Resources, Step, parse_options
from harness.config import DATA, OUTPUT, WHERE, RunConfig, keys
from harness.errors import HarnessError, unknown
from harness.plain_text import counted
from harness.redact import redact

# What can be submitted -> the words of its command.
COMMANDS = {
    "search": ("search",),
    "eval": ("eval",),
    "sweep": ("sweep",),
    "prepare": ("data", "prepare"),
    "report": ("report",),
}
NOT_FIRST = ("report",)  # it trains nothing: it follows a step that did


def submit(
    context: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[search|eval|sweep|prepare] FLAGS",
            help="Command to run, and all of its flags. Default: search.",
        ),
    ] = None,
    then: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COMMAND",
            help="Command to run after that, if it succeeded: eval, report, sweep or search, with "
            "further flags in quotes. Repeat it for several.",
        ),
    ] = None,
    nodes: Annotated[int, typer.Option(help="Number of nodes. Each runs its own workers.")] = 1,
    partition: Annotated[str, typer.Option(help="Slurm partition.")] = "",
    gpus: Annotated[int, typer.Option(help="Number of GPUs per node.")] = 0,
    cpus: Annotated[
        int,
        typer.Option(
            help="Number of CPU cores per node. Default: the share of the GPUs, or without GPUs "
            "the whole node."
        ),
    ] = 0,
    hours: Annotated[
        float, typer.Option(help="Time limit of a task. An unfinished task is queued again.")
    ] = 24.0,
    slurm: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY[=VALUE]",
            help="Any option of sbatch, such as qos=high or exclusive. Repeat it for several.",
        ),
    ] = None,
    logs: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the logs, which must exist on all nodes. Default: in --runs-dir."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the batch scripts and submit nothing.")
    ] = False,
) -> None:
    """Run a command on several nodes with Slurm, or on this machine if Slurm is not installed.

    Takes all flags of the command, such as those of `harness search`. The tasks share the work:
    trials, folds, points of a sweep, or data sets to prepare. Repeat the command to continue.

    $ harness submit --nodes 8 --gpus 4 --loss ccp --dataset cars --storage postgresql+psycopg://...

    $ harness submit search --loss ccp --nodes 4 --then eval --then report

    $ harness submit prepare cub cars --data-root /data
    """
    from harness.cluster.slurm import cores_per_gpu, has_slurm

    resources = Resources(nodes, partition, gpus, cpus, hours, parse_options(slurm or []))
    on_slurm = has_slurm()
    per_gpu = cores_per_gpu(partition) if on_slurm and gpus and not cpus else 0
    asked = _read_command(context, words or [])
    steps = [asked, *(_read_then(context, text, asked) for text in then or [])]
    _check(asked, nodes if on_slurm else 1)
    planned = [one.step(resources, per_gpu) for one in steps]
    run = _submit_to_slurm if on_slurm else _run_here
    run(asked, planned, logs, dry_run)
    if not dry_run:
        values = asked.given.values
        say(f"next: {next_command('status', values=values, keys=('runs_dir',))}")


@dataclass(frozen=True)
class _Asked:
    """A command that was asked for, with its flags read.

    Attributes:
        words: those that the user gave it, without the URL of the database.
        datasets: data sets to prepare, a task each.
    """

    name: str
    words: tuple[str, ...]
    given: Given
    datasets: tuple[str, ...] = ()

    @property
    def config(self) -> RunConfig:
        return self.given.config

    def step(self, resources: Resources, per_gpu: int) -> Step:
        command = COMMANDS[self.name]
        about = "-".join([*(Path(loss).stem for loss in self.given.losses), *self.datasets])
        step = Step(self.name, [[*command, *self.words]], resources, about, (), per_gpu)
        if self.name == "prepare":
            words = [*command, SHARE, *self.words]
            return replace(step, commands=[words], shares=self.datasets)
        if self.name == "report":  # its log ends with the table
            table = ["leaderboard", "--results-dir", self.config.results_dir]
            alone = replace(resources, nodes=1, gpus=0, cpus=1)
            return replace(step, commands=[*step.commands, table], resources=alone)
        return step


def _read_command(context: typer.Context, words: Sequence[str]) -> _Asked:
    """The command that some words name and its flags; a search if they name none."""
    named = bool(words) and words[0] in COMMANDS
    name, rest = (words[0] if named else "search"), list(words[named:])
    datasets: tuple[str, ...] = ()
    parsed = rest
    if name == "prepare":
        datasets = tuple(itertools.takewhile(lambda word: not word.startswith("-"), rest))
        rest = rest[len(datasets) :]
        if not datasets:
            raise HarnessError("which data set? for example: harness submit prepare cub cars")
        parsed = [datasets[0], *rest]
    given = read_given(_parse(context, COMMANDS[name], parsed))
    return _Asked(name, tuple(_without_storage(rest)), given, datasets)


def _read_then(context: typer.Context, text: str, first: _Asked) -> _Asked:
    """A command that follows the first one, with the flags of the first one that it takes, too."""
    try:
        name, *words = shlex.split(text)
    except ValueError as error:
        raise HarnessError(f"--then '{text}': {error}") from None
    if name not in COMMANDS or name == "prepare":
        raise unknown("command for --then", name, set(COMMANDS) - {"prepare"})
    carried = _carried(first, name, has_loss="--loss" in words or "-l" in words)
    return _read_command(context, [name, *carried, *words])


def _carried(first: _Asked, name: str, has_loss: bool) -> list[str]:
    """What a command shares with the first one: what it works on, and where."""
    words: list[str] = []
    if name in keys()["loss"].commands and not has_loss and first.given.losses:
        words += ["--loss", *first.given.losses]
    for key, value in first.given.values.items():
        about = keys()[key]
        shared = about.picks_searches or about.panel in (WHERE, DATA, OUTPUT)
        if shared and name in about.commands and key not in ("loss", "storage"):
            flag = (about.flags or (f"--{key.replace('_', '-')}",))[0]
            if isinstance(value, bool):
                words += [flag] * value
            else:
                several = value if isinstance(value, list | tuple) else [value]
                words += [word for one in several for word in (flag, str(one))]
    return words


def _parse(context: typer.Context, path: Sequence[str], words: Sequence[str]) -> dict[str, Any]:
    """The flags of a command, refused as the command itself would refuse them."""
    parent: Any = context.find_root()
    command = parent.command
    for name in path:
        command = command.commands[name]
    with command.make_context(" ".join(path), list(words), parent=parent) as parsed:
        return dict(parsed.params)


def _without_storage(words: Sequence[str]) -> list[str]:
    """The words of a script: the URL of the database, and its password, travel apart."""
    kept: list[str] = []
    left = iter(words)
    for word in left:
        if word == "--storage":
            next(left, None)
        elif word == "--set":
            value = next(left, "")
            kept += [] if value.startswith("storage=") else [word, value]
        elif not word.startswith("--storage="):
            kept.append(word)
    secret = next((word for word in kept if redact(word) != word), None)
    if secret is not None:
        raise HarnessError(f"a password does not belong into a script: {redact(secret)}")
    return kept


def _check(asked: _Asked, nodes: int) -> None:
    """Refuse what could only fail on the nodes."""
    if asked.name in NOT_FIRST:
        raise HarnessError(
            f"`harness {asked.name}` needs no cluster; submit it after a command that trains: "
            f"--then {asked.name}"
        )
    storage = asked.config.storage
    if asked.name == "search" and nodes > 1 and (not storage or storage.startswith("sqlite")):
        raise HarnessError(
            "several nodes need a database, --storage postgresql+psycopg://user@host/database: "
            "the locks of a file cannot be trusted on a network file system"
        )


def _studies(asked: _Asked) -> list[str]:
    """The studies that a search works on; whatever is wrong with them is found here."""
    if asked.name != "search":
        return []
    from harness.searching.loop import check
    from harness.searching.repeated import repeated

    return [check(config)[0].name for config in repeated(asked.given.configs)]


def _print_scripts(steps: Sequence[Step], folder: Path, logs: Path, url: str) -> None:
    from harness.cluster.submissions import script_of, script_path

    for number, step in enumerate(steps):
        after = f"JOB-ID-OF-{steps[number - 1].name.upper()}" if number else ""
        say(f"# {script_path(folder, steps, number)}")
        say(script_of(step, folder, logs, url, after))


def _submit_to_slurm(
    asked: _Asked, steps: Sequence[Step], logs: Path | None, dry_run: bool
) -> None:
    from harness.cluster.submissions import new_folder, submit

    url = asked.config.storage
    studies = _studies(asked)
    folder = new_folder(Path(asked.config.runs_dir), asked.name)
    if dry_run:
        _print_scripts(steps, folder, logs or folder, url)
        return
    submission = submit(steps, folder, logs or folder, url, studies)
    for step in submission.steps:
        tasks = counted(step.tasks, "task")
        say(f"job {step.job}: {step.name}, {tasks}, log of the first: {submission.log(step, 0)}")
    say(f"submitted as {submission.id}; scripts in {folder}")


def _run_here(asked: _Asked, steps: Sequence[Step], logs: Path | None, dry_run: bool) -> None:
    """Run all steps on this machine, and wait for them."""
    from harness.cluster.local import run_step, share_cards, share_machine
    from harness.cluster.submissions import keep, new_folder, script_of, script_path
    from harness.system.files import make_folder, write_text

    config = asked.config
    studies = _studies(asked)
    trains = ("search", "eval", "sweep")
    steps = [share_machine(step, config) if step.name in trains else step for step in steps]
    cards = share_cards(config, steps[0].resources)
    folder = new_folder(Path(config.runs_dir), asked.name)
    logs = (logs or folder).absolute()
    if dry_run:
        _print_scripts(steps, folder, logs, "")
        return
    make_folder(folder)
    make_folder(logs)
    submission = keep(steps, folder, logs, studies, [])
    for number, step in enumerate(submission.steps):
        path = script_path(folder, steps, number)
        write_text(path, script_of(steps[number], folder, logs, ""))
        for task in range(step.tasks):
            say(f"{step.name}, task {task}: {submission.log(step, task)}")
        run_step(submission, step, path, config.storage, cards)
