"""`harness compare`: is the difference between methods real?"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.display import say
from harness.cli.options import Given, full_name, takes_config
from harness.cli.printed_table import print_table

if TYPE_CHECKING:
    import pandas as pd

    from harness.judgement.compare import Comparison
    from harness.judgement.ranks import Ranks


# Columns for a narrow terminal, beside the difference itself.
NARROW = ("data set", "pair", "over classes", "n", "p:")


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
) -> None:
    """Test whether one method is significantly better than another, from their records.

    All methods share their seeds, so the tests are paired. A bootstrap over the test classes shows
    whether other classes might reverse the order.

    $ harness compare proxyanchor contrastive --dataset glyphs

    $ harness compare ccp ms triplet --dataset cub --dataset cars
    """
    from harness.judgement import compare as comparing
    from harness.metrics.names import title_of

    comparing.check_asked(methods, metric)
    protocol, trunk = given.config.protocol, given.values.get("trunk")
    tables = [
        comparing.find_table(given.results, protocol, name, trunk)
        for name in dict.fromkeys(dataset or ["glyphs"])
    ]
    problems: list[str] = []
    comparisons, ranks = comparing.compare(tables, methods, metric, problems, full_name)
    title = "Differences in percent, the first minus the second"
    print_table(_rows(comparisons), title, (*NARROW, title_of(metric)))
    for comparison in comparisons:
        say(f"- {comparing.in_words(comparison)}")
    if len(tables) > 1:
        _print_ranks(ranks)
    for problem in problems:
        say(f"warning: {problem}", file=sys.stderr)


def _rows(comparisons: list[Comparison]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame([_row(comparison) for comparison in comparisons])


def _row(c: Comparison) -> dict[str, str]:
    from harness.judgement.stats import Paired
    from harness.metrics.names import title_of

    def p_values(result: Paired) -> str:
        values = [value for value in (result.t_test, result.wilcoxon) if value is not None]
        return " / ".join(f"{value:.2g}" for value in values) or "-"

    def difference(result: Paired) -> str:
        if not result.n:
            return "-"
        interval = f" ± {100 * result.half_width:.2f}" if result.n > 1 else ""
        return f"{100 * result.mean:+.2f}{interval}"

    classes = "-" if c.classes is None else " to ".join(f"{100 * end:+.2f}" for end in c.classes)
    effect = c.concatenated.effect
    return {
        "data set": c.dataset,
        "pair": f"{c.ahead} - {c.behind}",
        f"{title_of(c.metric)} concatenated": difference(c.concatenated),
        "over classes": classes,
        "n": str(c.concatenated.n),
        "p: t / Wilcoxon": p_values(c.concatenated),
        "effect d_z": "-" if effect is None else f"{effect:.2f}",
        "separated": difference(c.separated),
        "separated p: t / Wilcoxon": p_values(c.separated),
    }


def _print_ranks(ranks: Ranks) -> None:
    from harness.judgement.compare import spell_p

    listed = ", ".join(f"{method} {rank:.2f}" for method, rank in ranks.by_method.items())
    say(f"Mean rank over {ranks.datasets} data sets: {listed}.")
    if ranks.p_value is None:
        say("A Friedman test takes three methods and five data sets.")
    else:
        say(f"Friedman test of all being equal: p {spell_p(ranks.p_value)}.")
