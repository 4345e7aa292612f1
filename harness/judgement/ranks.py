"""Average ranks over data sets: of tables that differ in their data set alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from harness.judgement.stats import average_ranks, critical_difference, friedman


class RankedTable(Protocol):
    """What ranks are made from."""

    @property
    def protocol(self) -> str: ...

    @property
    def trunk(self) -> str: ...

    @property
    def trained(self) -> list[str]: ...

    def score(self, method: str) -> float: ...


MIN_DATASETS = 3  # that a critical difference takes

AnyTable = TypeVar("AnyTable", bound=RankedTable)


@dataclass(frozen=True)
class Ranks:
    """Methods over several data sets, best first.

    Attributes:
        critical: average ranks that are closer than this are not separated (Nemenyi); None from
            fewer than three data sets.
        p_value: of all being equal (Friedman); None if it takes more methods or data sets.
    """

    methods: list[str]
    ranks: list[float]
    datasets: int
    critical: float | None
    p_value: float | None

    @property
    def by_method(self) -> dict[str, float]:
        return dict(zip(self.methods, self.ranks, strict=True))

    @property
    def leaders(self) -> list[str]:
        """Methods that are not separated from the best; none without a critical difference."""
        if self.critical is None:
            return []
        return [m for m, rank in self.by_method.items() if rank - self.ranks[0] < self.critical]


def grouped(tables: Iterable[AnyTable]) -> list[list[AnyTable]]:
    """Tables that differ in their data set alone: questions are asked of them together."""
    groups: dict[tuple[str, str], list[AnyTable]] = defaultdict(list)
    for table in tables:
        groups[table.protocol, table.trunk].append(table)
    return list(groups.values())


def rankable(tables: Sequence[AnyTable]) -> list[AnyTable]:
    """Those that share two methods: where all do not, without the ones that have fewest."""
    kept = list(tables)
    while len(kept) > 2 and len(_shared(kept)) < 2:
        kept.remove(min(kept, key=lambda table: len(table.trained)))
    return kept


def rank(tables: Sequence[RankedTable]) -> Ranks | None:
    """Of the methods that all rankable tables have; None if no two tables share two methods."""
    tables = rankable(tables)
    shared = _shared(tables)
    if len(tables) < 2 or len(shared) < 2:
        return None
    return rank_scores(shared, [[table.score(method) for method in shared] for table in tables])


def _shared(tables: Sequence[RankedTable]) -> list[str]:
    return [m for m in tables[0].trained if all(m in table.trained for table in tables)]


def rank_scores(methods: Sequence[str], scores: Sequence[Sequence[float]]) -> Ranks:
    """Of scores with one row per data set, one column per method."""
    ordered = sorted(zip(average_ranks(scores), methods, strict=True))
    return Ranks(
        methods=[method for _, method in ordered],
        ranks=[mean for mean, _ in ordered],
        datasets=len(scores),
        critical=(
            critical_difference(len(methods), len(scores)) if len(scores) >= MIN_DATASETS else None
        ),
        p_value=friedman(scores),
    )
