"""`harness search`: find the best parameters of losses."""

from __future__ import annotations

from harness.cli.display import say
from harness.cli.options import Given, Verbose, next_command, progress, takes_config
from harness.cli.show import print_summary
from harness.loss_file import is_file


@takes_config("search")
def search(given: Given, verbose: Verbose = False) -> None:
    """Search the hyper-parameters of losses. Repeat the command to continue or to add trials.

    $ harness search --loss proxyanchor --dataset glyphs --trials 10
    """
    configs = given.configs
    with progress(verbose, given.config) as listener:
        from harness.searching.loop import search as run_search

        summaries = run_search(configs, listener)
    for summary in summaries:
        print_summary(summary)
    # The other settings are in the config that the search has saved.
    files = [config.loss for config in configs if is_file(config.loss)]
    losses = ["--loss", *(config.loss for config in configs)] if files else []
    say(f"next: {next_command('eval', *losses, values=given.values, keys=('runs_dir',))}")
