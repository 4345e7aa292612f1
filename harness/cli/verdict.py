"""`harness verdict`: which claims hold, and where a loss of yours stands."""

from __future__ import annotations

import sys
from json import dumps
from pathlib import Path
from shutil import get_terminal_size
from typing import Annotated

import typer

from harness.cli.display import say
from harness.cli.options import Against, Given, full_name, takes_config

SHOWN = 5  # problems of records; the rest is counted


@takes_config("verdict")
def verdict(
    given: Given,
    method: Annotated[
        str | None,
        typer.Argument(help="Row of a table, or your loss. Default: the claims of the papers."),
    ] = None,
    dataset: Annotated[str | None, typer.Option(help="Name of the data set. Default: all.")] = None,
    protocol: Annotated[
        str | None, typer.Option(help="Name of the protocol. Default: all.")
    ] = None,
    trunk: Annotated[str | None, typer.Option(help="Name of the trunk. Default: all.")] = None,
    against: Against = None,
    margin: Annotated[
        float, typer.Option(help="Differences up to this many points are called equivalent.")
    ] = 0.5,
    json: Annotated[
        bool, typer.Option("--json", help="Print the judgements as JSON instead of text.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option(help="Write the verdict to this file instead of printing it.")
    ] = None,
) -> None:
    """Explain in words what the tables show, with statistical tests and caveats.

    Uses records only. For your own loss, shows its rank among the losses that come with results,
    without running any of them again.

    $ harness verdict

    $ harness verdict my_loss --dataset cub --protocol frozen

    $ harness verdict --json --dataset cub

    $ harness verdict --results-dir results --against none --output results/VERDICT.md
    """
    from harness.judgement.judge import find_rows, find_stored, judge, only_rows
    from harness.judgement.judged import to_json
    from harness.records.layout import fits
    from harness.records.published import find_folder
    from harness.system.files import write_text
    from harness.verdicts.text import wrapped, write_verdict

    def wanted(table: Path) -> bool:
        return fits(table, protocol, dataset, trunk)

    stored = find_stored(given.results, against)
    judgement = judge(given.results, stored, wanted, margin / 100)
    if json:
        if method is not None:
            judgement = only_rows(judgement, find_rows(judgement, method, full_name))
        text = dumps(to_json(judgement), indent=2, ensure_ascii=False) + "\n"
    else:
        text = write_verdict(judgement, method, find_folder(given.results), full_name)
    if output is not None:
        write_text(output, text)
        say(f"wrote {output}")
    elif json:
        say(text, end="")
    else:
        say(wrapped(text, get_terminal_size().columns), end="")
    problems = judgement.problems
    for problem in problems[:SHOWN]:
        say(f"warning: {problem}", file=sys.stderr)
    if len(problems) > SHOWN:
        say(f"warning: and {len(problems) - SHOWN} more records", file=sys.stderr)
