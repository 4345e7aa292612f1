"""Every column of a leaderboard. To add one, add a `Column` to NEWER: that is the only edit."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.judgement.fairness import spread, still_rises
from harness.judgement.judged import EMBEDDING, METRIC
from harness.losses.shown_facts import FACTS, Fact
from harness.metrics.names import (
    EMBEDDINGS,
    LENGTHS,
    METRICS,
    MORE,
    precision_rank,
    recall_rank,
    title_of,
)
from harness.records.rows import setting
from harness.tables.column import Cells, Column, View
from harness.tables.indistinguishable import EXPLANATION as INDISTINGUISHABLE
from harness.tables.leaderboard_line import Line, half_width_of
from harness.tables.shared_columns import COST, MADE_BY, MEASURED_UNDER
from harness.tables.spelling import in_percent, percent, points, share, with_interval

# Scores that people see first; LaTeX shows all that every test measures.
SHOWN_METRICS = ("map_at_r", "p_at_1")


@dataclass(frozen=True)
class Shape:
    """What the columns of one leaderboard depend on.

    Attributes:
        metrics: those of every test, then those on demand.
        sizes: embedding -> what tells it from the other one: its size, unless they share it.
        of_a_paper: whether the protocol selects as some paper does, and not by validation alone.
    """

    metrics: Sequence[str] = METRICS
    sizes: Mapping[str, str] = field(default_factory=lambda: {e: e for e in EMBEDDINGS})
    of_a_paper: bool = False


def shape_of(lines: Sequence[Line]) -> Shape:
    rows = [line.row for line in lines]
    return Shape(
        metrics=in_order(m for row in rows for r in row for m in r.scores["concatenated"]),
        sizes=_sizes(lines),
        of_a_paper=any("select" in row[0].identity["protocol"] for row in rows),
    )


def _sizes(lines: Sequence[Line]) -> dict[str, str]:
    # A row without training may have fewer dimensions than the trained ones.
    sizes = {e: [s for line in lines if (s := line.last.dims.get(e))] for e in EMBEDDINGS}
    largest = {embedding: max(found) for embedding, found in sizes.items() if found}
    distinct = len(set(largest.values())) == len(largest)
    return {e: str(largest[e]) if distinct and e in largest else e for e in EMBEDDINGS}


def in_order(metrics: Iterable[str]) -> list[str]:
    """Those of every test, then those on demand: recalls first, then precisions, by rank."""
    return [*METRICS, *sorted(set(metrics) - set(METRICS), key=_place)]


def _place(metric: str) -> tuple[int, int, str]:
    recall, precision = recall_rank(metric), precision_rank(metric)
    return (0 if recall else 1 if precision else 2, recall or precision or 0, metric)


def columns_of(shape: Shape | None = None) -> list[Column[Line]]:
    """Every column of a leaderboard, in the order of its CSV file."""
    shape = shape or Shape()
    paper = _paper_columns(shape) if shape.of_a_paper else []
    return [*FIRST, *_score_columns(shape), *paper, *BEHIND, *NEWER]


def _view_of(metric: str, embedding: str, of_a_paper: bool) -> View:
    if metric not in METRICS:  # a paper has its own metrics
        return View.LATEX if of_a_paper else View.CSV
    first = metric in SHOWN_METRICS and embedding == EMBEDDINGS[0]
    return View.LATEX | (View.TEXT if first else View.CSV)


def _spelling(column: str, metric: str) -> Callable[[Cells], str]:
    """With its interval, except for P@1; what rows are ordered by has that of all searches."""
    if column == f"{METRIC}_{EMBEDDING}":
        return with_interval("score")
    return in_percent(column) if metric == "p_at_1" else with_interval(column, metric)


def _score_columns(shape: Shape) -> list[Column[Line]]:
    found = []
    for embedding in EMBEDDINGS:
        for metric in shape.metrics:
            column = f"{metric}_{embedding}"
            name = f"{title_of(metric)} on the test classes, {embedding}"
            more = f" ({MORE[metric]})" if metric in MORE else ""
            unit = "" if metric in LENGTHS else ", 0 to 1"
            found += [
                Column(
                    column,
                    f"{name}: mean over reproductions{unit}{more}",
                    _score(column),
                    _view_of(metric, embedding, shape.of_a_paper),
                    f"{title_of(metric)} {shape.sizes[embedding]}",
                    _spelling(column, metric),
                ),
                Column(
                    f"{column}_ci95",
                    f"{name}: half the width of its 95 % t-interval",
                    _score(f"{column}_ci95"),
                ),
            ]
    return found


def _paper_columns(shape: Shape) -> list[Column[Line]]:
    found = []
    for metric in shape.metrics:
        title, shown = title_of(metric), metric == "p_at_1"  # papers print deviations of Recall@1
        found += [
            Column(
                f"{metric}_sd",
                f"{title}: standard deviation over reproductions",
                _score(f"{metric}_sd"),
                View.LATEX if shown else View.CSV,
                f"{title} sd",
                in_percent(f"{metric}_sd"),
            ),
            Column(
                f"{metric}_last",
                f"{title} of the last epoch, where that shown was selected on the test classes",
                _score(f"{metric}_last"),
                View.LATEX | (View.TEXT if shown else View.CSV),
                f"{title} last",
                in_percent(f"{metric}_last"),
            ),
        ]
    return found


def _score(name: str) -> Any:
    return lambda line: line.scores.get(name)


def _fact_column(fact: Fact) -> Column[Line]:
    return Column(
        fact.name, fact.explanation, lambda line: line.sample.fact(fact.name), dtype="float"
    )


FIRST: tuple[Column[Line], ...] = (
    Column(
        "rank",
        "by concatenated MAP@R, among the rows of kind `reproduction`",
        lambda line: line.judged and line.judged.rank,
        View.LATEX | View.PAGE,
        dtype="Int64",
    ),
    Column("method", "name of --loss, or of a naive baseline", lambda line: line.name, View.ALL),
    Column(
        "kind",
        "`reproduction`: four fold models; `single`: one model of their size together, trained on "
        "all trainval classes; `naive`: PCA of a network's features or of pixels",
        lambda line: line.last.kind,
    ),
    Column(
        "indistinguishable",
        INDISTINGUISHABLE,
        lambda line: line.indistinguishable,
    ),
)

BEHIND: tuple[Column[Line], ...] = (
    Column(
        "dim_concatenated",
        "size of the concatenated embedding, or of the single model's",
        lambda line: line.last.dims.get("concatenated"),
    ),
    Column(
        "dim_separated",
        "size of one model's embedding",
        lambda line: line.last.dims.get("separated"),
        dtype="Int64",
    ),
    Column(
        "reproductions",
        "n of the means and intervals; the run that the search chose is not in it",
        lambda line: len(line.sample.records),
        View.LATEX | View.PAGE,
        "n",
    ),
    Column(
        "incomplete",
        "fewer trials or reproductions than the protocol asks for",
        lambda line: line.incomplete,
    ),
    Column(
        "validation_score",
        "mean over folds of the best validation score, in the search",
        lambda line: line.search.get("validation"),
        View.PAGE,
        "validation",
        in_percent("validation_score"),
    ),
    Column(
        "validation_metric",
        "what that is a score of",
        lambda line: line.last.identity["protocol"].get("metric", METRICS[0]),
    ),
    Column(
        "validation_sd",
        "standard deviation of that score over the folds",
        lambda line: spread(line.search.get("validation_folds", [])),
        View.PAGE,
        "fold sd",
        in_percent("validation_sd"),
    ),
    Column(
        "dimensions",
        "parameters that were searched",
        lambda line: line.search.get("dimensions"),
        View.PAGE,
        dtype="Int64",
    ),
    Column(
        "trials",
        "trials of the search that count",
        lambda line: line.search.get("trials") if line.searched else None,
        View.LATEX | View.PAGE,
        dtype="Int64",
    ),
    Column(
        "trials_failed",
        "those among them that failed",
        lambda line: line.search.get("failed"),
        dtype="Int64",
    ),
    Column(
        "trials_pruned",
        "those among them that were stopped early",
        lambda line: line.search.get("pruned", 0) if line.searched else None,
        dtype="Int64",
    ),
    Column(
        "not_flat",
        "whether the last fifth of the trials brought a better one, by more than one standard "
        "error of the differences on the same folds",
        lambda line: still_rises(line.search),
        dtype="boolean",
    ),
    Column(
        "search_scores",
        "concatenated MAP@R of each search of the method, the row's own first, as JSON; empty list "
        "if there is no other one, with another seed",
        lambda line: json.dumps(line.search_scores),
        View.PAGE,
        "searches",
        lambda cells: ", ".join(map(percent, json.loads(cells["search_scores"]))),
    ),
    Column(
        "params",
        "best parameters, as JSON",
        lambda line: json.dumps(line.last.params, sort_keys=True),
    ),
    Column(
        "on_bound",
        "parameters whose best value lies on an end of its range, as JSON",
        lambda line: json.dumps(line.search.get("on_bound", {}), sort_keys=True),
    ),
    Column(
        "almost_base",
        "the base that it trains almost as, at its best parameters; empty for others",
        lambda line: line.first.coincides_with,
    ),
    Column(
        "at_step_limit",
        "share of the models that ended at the step limit and not by patience",
        # A single model is always stopped by steps.
        lambda line: line.first.at_step_limit if line.last.kind == "reproduction" else None,
        View.PAGE,
        "at limit",
        lambda cells: share(cells["at_step_limit"]),
        dtype="float",
    ),
    Column(
        "at_first_validation",
        "share of the models that were best when they were first validated",
        lambda line: line.first.best_at_first,
        dtype="float",
    ),
    *map(_fact_column, FACTS),
    *COST,
    Column(
        "test_openings",
        "how often the test classes were opened for this method",
        lambda line: line.openings,
        View.PAGE,
        "openings",
    ),
    Column("queries", "test queries, with those dropped", lambda line: line.last.queries),
    Column(
        "queries_dropped",
        "test queries without another image of their class, left out of all scores",
        lambda line: line.last.queries_dropped,
    ),
    Column(
        "missing_images",
        "images of the data set that were missing or broken and were left out",
        lambda line: line.last.missing_images,
    ),
    *MEASURED_UNDER,
    Column(
        "weights",
        "hash of the trunk's pretrained weights; empty without any",
        lambda line: line.last.identity.get("weights") or "",
    ),
    Column("split", "hash of the class split", lambda line: line.last.identity["split"]),
    Column(
        "data_fingerprint",
        "hash of the trainval images",
        lambda line: line.last.identity["data_fingerprint"],
    ),
    Column("test_fingerprint", "hash of the test images", lambda line: line.last.test_fingerprint),
    *MADE_BY,
)

# Columns that were added later, so that the others keep their places. Add yours at the end.
NEWER: tuple[Column[Line], ...] = (
    Column(
        "group",
        "letters: two trained rows share one exactly if they are not shown to differ",
        lambda line: line.judged.letters if line.judged else "",
        View.ALL,
        place=-1,
    ),
    Column(
        "score",
        "concatenated MAP@R over all searches, 0 to 1: what rows are ordered and judged by",
        lambda line: line.score.mean,
    ),
    Column(
        "score_ci95",
        "half the width of its 95 % interval over searches and seeds",
        lambda line: line.score.half_width,
        dtype="float",
    ),
    Column(
        "to_base",
        "concatenated MAP@R minus that of the row of the method's base; empty without such a row",
        lambda line: line.to_base and line.to_base.difference,
        View.TEXT | View.LATEX | View.PAGE,
        "vs base",
        lambda cells: points(cells["to_base"], cells["to_base_ci95"]),
        dtype="float",
    ),
    Column(
        "to_base_ci95",
        "half the width of the 95 % interval of that difference",
        lambda line: line.to_base and half_width_of(line.to_base),
        dtype="float",
    ),
    Column(
        "notes",
        "what to know before believing the row, in words",
        lambda line: "; ".join(line.notes),
        View.ALL,
    ),
    Column(
        "selection",
        "scheme by which the search scored its trials: a protocol field",
        lambda line: setting(line.last.identity["protocol"], "selection"),
    ),
)
