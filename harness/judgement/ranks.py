"""Ranks: averages over data sets, and the correlation of two orders."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from harness.judgement.judged import JudgedTable
from harness.judgement.statistic import LEVEL

MIN_DATASETS = 3  # that a critical difference takes
MIN_DATASETS_FRIEDMAN = 5


@dataclass(frozen=True)
class Ranks:
    """Methods over several data sets, best first.

    Attributes:
        datasets: names of those that are ranked.
        by_method: average rank of each method.
        critical: average ranks that are closer than this are not separated (Nemenyi); None from
            fewer than three data sets.
        p_value: of all being equal (Friedman); None if it takes more methods or data sets.
    """

    datasets: list[str]
    by_method: dict[str, float]
    critical: float | None
    p_value: float | None

    @property
    def leaders(self) -> list[str]:
        """Methods that are not separated from the best; none without a critical difference."""
        if self.critical is None:
            return []
        best = min(self.by_method.values())
        return [method for method, rank in self.by_method.items() if rank - best < self.critical]


@dataclass(frozen=True)
class RankedTables:
    """The average ranks of tables that differ in their data set alone.

    Attributes:
        ranks: of the methods that all ranked tables have.
        partial: whether some tables have more trained rows than these.
        left_out: data sets whose tables share too few methods with the others.
    """

    protocol: str
    trunk: str
    ranks: Ranks
    partial: bool
    left_out: list[str]


def rank_tables(tables: Iterable[JudgedTable]) -> list[RankedTables]:
    """For every protocol and trunk with two tables that share two methods."""
    groups: dict[tuple[str, str], list[JudgedTable]] = defaultdict(list)
    for table in tables:
        groups[table.protocol, table.trunk].append(table)
    found = []
    for (protocol, trunk), group in groups.items():
        ranked = list(group)
        while len(ranked) > 2 and len(_shared(ranked)) < 2:
            ranked.remove(min(ranked, key=lambda table: len(table.trained)))
        methods = _shared(ranked)
        if len(ranked) < 2 or len(methods) < 2:
            continue
        partial = any(len(table.trained) > len(methods) for table in ranked)
        left_out = [table.dataset for table in group if table not in ranked]
        ranks = rank_rows(methods, ranked)
        found.append(RankedTables(protocol, trunk, ranks, partial, left_out))
    return found


def _shared(tables: Sequence[JudgedTable]) -> list[str]:
    return [m for m in tables[0].trained if all(m in table.trained for table in tables)]


def rank_rows(names: Sequence[str], tables: Sequence[JudgedTable]) -> Ranks:
    """The average ranks of rows that all of some tables have."""
    scores = [[table.score(name) for name in names] for table in tables]
    ordered = sorted(zip(average_ranks(scores), names, strict=True))
    enough = len(tables) >= MIN_DATASETS
    return Ranks(
        datasets=[table.dataset for table in tables],
        by_method={name: mean for mean, name in ordered},
        critical=critical_difference(len(names), len(tables)) if enough else None,
        p_value=friedman(scores),
    )


def average_ranks(scores: Sequence[Sequence[float]]) -> list[float]:
    """Mean over data sets of each method's rank, 1 for the highest score, ties shared.

    Args:
        scores: one row per data set, one column per method.
    """
    return stats.rankdata(-np.asarray(scores), axis=1).mean(axis=0).tolist()


def critical_difference(methods: int, datasets: int) -> float:
    """Nemenyi's: average ranks that are closer than this are not separated, at LEVEL."""
    quantile = float(stats.studentized_range.ppf(1 - LEVEL, methods, np.inf)) / np.sqrt(2)
    return float(quantile * np.sqrt(methods * (methods + 1) / (6 * datasets)))


def friedman(scores: Sequence[Sequence[float]]) -> float | None:
    """P-value of all methods being equal; None below three methods or five data sets, or of ties.

    Where all methods tie on every data set, there is nothing to be tested.
    """
    table = np.asarray(scores)
    enough = table.shape[0] >= MIN_DATASETS_FRIEDMAN and table.shape[1] >= 3
    if not enough or not np.ptp(table, axis=1).any():
        return None
    return float(stats.friedmanchisquare(*table.T).pvalue)


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Spearman's; None if either has no order."""
    if np.ptp(one) < EQUAL or np.ptp(other) < EQUAL:
        return None
    return float(stats.spearmanr(one, other).statistic)


EQUAL = 1e-12  # values that differ by less have no order
