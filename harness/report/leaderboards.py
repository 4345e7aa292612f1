"""Every score of a table, row by row, and what to know before believing it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pandas as pd

from harness.judgement.judged import Score
from harness.metrics.names import EMBEDDINGS, LENGTHS, title_of
from harness.report.table import Table
from harness.tables.column import View
from harness.tables.leaderboard import metrics_in
from harness.tables.spelling import length, percent


@dataclass(frozen=True)
class Cell:
    """One score, as text and for sorting."""

    text: str
    value: float | None


@dataclass(frozen=True)
class Line:
    """One row of a leaderboard.

    Attributes:
        notes: what to know before believing it, in words.
        group: "same" if it is not shown to differ from the best row, where others are.
        facts: title -> text, of the other columns that pages show.
    """

    rank: str
    method: str
    kind: str
    notes: str
    group: str
    cells: list[Cell]
    facts: dict[str, str]


@dataclass(frozen=True)
class Board:
    """A leaderboard for one embedding, concatenated or separated."""

    embedding: str
    size: str
    metrics: list[str]
    lines: list[Line]


def boards(table: Table) -> list[Board]:
    """Concatenated first; one that no row has is left out."""
    return [
        _board(table, embedding)
        for embedding in EMBEDDINGS
        if table.frame[f"map_at_r_{embedding}"].notna().any()
    ]


def _board(table: Table, embedding: str) -> Board:
    frame = table.frame
    metrics = metrics_in(frame)
    scores = {metric: table.scores(metric, embedding) for metric in metrics}
    texts = table.texts(View.PAGE)
    facts = texts.drop(columns=["rank", "method", "notes"], errors="ignore").to_dict("records")
    lines = []
    for i, (_, row) in enumerate(frame.iterrows()):
        cells = [_cell(metric, scores[metric][row["method"]]) for metric in metrics]
        lines.append(
            Line(
                rank="" if pd.isna(row["rank"]) else str(row["rank"]),
                method=str(row["method"]),
                kind=str(row["kind"]),
                notes=str(row["notes"]),
                group="same" if row["method"] in table.leaders else "",
                cells=cells,
                facts={str(title): text for title, text in facts[i].items()},
            )
        )
    size = table.board.shape.sizes[embedding]
    return Board(embedding, size, [title_of(m) for m in metrics], lines)


def _cell(metric: str, score: Score) -> Cell:
    if math.isnan(score.mean):
        return Cell("", None)
    text = (length if metric in LENGTHS else percent)(score.mean, score.half_width)
    return Cell(text, float(score.mean))


def warnings(table: Table) -> list[str]:
    """What a reader must know before believing the table."""
    frame = table.frame
    found = list(table.board.table(whole=True).remarks)
    openings = len(table.ledger)
    tests = sum(len(row) for searches in table.searches.values() for row in searches)
    found.append(
        f"Test classes were opened {openings:,} times for {tests:,} tests"
        + (": more looks than tests." if openings > tests else ".")
    )
    if dropped := int(frame["queries_dropped"].max()):
        found.append(f"Queries without another image of their class, left out: {dropped:,}.")
    return found
