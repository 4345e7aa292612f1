"""The command line: flags to config, one file per command. Only this package prints or exits.

Heavy modules are imported inside the commands: `harness --help` must not wait for torch.
"""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress
from importlib.metadata import version as version_of
from importlib.util import find_spec
from typing import Annotated

import typer

from harness.cli.bug import report_bug
from harness.cli.calibrate import calibrate
from harness.cli.check import check
from harness.cli.compare import compare
from harness.cli.cost import cost
from harness.cli.dashboard import dashboard
from harness.cli.data import data
from harness.cli.display import (
    log_on_terminal,
    replace_closed_streams,
    say,
    write_on_any_terminal,
)
from harness.cli.embed import embed
from harness.cli.eval import evaluate
from harness.cli.export import export
from harness.cli.geometry import geometry
from harness.cli.leaderboard import leaderboard
from harness.cli.list import list_
from harness.cli.merge import merge
from harness.cli.plot import plot
from harness.cli.query import query
from harness.cli.report import report
from harness.cli.retry import retry
from harness.cli.search import search
from harness.cli.show import show
from harness.cli.site import site
from harness.cli.status import cancel, status
from harness.cli.submit import submit
from harness.cli.sweep import sweep
from harness.cli.tables import tables
from harness.cli.train import train
from harness.cli.verdict import verdict
from harness.errors import HarnessError
from harness.system.files import naming_disk_trouble
from harness.system.stopping import TERMINATED, Terminated, asked_to_stop, hearing_sigterm
from harness.system.trouble import trouble_in

INTERRUPTED = 130  # what typer returns after Ctrl-C
BUG = 70  # "internal software error", as sysexits.h has it

app = typer.Typer(
    invoke_without_command=True,  # prints the help
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",  # else brackets in help texts vanish
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Compare metric-learning losses fairly: search hyper-parameters, test on unseen classes.",
)
app.command()(search)
app.command()(check)
app.command()(calibrate)
# It passes the flags of another command on.
app.command(context_settings={"ignore_unknown_options": True})(submit)
app.command()(retry)
app.command("eval")(evaluate)
app.command()(sweep)
app.command()(cost)
app.command()(geometry)
app.command()(leaderboard)
app.command()(compare)
app.command()(verdict)
app.command()(report)
app.command()(site)
app.command()(plot)
app.command()(export)
app.command()(embed)
app.command()(query)
app.command()(tables)
app.command()(merge)
app.command()(show)
app.command()(status)
app.command()(cancel)
app.command()(dashboard)
app.command()(train)
app.command("list")(list_)
app.add_typer(data, name="data")


def _print_version(wanted: bool) -> None:
    if wanted:
        say(f"metric-harness {version_of('metric-harness')}")
        raise typer.Exit


@app.callback()
def common(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Options of `harness` itself, before any command. Without a command, print the help."""
    if context.invoked_subcommand is None:
        say(context.get_help())


def main(arguments: list[str] | None = None) -> int:
    """Run a command; returns the exit code.

    2 for an error that the user can fix, 130 for Ctrl-C, 143 for SIGTERM, 70 for a bug of ours,
    with a report to send.
    """
    replace_closed_streams()
    write_on_any_terminal()
    log_on_terminal()
    try:
        with hearing_sigterm(), naming_disk_trouble():
            code = app(args=_expanded(arguments), standalone_mode=False, prog_name="harness")
            sys.stdout.flush()  # while a disk that is full can still be told of
            if asked_to_stop() and code == INTERRUPTED:
                code = TERMINATED
    except HarnessError as error:
        if isinstance(error.__cause__, BrokenPipeError):  # who read us, as `head`, has enough
            _stop_writing()
            return 0
        _complain(str(error))
        return 2
    except Terminated:
        code = TERMINATED
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        _complain(_in_words(error))
        return 2 if any(kind(error) for kind in (_is_refused_flag, _missing, trouble_in)) else BUG
    if code in (INTERRUPTED, TERMINATED):
        say("stopped. Repeat the same command to go on where it stopped.", file=sys.stderr)
    return code if isinstance(code, int) else 0


def _expanded(arguments: list[str] | None) -> list[str]:
    """`--results-dir=~/results`, in which shells leave the ~ as it is."""
    given = sys.argv[1:] if arguments is None else arguments
    flags = (re.fullmatch(r"(--[\w-]+=)(~.*)", one, re.DOTALL) for one in given)
    return [
        flag[1] + os.path.expanduser(flag[2]) if flag else os.path.expanduser(one)
        for one, flag in zip(given, flags, strict=True)
    ]


def _in_words(error: BaseException) -> str:
    if _is_refused_flag(error):
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "harness"
        return f"{error.format_message()}\n  see: {command} --help"  # type: ignore[attr-defined]
    if module := _missing(error):
        return (
            f"this command needs the Python module {module}, which is not installed\n"
            "  install the whole package, not only what reads tables: pip install . in a clone"
        )
    trouble = trouble_in(error)
    return report_bug(error) if trouble is None else str(trouble)


def _is_refused_flag(error: BaseException) -> bool:
    return hasattr(error, "format_message")  # click's


def _missing(error: BaseException) -> str | None:
    """The module of a package that is not installed, such as torch."""
    name = (error.name or "") if isinstance(error, ModuleNotFoundError) else ""
    top = name.partition(".")[0]
    return None if not top or find_spec(top) else top


def _stop_writing() -> None:
    """Let Python flush into nothing when it ends, not into a pipe that nobody reads."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complain(message: str) -> None:
    with suppress(OSError):  # if nothing can be printed, the exit code must do
        say(f"error: {message}", file=sys.stderr)
