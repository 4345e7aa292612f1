"""`harness calibrate`: run known answers through the whole pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.cli.display import say
from harness.cli.options import Given, Verbose, progress, takes_config
from harness.config import LENGTH, OUTPUT

QUICK = {"trials": 3, "searches": 2, "reproductions": 4}
QUICK_COPIES = 3


@takes_config("calibrate")
def calibrate(
    given: Given,
    copies: Annotated[
        int, typer.Option(min=2, help="Number of copies of the loss.", rich_help_panel=LENGTH)
    ] = 5,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="Run 3 copies with 2 searches of 3 trials each, to try the command out.",
            rich_help_panel=LENGTH,
        ),
    ] = False,
    output: Annotated[
        Path, typer.Option(help="Folder for everything it writes.", rich_help_panel=OUTPUT)
    ] = Path("calibration"),
    verbose: Verbose = False,
) -> None:
    """Measure how often this budget calls copies of one loss different, and what it can find.

    Runs copies of one loss under different seeds, the loss with half of its labels permuted, and
    the loss without labels. Repeat the command to continue where it stopped.

    $ harness calibrate --loss contrastive --protocol frozen --copies 10 --searches 2 --trials 12
    """
    (config,) = given.configs[:1]
    if quick:
        config = config.updated({**QUICK, **given.values})
        copies = QUICK_COPIES
    with progress(verbose) as listener:
        from harness.calibration.calibrate import Plan, describe
        from harness.calibration.calibrate import calibrate as run_calibration

        found = run_calibration(Plan(config, copies, output), listener)
    for line in describe(found):
        say(line)
    say(f"files in {output}: calibration.json, calibration.md")
