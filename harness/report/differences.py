"""Every pair of trained rows."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

from harness.judgement.judged import Answer, JudgedPair, JudgedTable
from harness.judgement.words import sentence, signed
from harness.report.table import Table


@dataclass(frozen=True)
class Difference:
    """A cell of the matrix.

    Attributes:
        text: in points of MAP@R, the row minus the column.
        answer: of the row about the column.
        words: the whole sentence.
    """

    text: str
    answer: Answer
    words: str


@dataclass(frozen=True)
class Matrix:
    """All pairs of a table.

    Attributes:
        cells: None on and below the diagonal.
        separated, untested: number of pairs.
    """

    methods: list[str]
    cells: list[list[Difference | None]]
    separated: int
    untested: int
    pairs: int


def matrix(table: Table) -> Matrix | None:
    """The methods with a rank, best first; None if there are no two."""
    methods = table.trained
    if len(methods) < 2:
        return None
    found = table.board.judged
    assert found is not None  # trained rows are judged
    pairs = {}
    for row, column in combinations(methods, 2):
        pair = found.pair(row, column)
        assert pair is not None  # every two trained rows are a pair
        pairs[row, column] = pair if pair.method == row else pair.flipped
    cells = [
        [_cell(found, pairs[r, c]) if (r, c) in pairs else None for c in methods] for r in methods
    ]
    separated = sum(pair.separated for pair in pairs.values())
    untested = sum(pair.holm_p is None for pair in pairs.values())
    return Matrix(methods, cells, separated, untested, len(pairs))


def _cell(table: JudgedTable, pair: JudgedPair) -> Difference:
    words = sentence(table, pair)
    return Difference(signed(pair.estimate.difference), pair.answer, words)
