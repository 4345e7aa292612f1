"""Part 2: is it real? Every pair of methods, and average ranks over data sets."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from harness.report.table import Table
from harness.results.compare import Comparison, Lead, compare_rows, in_words, spell_p
from harness.results.stats import average_ranks, critical_difference, friedman

METRIC = "map_at_r"

# Of a lead that was tested.
VERDICTS = {Lead.SHOWN: "real", Lead.NOT_OVER_CLASSES: "seeds", Lead.NOT_SHOWN: "open"}


@dataclass(frozen=True)
class Difference:
    """A cell of the matrix.

    Attributes:
        text: in points of MAP@R, the row minus the column.
        verdict: "real", "seeds" (other test classes might reverse it), "open" or "unknown".
        words: the whole of it.
    """

    text: str
    verdict: str
    words: str


@dataclass(frozen=True)
class Matrix:
    """All pairs of a table; None on and below the diagonal."""

    methods: list[str]
    cells: list[list[Difference | None]]
    real: int
    pairs: int


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
    return Matrix(methods, cells, verdicts.count("real"), len(verdicts))


def _cell(comparison: Comparison, row: str) -> Difference:
    words, verdict = in_words(comparison), VERDICTS.get(comparison.lead, "unknown")
    if comparison.lead is Lead.UNPAIRED:
        return Difference("–", verdict, words)
    sign = 1 if comparison.ahead == row else -1
    return Difference(f"{100 * sign * comparison.concatenated.mean:+.2f}", verdict, words)


@dataclass(frozen=True)
class RankedMethods:
    """Average ranks over the data sets of one protocol.

    Attributes:
        ranks: method -> average rank, the best first.
        critical: ranks that are closer than this are not told apart (Nemenyi).
        friedman: p-value of all being equal, in words; empty if it takes more data sets.
    """

    protocol: str
    tables: list[str]
    ranks: dict[str, float]
    critical: float
    friedman: str

    @property
    def leaders(self) -> list[str]:
        """Those that cannot be told from the best."""
        best = min(self.ranks.values())
        return [m for m, rank in self.ranks.items() if rank - best < self.critical]


def average(tables: Sequence[Table]) -> list[RankedMethods]:
    """For every protocol with two tables that share two methods."""
    by_protocol: dict[str, list[Table]] = defaultdict(list)
    for table in tables:
        by_protocol[str(table.newest.identity["protocol"]["name"])].append(table)
    found = []
    for protocol, members in by_protocol.items():
        shared = [m for m in members[0].trained if all(m in t.trained for t in members)]
        if len(members) < 2 or len(shared) < 2:
            continue
        scores = [
            t.frame.set_index("method")[f"{METRIC}_concatenated"].loc[shared].tolist()
            for t in members
        ]
        ranks = dict(zip(shared, average_ranks(scores), strict=True))
        p_value = friedman(scores)
        found.append(
            RankedMethods(
                protocol,
                [t.dataset for t in members],
                dict(sorted(ranks.items(), key=lambda item: item[1])),
                critical_difference(len(shared), len(members)),
                "" if p_value is None else spell_p(p_value),
            )
        )
    return found
