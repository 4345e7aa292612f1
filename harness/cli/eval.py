"""`harness eval`: reproductions at the best parameters, and the tables made of them."""

from __future__ import annotations

from typing import Annotated

import typer

from harness.cli.display import say
from harness.cli.leaderboard import Columns, Published, show_tables
from harness.cli.options import (
    Against,
    Given,
    Verbose,
    next_command,
    progress,
    split_metrics,
    takes_config,
)
from harness.cli.printed_table import named_columns
from harness.errors import HarnessError

Metrics = Annotated[
    list[str] | None,
    typer.Option(
        help="Additional metrics: recall@1,2,4,8 nmi covering_radius class_distance. "
        "More may follow."
    ),
]

Single = Annotated[
    bool,
    typer.Option(
        "--single-512", help="Also train one model with the size of the concatenated embeddings."
    ),
]


@takes_config("eval")
def evaluate(
    given: Given,
    metrics: Metrics = None,
    single_512: Single = False,
    published: Published = False,
    columns: Columns = None,
    against: Against = None,
    verbose: Verbose = False,
) -> None:
    """Train the best hyper-parameters with new seeds, score the test classes, write the tables.

    Without flags, evaluates every search in --runs-dir; finished work is not repeated. With
    --preset, or under a protocol without a search, evaluates fixed hyper-parameters.
    Exit code 2 if something could not be evaluated; the tables then contain the rest.

    $ harness eval --loss proxyanchor --dataset glyphs

    $ harness eval --loss proxygml --preset paper --dataset cars --protocol classic-proxygml

    $ harness eval --metrics recall@1,2,4,8 nmi --single-512
    """
    from harness.metrics.names import parse_metrics

    wanted, losses = split_metrics(metrics, given.losses)
    with progress(verbose) as listener:
        from harness.evaluation.reproductions import evaluate as run_evaluation

        done = run_evaluation(losses, given.values, listener, parse_metrics(wanted), single_512)
    show_tables(done.tables, given.results, published, named_columns(columns), against)
    command = next_command("report", values=given.values, keys=("results_dir", "runs_dir"))
    say(f"a page about all of it: {command} (with --pictures: images, too)")
    if done.problems:
        raise HarnessError("\n  ".join(["not everything could be evaluated:", *done.problems]))
