"""`harness eval`: reproductions at the best parameters, and the tables made of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

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

if TYPE_CHECKING:
    from harness.tables.leaderboard import Leaderboard

Metrics = Annotated[
    list[str] | None,
    typer.Option(
        help="Additional metrics: recall@1,2,4,8 p@2 nmi covering_radius class_distance. "
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
    with progress(verbose, given.config) as listener:
        from harness.evaluation.reproductions import evaluate as run_evaluation

        done = run_evaluation(losses, given.values, listener, parse_metrics(wanted), single_512)
    for file in dict.fromkeys(done.unnamed):
        command = next_command("eval", "--loss", file, values=given.values, keys=("runs_dir",))
        say(f"not evaluated: a loss file runs only if you name it: {command}")
    boards = show_tables(done.tables, given.results, published, named_columns(columns), against)
    _print_places(boards, given)
    command = next_command("report", values=given.values, keys=("results_dir", "runs_dir"))
    say(f"a page about all of it: {command} (with --pictures: images, too)")
    if done.problems:
        raise HarnessError("\n  ".join(["not everything could be evaluated:", *done.problems]))


def _print_places(boards: Sequence[Leaderboard], given: Given) -> None:
    """Where the user's rows are among the stored ones, and what to ask about them next."""
    from harness.judgement.words import place_words

    for board in boards:
        if board.judged is None or not any(row.stored for row in board.judged.trained_rows):
            continue
        own = [row for row in board.judged.trained_rows if not row.stored]
        for row in own:
            say(f"{place_words(board.judged, row)}, among the stored rows")
        if own:
            table = ("--dataset", board.judged.dataset, "--protocol", board.judged.protocol)
            words = ("verdict", own[0].method.partition("@")[0], *table)
            say(f"next: {next_command(*words, values=given.values, keys=('results_dir',))}")
