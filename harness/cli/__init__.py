"""The command line: flags to config, one file per command. Only this package prints or exits.

Heavy modules are imported inside the commands: `harness --help` must not wait for torch.
"""

from __future__ import annotations

import sys

import typer

from harness.cli.compare import compare
from harness.cli.cost import cost
from harness.cli.dashboard import dashboard
from harness.cli.data import data
from harness.cli.display import printable
from harness.cli.embed import embed
from harness.cli.eval import evaluate
from harness.cli.geometry import geometry
from harness.cli.leaderboard import leaderboard
from harness.cli.list import list_
from harness.cli.merge import merge
from harness.cli.plot import plot
from harness.cli.report import report
from harness.cli.retry import retry
from harness.cli.search import search
from harness.cli.show import show
from harness.cli.submit import submit
from harness.cli.sweep import sweep
from harness.cli.tables import tables
from harness.cli.train import train
from harness.cli.verdict import verdict
from harness.errors import HarnessError
from harness.system.files import naming_disk_trouble

INTERRUPTED = 130  # what typer returns after Ctrl-C

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",  # else brackets in help texts vanish
    help="Is that metric learning loss really better? A fair search, then a test on new classes.",
)
app.command()(search)
app.command()(submit)
app.command()(retry)
app.command("eval")(evaluate)
app.command()(sweep)
app.command()(cost)
app.command()(geometry)
app.command()(leaderboard)
app.command()(compare)
app.command()(verdict)
app.command()(report)
app.command()(plot)
app.command()(embed)
app.command()(tables)
app.command()(merge)
app.command()(show)
app.command()(dashboard)
app.command()(train)
app.command("list")(list_)
app.add_typer(data, name="data")


def main(arguments: list[str] | None = None) -> int:
    """Run a command; returns the exit code: 2 for what the user can mend, 130 for Ctrl-C."""
    try:
        with naming_disk_trouble():
            code = app(args=arguments, standalone_mode=False, prog_name="harness")
    except HarnessError as error:
        _complain(str(error))
        return 2
    except Exception as error:
        if hasattr(error, "format_message"):  # a flag that click refused
            _complain(f"{error.format_message()}\n  see: harness --help")
            return 2
        raise
    if code == INTERRUPTED:
        print("stopped. Repeat the same command to go on where it stopped.", file=sys.stderr)
    return code if isinstance(code, int) else 0


def _complain(message: str) -> None:
    print(f"error: {printable(message)}", file=sys.stderr)
