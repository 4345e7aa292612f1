"""`harness search`: find the best parameters of losses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.display import say, spell_seconds
from harness.cli.options import Given, Verbose, next_command, progress, takes_config
from harness.cli.show import print_summary
from harness.loss_file import is_file

if TYPE_CHECKING:
    from harness.searching.forecast import Forecast


@takes_config("search")
def search(
    given: Given,
    verbose: Verbose = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Print trials, steps, estimated time and disk, and what is missing; run nothing.",
        ),
    ] = False,
) -> None:
    """Search the hyper-parameters of losses. Repeat the command to continue or to add trials.

    $ harness search --loss proxyanchor --dataset glyphs --trials 10

    $ harness search --loss ccp --dataset cars --dry-run
    """
    configs = given.configs
    if dry_run:
        from harness.searching.forecast import forecast

        for config in configs:
            _print_forecast(forecast(config))
        return
    with progress(verbose, given.config) as listener:
        from harness.searching.loop import search as run_search

        summaries = run_search(configs, listener)
    for summary in summaries:
        print_summary(summary)
    # The other settings are in the config that the search has saved.
    files = [config.loss for config in configs if is_file(config.loss)]
    losses = ["--loss", *(config.loss for config in configs)] if files else []
    say(f"next: {next_command('eval', *losses, values=given.values, keys=('runs_dir',))}")


def _print_forecast(found: Forecast) -> None:
    experiment, patience = found.experiment, found.experiment.protocol.patience
    until = f", until {patience} validations bring no improvement" if patience else ""
    say(f"{experiment.name}: nothing was run")
    say(f"  trials      {found.trials:,}, {found.models:,} models in all")
    say(f"  steps       {_range([f'{steps:,}' for steps in found.steps])} per model{until}")
    _print_time(found)
    say(f"  disk        {_spell_bytes(found.cache)} of cache, {_spell_bytes(found.runs)} of runs")
    if found.checkpoint:
        say(f"              {_spell_bytes(found.checkpoint)} for each worker while it trains")
    for reason in found.missing or ["nothing"]:
        say(f"  missing     {reason}")


def _print_time(found: Forecast) -> None:
    time = found.time
    if time is None:
        say("  time        unknown until a model is finished: then repeat this command")
        return
    hours = _range([spell_seconds(found.models * steps * time.seconds) for steps in found.steps])
    device = "core" if found.experiment.protocol.frozen else "GPU"
    say(f"  time        {hours} of one {device}")
    say(f"              {1000 * time.seconds:.3g} ms per step ({time.source})")
    if time.mean_steps is not None:
        expected = spell_seconds(found.models * time.mean_steps * time.seconds)
        say(f"              {expected} at {time.mean_steps:,} steps, their mean")


def _range(texts: list[str]) -> str:
    return " to ".join(dict.fromkeys(texts))


def _spell_bytes(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"
