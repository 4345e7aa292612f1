"""Part 2: is it real? Every pair of methods, and average ranks over data sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.judgement.compare import Comparison, Lead, compare_rows, in_words, spell_p
from harness.judgement.ranks import Ranks, grouped, rank, rankable
from harness.judgement.search_luck import luck_in_words
from harness.report.table import Table

METRIC = "map_at_r"

# Of a lead that was tested.
VERDICTS = {
    Lead.SHOWN: "real",
    Lead.OF_SEARCH: "luck",
    Lead.NOT_OVER_CLASSES: "seeds",
    Lead.NOT_SHOWN: "open",
}


@dataclass(frozen=True)
class Difference:
    """A cell of the matrix.

    Attributes:
        text: in points of MAP@R, the row minus the column.
        verdict: "real", "luck" (of the searches), "seeds" (other test classes might reverse it),
            "open" or "unknown".
        words: the whole of it.
    """

    text: str
    verdict: str
    words: str


@dataclass(frozen=True)
class Matrix:
    """All pairs of a table.

    Attributes:
        cells: None on and below the diagonal.
        luck: what searches of one method, or almost one, differ by, in words; empty without any.
    """

    methods: list[str]
    cells: list[list[Difference | None]]
    real: int
    untested: int
    pairs: int
    luck: str


def matrix(table: Table) -> Matrix | None:
    """The methods with a rank, best first; None if there are no two."""
    methods = table.trained
    if len(methods) < 2:
        return None
    found: dict[frozenset[str], Comparison] = {
        frozenset((c.ahead, c.behind)): c
        for c in compare_rows([[table.rows[method] for method in methods]], METRIC)
    }
    cells = [
        [_cell(found[frozenset((row, column))], row) if i < j else None
         for j, column in enumerate(methods)]
        for i, row in enumerate(methods)
    ]  # fmt: skip
    verdicts = [cell.verdict for line in cells for cell in line if cell is not None]
    luck = luck_in_words([(table.dataset, table.searches)])
    return Matrix(
        methods, cells, verdicts.count("real"), verdicts.count("unknown"), len(verdicts), luck
    )


def _cell(comparison: Comparison, row: str) -> Difference:
    words, verdict = in_words(comparison), VERDICTS.get(comparison.lead, "unknown")
    if comparison.lead is Lead.UNPAIRED:
        return Difference("–", verdict, words)
    sign = 1 if comparison.ahead == row else -1
    return Difference(f"{100 * sign * comparison.concatenated.mean:+.2f}", verdict, words)


@dataclass(frozen=True)
class AverageRanks:
    """Over the tables of one protocol and trunk.

    Attributes:
        friedman: p-value of all being equal, in words; empty if it takes more data sets.
    """

    tables: list[Table]
    ranks: Ranks

    @property
    def friedman(self) -> str:
        return "" if self.ranks.p_value is None else spell_p(self.ranks.p_value)


def average(tables: Sequence[Table]) -> list[AverageRanks]:
    """For every protocol and trunk with two tables that share two methods."""
    return [
        AverageRanks(rankable(group), ranks)
        for group in grouped(tables)
        if (ranks := rank(group)) is not None
    ]
