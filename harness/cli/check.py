"""`harness check`: find mistakes in a loss within seconds, before a search."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.display import say, spell, spell_seconds
from harness.cli.options import Given, find_file, takes_config
from harness.errors import HarnessError

if TYPE_CHECKING:
    from harness.config import RunConfig


@takes_config("check")
def check(
    given: Given,
    losses: Annotated[list[str], typer.Argument(metavar="LOSS...", help="Loss files or names.")],
) -> None:
    """Check a loss on a few made-up batches and estimate how long its search takes.

    Exits with code 2 if a search would fail or measure something other than you meant.
    `harness search` runs the same checks on loss files.

    $ harness check my_loss.py --dataset cub --protocol frozen --trunk efficientnet_lite0
    """
    configs = [given.config.updated({"loss": find_file(loss)}) for loss in losses]
    problems = [line for config in configs for line in _check_one(config)]
    if problems:
        raise HarnessError("\n  ".join(["a search would not work as intended:", *problems]))


def _check_one(config: RunConfig) -> list[str]:
    from harness.experiment import build_experiment
    from harness.training.loss_check import check_loss, measure_step

    experiment = build_experiment(config)
    found = check_loss(experiment)
    say(f"{found.method}: first trial with {spell(found.parameters) or 'no parameters'}")
    for warning in found.warnings:
        say(f"  warning: {warning}")
    if not found.problems:
        say("  ok: the loss is finite, varies, and its gradient reaches the head")
    folds, protocol = len(experiment.split.folds), experiment.protocol
    models = experiment.trials * folds
    say(f"  a search trains {experiment.trials} trials x {folds} folds = {models} models")
    try:
        seconds = measure_step(experiment)
    except HarnessError as error:  # the trunk's weights may have to be downloaded first
        say(f"  time: not estimated, because {error}")
    else:
        say(f"  time: {1000 * seconds:.1f} ms per step with one process on this CPU")
        if protocol.epochs is None:
            most = spell_seconds(seconds * protocol.max_steps * models)
            say(
                f"  at most {most} if every model trained for all {protocol.max_steps:,} steps; "
                "early stopping usually ends sooner"
            )
    return [f"{found.method}: {problem}" for problem in found.problems]
