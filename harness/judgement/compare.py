"""Is one method better than another? Paired over shared seeds, and over draws of test classes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import combinations, product
from pathlib import Path

import numpy as np

from harness.errors import HarnessError, unknown
from harness.judgement.ranks import Ranks, rank_scores
from harness.judgement.search_luck import almost_one
from harness.judgement.stats import (
    LEVEL,
    MIN_CLASSES,
    MIN_PAIRS,
    Paired,
    class_intervals,
    holm,
    paired,
)
from harness.metrics.names import EMBEDDINGS, METRICS, title_of
from harness.plain_text import counted
from harness.records.layout import find_tables, fits, label_of_dataset, table_name
from harness.records.records import TEST_SELECTED, TestRecord
from harness.records.rows import Row, label_of, mean_score, read_rows, run_of


class Lead(Enum):
    """How sure it is that who is ahead would stay so."""

    UNPAIRED = "no reproduction is shared"
    TOO_FEW = "over too few reproductions to say"
    NOT_SHOWN = "other seeds might reverse it"
    OF_SEARCH = "one is almost the other: it is luck of two searches"
    NOT_OVER_CLASSES = "other seeds would hardly reverse it, other test classes might"
    SHOWN = "neither other seeds nor other test classes would reverse it"


@dataclass(frozen=True)
class Comparison:
    """Two methods on one data set; all differences are `ahead` minus `behind`.

    Attributes:
        concatenated: over the reproductions that both have.
        separated: over the same, each by the mean of its fold models, whose folds are always the
            same and thus no further evidence.
        classes: 95 % interval of the concatenated difference over draws of test classes; None
            where records keep no such scores of the classes, or of too few.
        num_classes: whose scores both have.
        tests: how many comparisons the p-values are corrected for: those that have one.
        almost_one: one is the base of the other, which was best where it is almost that.
    """

    dataset: str
    metric: str
    ahead: str
    behind: str
    concatenated: Paired
    separated: Paired
    classes: tuple[float, float] | None
    tests: int = 1
    almost_one: bool = False
    num_classes: int = 0

    @property
    def lead(self) -> Lead:
        if self.concatenated.n == 0:
            return Lead.UNPAIRED
        if self.concatenated.t_test is None:
            return Lead.TOO_FEW
        if self.concatenated.t_test >= LEVEL:
            return Lead.NOT_SHOWN
        if self.almost_one:
            return Lead.OF_SEARCH
        if self.classes is not None and self.classes[0] > 0:
            return Lead.SHOWN
        return Lead.NOT_OVER_CLASSES


def find_table(results: Path, protocol: str, dataset: str, trunk: str | None) -> Path:
    """The folder of the one table that fits, or an error that says which there are."""
    label = label_of_dataset(dataset)
    known = find_tables(results)
    found = [table for table in known if fits(table, protocol, dataset, trunk)]
    if len(found) == 1:
        return found[0]
    listed = "".join(f"\n  {table.parent.name}: {table.name}" for table in found or known)
    if found:
        raise HarnessError(
            f"several trunks on {dataset} under {protocol}; name one: --trunk{listed}"
        )
    missing = table_name(label, trunk) if trunk else f"{label}, whatever the trunk,"
    raise HarnessError(
        f"no results for {missing} under protocol {protocol} in {results}"
        + (f"; there are{listed}" if known else ": `harness eval` writes them")
    )


def check_asked(methods: Sequence[str], metric: str) -> None:
    """Refuse to compare a method with itself, or by what is no metric."""
    if len(set(methods)) < 2:
        raise HarnessError(
            f"compare takes two or more methods, got {' '.join(methods) or 'none'}; "
            "as in harness compare ccp proxyanchor"
        )
    if metric not in METRICS:
        raise unknown("metric", metric, METRICS)


def compare(
    tables: Sequence[Path],
    methods: Sequence[str],
    metric: str,
    problems: list[str],
    full_name: Callable[[str], str] = str,
) -> tuple[list[Comparison], Ranks]:
    """Every pair of methods on every table; p-values corrected for all of them together.

    Args:
        problems: gets what is wrong with records, which are then left out.
        full_name: of what may be an alias; asked for names without records only.
    """
    check_asked(methods, metric)
    rows = [_rows(table, methods, problems, full_name) for table in tables]
    comparisons = compare_rows([list(by_name.values()) for by_name in rows], metric)
    means = [[mean_score(row, metric) for row in by_name.values()] for by_name in rows]
    return comparisons, rank_scores(list(rows[0]), means)


def compare_rows(tables: Sequence[Sequence[Row]], metric: str) -> list[Comparison]:
    """Every pair of rows of every table; p-values corrected for all of them together."""
    return compare_pairs([pair for rows in tables for pair in combinations(rows, 2)], metric)


def compare_pairs(rows: Sequence[tuple[Row, Row]], metric: str) -> list[Comparison]:
    """Two rows of one table each; p-values corrected for all of them together."""
    pairs = [_in_order(*pair, metric) for pair in rows]
    found = [_compare_two(pair, metric) for pair in pairs]
    return _corrected(_with_intervals(found, [_class_differences(p, metric) for p in pairs]))


def _rows(
    table: Path, methods: Sequence[str], problems: list[str], full_name: Callable[[str], str]
) -> dict[str, Row]:
    rows = {label_of(row): row for row in read_rows(table, problems)}
    names = [name if name in rows else full_name(name) for name in methods]
    if len(set(names)) < 2:
        raise HarnessError(f"{' and '.join(methods)} are names of one method, {names[0]}")
    for name in names:
        if name not in rows:
            raise unknown("method", name, rows, f"these have records in {table}")
        if rows[name][0].kind == TEST_SELECTED:
            raise HarnessError(
                f"{name}: its epoch was chosen by the score on the test classes, so a lead on them "
                "proves nothing; compare results of a protocol that selects by validation"
            )
    return {name: rows[name] for name in names}


def _score(record: TestRecord, metric: str) -> float:
    return record.scores["concatenated"][metric]


@dataclass(frozen=True)
class _Pair:
    """Two rows, the one that is ahead first, and the records of the runs that they share."""

    ahead: Row
    behind: Row
    runs: list[tuple[TestRecord, TestRecord]]


def _in_order(one: Row, other: Row, metric: str) -> _Pair:
    runs = _shared_runs(one, other)
    if sum(_score(a, metric) - _score(b, metric) for a, b in runs) < 0:
        return _Pair(other, one, [(b, a) for a, b in runs])
    return _Pair(one, other, runs)


def _shared_runs(one: Row, other: Row) -> list[tuple[TestRecord, TestRecord]]:
    if _draws_nothing(one) or _draws_nothing(other):
        return list(product(one, other))
    by_run = [{run_of(record): record for record in row} for row in (one, other)]
    return [(by_run[0][run], by_run[1][run]) for run in sorted(by_run[0].keys() & by_run[1].keys())]


def _draws_nothing(row: Row) -> bool:
    """Of a naive row that any seed would give, as PCA of pretrained features: no run is its own."""
    return row[0].kind == "naive" and [record.repetition for record in row] == [0]


def _compare_two(pair: _Pair, metric: str) -> Comparison:
    return Comparison(
        dataset=pair.ahead[0].identity["dataset"],
        metric=metric,
        ahead=label_of(pair.ahead),
        behind=label_of(pair.behind),
        concatenated=paired([_score(a, metric) - _score(b, metric) for a, b in pair.runs]),
        separated=_over_folds(pair.runs, metric),
        classes=None,
        almost_one=almost_one(pair.ahead, pair.behind),
    )


def _over_folds(pairs: Sequence[tuple[TestRecord, TestRecord]], metric: str) -> Paired:
    def mean(record: TestRecord) -> float:
        return float(np.mean([model[metric] for model in record.separated]))

    return paired([mean(a) - mean(b) for a, b in pairs if len(a.separated) == len(b.separated) > 0])


def _class_differences(pair: _Pair, metric: str) -> tuple[tuple[int, ...], list[float]] | None:
    """Queries of each class, and its difference averaged over the runs: what is drawn."""
    if not pair.runs:
        return None
    queries = pair.runs[0][0].class_queries
    values = []
    for records in pair.runs:
        found = [record.per_class.get("concatenated", {}).get(metric) for record in records]
        if any(v is None for v in found) or any(r.class_queries != queries for r in records):
            return None
        values.append(np.subtract(*np.array(found, float)))
    counts = np.array(queries) > 0
    differences = np.mean(values, axis=0)[counts]
    return tuple(np.array(queries)[counts].tolist()), differences.tolist()


def _with_intervals(
    found: Sequence[Comparison], drawn: Sequence[tuple[tuple[int, ...], list[float]] | None]
) -> list[Comparison]:
    """Comparisons over the same classes share the draws."""
    together: dict[tuple[int, ...], dict[int, list[float]]] = defaultdict(dict)
    for i, of_classes in enumerate(drawn):
        if of_classes is not None:
            queries, differences = of_classes
            together[queries][i] = differences
    compared = [
        replace(comparison, num_classes=0 if of_classes is None else len(of_classes[0]))
        for comparison, of_classes in zip(found, drawn, strict=True)
    ]
    for queries, members in together.items():
        if len(queries) < MIN_CLASSES:
            continue
        intervals = class_intervals(list(members.values()), queries)
        for i, interval in zip(members, intervals, strict=True):
            compared[i] = replace(compared[i], classes=interval)
    return compared


def _corrected(found: Sequence[Comparison]) -> list[Comparison]:
    """Holm's correction of each sort of p-value, over all comparisons that have one."""
    corrected = list(found)
    for embedding in EMBEDDINGS:
        for test in ("t_test", "wilcoxon"):
            tested = [
                i for i, c in enumerate(found) if getattr(getattr(c, embedding), test) is not None
            ]
            raised = holm([getattr(getattr(found[i], embedding), test) for i in tested])
            for i, p_value in zip(tested, raised, strict=True):
                result = replace(getattr(corrected[i], embedding), **{test: p_value})
                corrected[i] = replace(corrected[i], **{embedding: result})
    tests = sum(c.concatenated.t_test is not None for c in found)
    return [replace(c, tests=tests) for c in corrected]


