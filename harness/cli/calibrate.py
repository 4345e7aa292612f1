"""`harness calibrate`: run known answers through the whole pipeline, or compare selection rules."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.cli.display import say
from harness.cli.options import Given, Verbose, progress, takes_config
from harness.config import LENGTH, OUTPUT, WHAT
from harness.errors import HarnessError

COPIES, QUICK_COPIES = 5, 3
QUICK_BUDGET = {"trials": 3, "searches": 2, "reproductions": 4}

# With --selection: for each loss, other partitions of finalists, tests of each configuration.
SELECTION = {"configurations": 8, "rotations": 2, "seeds": 2}
QUICK_SELECTION = {"configurations": 4, "rotations": 0, "seeds": 1}
OF_SEARCHES = ("trials", "searches", "sampler")  # config keys that --selection does not use


@takes_config("calibrate")
def calibrate(
    given: Given,
    copies: Annotated[
        int | None,
        typer.Option(
            min=2, help="Number of copies of the loss. Default: 5.", rich_help_panel=LENGTH
        ),
    ] = None,
    selection: Annotated[
        bool,
        typer.Option(
            "--selection",
            help="Measure how well each selection rule chooses hyper-parameters instead. A fifth "
            "of the trainval classes replaces the test classes.",
            rich_help_panel=WHAT,
        ),
    ] = False,
    configurations: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="Number of configurations of each loss with --selection. Default: 8.",
            rich_help_panel=LENGTH,
        ),
    ] = None,
    trials_from: Annotated[
        Path | None,
        typer.Option(
            help="Folder of runs with a search of each loss, whose trials --selection trains "
            "again. Default: the first points of a new search.",
            rich_help_panel=WHAT,
        ),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="Run 3 copies with 2 searches of 3 trials each, to try the command out. With "
            "--selection: 4 configurations, one test each, no rotations.",
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
    the loss without labels. With --selection, trains configurations of the losses under each
    selection rule and shows which rule chooses best. Repeat the command to continue where it
    stopped.

    $ harness calibrate --loss contrastive --protocol frozen --copies 10 --searches 2 --trials 12
    $ harness calibrate --selection --loss contrastive proxyanchor --protocol frozen
    """
    with progress(verbose) as listener:
        if selection:
            used = [f"--{key}" for key in OF_SEARCHES if key in given.values]
            if used or copies is not None:
                flags = ", ".join([*used, *(["--copies"] if copies is not None else [])])
                raise HarnessError(f"--selection runs no searches; leave out {flags}")
            from harness.calibration.selection import SelectionPlan, calibrate_selection

            counts = QUICK_SELECTION if quick else SELECTION
            asked = {"configurations": configurations, "seeds": given.config.reproductions}
            counts = {**counts, **{name: count for name, count in asked.items() if count}}
            plan = SelectionPlan(given.configs, folder=output, trials_from=trials_from, **counts)
            lines, files = calibrate_selection(plan, listener), "selection.json, selection.md"
        else:
            if configurations is not None or trials_from is not None:
                raise HarnessError("--configurations and --trials-from need --selection")
            if len(given.losses) > 1:
                raise HarnessError(
                    f"calibrate copies one loss, got {len(given.losses)}; give one, or --selection"
                )
            from harness.calibration.calibrate import Plan, describe
            from harness.calibration.calibrate import calibrate as run_calibration

            (config,) = given.configs
            if quick:
                config = config.updated({**QUICK_BUDGET, **given.values})
            copies = copies or (QUICK_COPIES if quick else COPIES)
            lines = describe(run_calibration(Plan(config, copies, output), listener))
            files = "calibration.json, calibration.md"
    for line in lines:
        say(line)
    say(f"files in {output}: {files}")
