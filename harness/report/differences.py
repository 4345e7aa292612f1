"""Part 2: every pair of methods."""

from __future__ import annotations

from dataclasses import dataclass

from harness.judgement.judged import Answer, JudgedPair, JudgedTable
from harness.judgement.words import sentence, signed
from harness.report.table import Table


@dataclass(frozen=True)
class Difference:
    """A cell of the matrix.

    Attributes:
        text: in points of MAP@R, the row minus the column.
        verdict: "real", "equivalent", "open" (not decided) or "unknown" (not tested).
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
    """

    methods: list[str]
    cells: list[list[Difference | None]]
    real: int
    untested: int
    pairs: int


def matrix(table: Table) -> Matrix | None:
    """The methods with a rank, best first; None if there are no two."""
    methods = table.trained
    if len(methods) < 2:
        return None
    found = table.board.judged
    assert found is not None  # trained rows are judged
    cells = [
        [_cell(found, row, column) if i < j else None for j, column in enumerate(methods)]
        for i, row in enumerate(methods)
    ]
    verdicts = [cell.verdict for line in cells for cell in line if cell is not None]
    return Matrix(methods, cells, verdicts.count("real"), verdicts.count("unknown"), len(verdicts))


def _cell(table: JudgedTable, row: str, column: str) -> Difference:
    pair = table.pair(row, column)
    assert pair is not None  # every two trained rows are a pair
    value = pair.estimate.difference * (1 if pair.method == row else -1)
    return Difference(signed(value), _verdict(pair), sentence(table, pair))


def _verdict(pair: JudgedPair) -> str:
    if pair.separated:
        return "real"
    if pair.answer is Answer.EQUIVALENT:
        return "equivalent"
    return "unknown" if pair.holm_p is None else "open"