def in_words(comparison: Comparison) -> str:
    """One comparison as a sentence that claims no more than was shown."""
    c, n, p_value = comparison, comparison.concatenated.n, comparison.concatenated.t_test
    if c.lead is Lead.UNPAIRED:
        return f"{c.ahead} and {c.behind} share no reproduction on {c.dataset}: nothing is paired."
    runs = counted(n, "reproduction")
    lead = f"by {100 * c.concatenated.mean:.2f} points of {title_of(c.metric)} on {c.dataset}"
    if p_value is None:
        return (
            f"{c.ahead} is ahead of {c.behind} {lead}, but over {runs}: too few to say "
            f"whether that is real (it takes {MIN_PAIRS})."
        )
    over_runs = f"paired over {runs} p {spell_p(p_value)}" + (" after Holm" * (c.tests > 1))
    if c.classes is None and c.num_classes:
        over_classes = (
            f"no interval over test classes: it takes {MIN_CLASSES} of them, not {c.num_classes}"
        )
    elif c.classes is None:
        over_classes = (
            f"no interval over test classes: the records keep no {title_of(c.metric)} of classes"
        )
    else:
        low, high = (100 * end for end in c.classes)
        over_classes = f"95 % interval over test classes {low:.2f} to {high:.2f}"
    facts = f"({over_classes}; {over_runs}).{_model_by_model(c)}"
    if c.lead is Lead.NOT_SHOWN:
        return (
            f"No difference between {c.ahead} and {c.behind} is shown: {c.ahead} is ahead {lead} "
            f"{facts}"
        )
    if c.lead is Lead.OF_SEARCH:
        return (
            f"{c.ahead} is ahead of {c.behind} {lead}, but one is almost the other at its best "
            f"values: of two searches of the same loss one was luckier {facts}"
        )
    if c.lead is Lead.NOT_OVER_CLASSES:
        return (
            f"{c.ahead} is ahead of {c.behind} {lead}; other seeds would hardly change that, other "
            f"test classes might {facts}"
        )
    return f"{c.ahead} is better than {c.behind} {lead} {facts}"


def _model_by_model(comparison: Comparison) -> str:
    """A sentence more where the single models say what the concatenated ones do not."""
    c, separated = comparison, comparison.separated
    if separated.t_test is None or separated.t_test >= LEVEL:
        return ""
    if separated.mean > 0 and c.lead is not Lead.NOT_SHOWN:  # the same, once more
        return ""
    leader = c.ahead if separated.mean > 0 else c.behind
    return (
        f" Model by model, not concatenated, {leader} is ahead by {100 * abs(separated.mean):.2f} "
        f"(p {spell_p(separated.t_test)})."
    )


def spell_p(p_value: float) -> str:
    """With its sign: below a thousandth the digits say nothing."""
    return f"= {p_value:.2g}" if p_value >= 0.001 else "< 0.001"
