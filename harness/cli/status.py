"""`harness status` and `harness cancel`: what runs, how far it is, and what became of tasks."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.display import plain_console, say, spell_seconds
from harness.cli.options import Given, takes_config
from harness.errors import HarnessError
from harness.metrics.names import title_of
from harness.plain_text import counted

if TYPE_CHECKING:
    from harness.cluster.submissions import Submission
    from harness.cluster.tasks import Task
    from harness.searching.status import SearchStatus

SHOWN = 5  # failed trials of a search


@takes_config("status")
def status(
    given: Given,
    watch: Annotated[
        int | None,
        typer.Option(min=1, metavar="SECONDS", help="Show it again every so many seconds."),
    ] = None,
) -> None:
    """Show what runs: trials, workers, tested reproductions, and the tasks of `harness submit`.

    Works while a search runs, on this machine and on a cluster. Says why tasks ended.

    $ harness status

    $ harness status --watch 10
    """
    while True:
        problems = _show(given)
        if watch is None:
            break
        time.sleep(watch)
        plain_console().clear()
    if problems:
        raise HarnessError("\n  ".join(["not everything could be shown:", *problems]))


def cancel(
    submissions: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SUBMISSION]",
            help="Job ids, or names of folders in runs/submitted. Default: all that run.",
        ),
    ] = None,
    runs_dir: Annotated[Path, typer.Option(help="Folder for work in progress.")] = Path("runs"),
) -> None:
    """Cancel what `harness submit` started. Repeat the submission to continue.

    A task saves a checkpoint and returns its trial to the search before it ends.

    $ harness cancel

    $ harness cancel 4711
    """
    from harness.cluster.submissions import find_submissions
    from harness.cluster.tasks import stop

    found = {one.id: one for one in find_submissions(runs_dir)}
    missing = [name for name in submissions or () if name not in found]
    if missing:
        raise HarnessError(
            f"no submission {missing[0]} in {runs_dir}; known: {', '.join(found) or 'none'}\n"
            "  `harness status` lists them; give --runs-dir if they are elsewhere"
        )
    for name in submissions or found:
        stopped = stop(found[name])
        if stopped or submissions:
            say(f"{name}: {counted(stopped, 'task')} cancelled")


def _show(given: Given) -> list[str]:
    """Print everything; what could not be read."""
    from harness.cluster.submissions import find_submissions
    from harness.searching.found import find_searches
    from harness.searching.status import search_status

    problems: list[str] = []
    table = None
    for one in find_searches(given.losses, given.values, problems):
        if one.table != table:
            table = one.table
            say(f"{table}")
        try:
            _print_search(search_status(one), _tested(given.results / one.table, one.place.method))
        except HarnessError as error:
            problems.append(f"{one.folder}: {error}")
    submissions = find_submissions(Path(given.config.runs_dir))
    for submission in submissions:
        _print_submission(submission)
    if table is None and not submissions and not problems:
        runs = given.config.runs_dir
        raise HarnessError(f"nothing was started in {runs}; start a search, or give --runs-dir")
    return problems


def _tested(table: Path, method: str) -> int:
    """Number of reproductions of a method that were tested."""
    from harness.records.layout import RECORDS, holds_metrics

    records = (table / RECORDS / method).glob("*.json")
    return sum(not holds_metrics(path) for path in records)


def _print_search(search: SearchStatus, tested: int) -> None:
    seed = f" (seed {search.seed})" if search.seed else ""
    wanted = f"{search.done} of {search.wanted}" if search.wanted else str(search.done)
    parts = [f"{wanted} trials", f"{len(search.failures)} failed"]
    if search.best is not None:
        parts.append(f"best validation {title_of(search.metric)} {search.best:.4f}")
    if search.seconds_left is not None:
        parts.append(f"about {spell_seconds(search.seconds_left)} left")
    elif search.done < search.wanted and not any(trial.alive for trial in search.running):
        parts.append("no worker is on it")
    if tested:
        parts.append(f"{counted(tested, 'reproduction')} tested")
    say(f"  {search.method}{seed}: {', '.join(parts)}")
    for trial in search.running:
        lost = "" if trial.alive else "; this worker is gone, the next one takes it over"
        time = spell_seconds(trial.seconds)
        say(f"    trial {trial.index + 1}: {trial.place}, for {time}{lost}")
    for index, reason in list(search.failures.items())[-SHOWN:]:
        say(f"    trial {index + 1} failed: {reason}")


def _print_submission(submission: Submission) -> None:
    from harness.cluster.tasks import DONE, tasks_of

    tasks = {step: tasks_of(submission, step) for step in submission.steps}
    if all(task.now.state == DONE for those in tasks.values() for task in those):
        say(f"submitted as {submission.id}: done")
        return
    say(f"submitted as {submission.id}, logs in {submission.logs}")
    for step, those in tasks.items():
        alike: dict[str, list[int]] = {}
        for task in those:
            alike.setdefault(_words(task), []).append(task.number)
        job = f", job {step.job}" if step.job else ""
        for words, numbers in alike.items():
            say(f"  {step.name}{job}, {_numbered(numbers)}: {words}")


def _numbered(tasks: Sequence[int]) -> str:
    if len(tasks) > SHOWN:
        return counted(len(tasks), "task")
    return f"task{'s' if len(tasks) > 1 else ''} {', '.join(map(str, tasks))}"


def _words(task: Task) -> str:
    """What a task does, or how and why it ended."""
    parts = [task.now.state]
    if task.node:
        parts.append(f"on {task.node}")
    if task.now.reason:
        parts.append(f"({task.now.reason})")
    earlier = [f"{how}, {counted(times, 'time')}" for how, times in task.earlier.items()]
    return "; earlier: ".join([" ".join(parts), *(["; ".join(earlier)] if earlier else [])])
