"""`harness compare`: is the difference between methods significant?"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.display import say
from harness.cli.options import Against, Given, full_name, takes_config
from harness.cli.printed_table import print_table

if TYPE_CHECKING:
    from harness.judgement.judged import JudgedPair, JudgedTable

# Columns for a narrow terminal.
NARROW = ("data set", "pair", "difference", "answer")


@takes_config("compare")
def compare(
    given: Given,
    methods: Annotated[
        list[str], typer.Argument(metavar="METHOD", help="Two or more rows of a table.")
    ],
    dataset: Annotated[
        list[str] | None,
        typer.Option(help="Name of a data set. Repeat it for several. Default: glyphs."),
    ] = None,
    metric: Annotated[
        str, typer.Option(help="Metric: map_at_r, r_precision or p_at_1.")
    ] = "map_at_r",
    against: Against = None,
) -> None:
    """Test whether one method is significantly better than another, from their records.

    Differences have the noise of test classes, seeds and, where they were repeated, searches.
    P-values are corrected within the same families as in `harness verdict`. A name means your row;
    without one, the stored row.

    $ harness compare proxyanchor contrastive --dataset glyphs

    $ harness compare ccp ms triplet --dataset cub --dataset cars
    """
    import pandas as pd

    from harness.errors import unknown
    from harness.judgement.judge import find_pairs_of, find_stored, judge
    from harness.judgement.ranks import rank_rows
    from harness.judgement.words import friedman_words, sentence
    from harness.metrics.names import METRICS, title_of
    from harness.records.layout import find_table, named_like

    if metric not in METRICS:
        raise unknown("metric", metric, METRICS)
    protocol, trunk = given.config.protocol, given.values.get("trunk")
    tables = [
        find_table(given.results, protocol, name, trunk)
        for name in dict.fromkeys(dataset or ["glyphs"])
    ]
    stored = find_stored(given.results, against)
    judgement = judge(given.results, stored, named_like(tables))
    pairs = find_pairs_of(judgement, methods, full_name)
    title = f"Differences in points of {title_of(metric)}, the first minus the second"
    print_table(pd.DataFrame([_row(*pair, metric) for pair in pairs]), title, NARROW)
    if metric != METRICS[0]:
        say("P-values are not corrected. Only MAP@R of concatenated embeddings gets an answer:")
    for table, pair in pairs:
        say(f"- {sentence(table, pair)}")
    if len(judgement.tables) > 1:
        names = [row.name for row in judgement.tables[0].rows if _compared(row.name, pairs)]
        ranks = rank_rows(names, judgement.tables)
        means = ", ".join(f"{name} {mean:.2f}" for name, mean in ranks.by_method.items())
        say(f"Mean rank over {len(ranks.datasets)} data sets: {means}.")
        say(friedman_words(ranks))
    for problem in judgement.problems:
        say(f"warning: {problem}", file=sys.stderr)


def _compared(name: str, pairs: list[tuple[JudgedTable, JudgedPair]]) -> bool:
    return any(name in (pair.method, pair.rival) for _, pair in pairs)


def _row(table: JudgedTable, pair: JudgedPair, metric: str) -> dict[str, str]:
    from harness.judgement.judged import METRIC
    from harness.judgement.words import p_words, short_answer, signed, spell_p
    from harness.metrics.names import EMBEDDINGS

    whole, single = (pair.estimates[embedding][metric] for embedding in EMBEDDINGS)

    def interval(low: float | None, high: float | None) -> str:
        return "-" if low is None or high is None else f"{signed(low)} to {signed(high)}"

    raw = "-" if whole.p is None else spell_p(whole.p).removeprefix("= ")
    answered = metric == METRIC
    return {
        "data set": table.dataset,
        "pair": f"{pair.method} - {pair.rival}",
        "difference": signed(whole.difference),
        "95% interval": interval(whole.low, whole.high),
        **({"p (Holm)": p_words(pair) or "-"} if answered else {"p": raw}),
        **({"answer": short_answer(table, pair)} if answered else {}),
        "single models": f"{signed(single.difference)} ({interval(single.low, single.high)})",
    }
