"""Part 1: the tables, row by row, with intervals to see and warnings where they belong."""

from __future__ import annotations

import math
from collections.abc import Sequence
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
    """One score: as text, for sorting, and where its dot and whiskers lie from 0 to 100."""

    text: str
    value: float | None
    at: float | None = None
    low: float = 0.0
    high: float = 0.0


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
    naive: list[tuple[str, list[float | None]]]


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
    spans = {metric: _span(list(of_rows.values())) for metric, of_rows in scores.items()}
    texts = table.texts(View.PAGE)
    facts = texts.drop(columns=["rank", "method", "notes"], errors="ignore").to_dict("records")
    lines, naive = [], []
    for i, (_, row) in enumerate(frame.iterrows()):
        cells = [_cell(metric, scores[metric][row["method"]], spans[metric]) for metric in metrics]
        if row["kind"] == "naive":
            naive.append((str(row["method"]), [cell.at for cell in cells]))
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
    return Board(
        embedding, table.board.shape.sizes[embedding], [title_of(m) for m in metrics], lines, naive
    )


def _cell(metric: str, score: Score, span: tuple[float, float]) -> Cell:
    if math.isnan(score.mean):
        return Cell("", None)
    text = (length if metric in LENGTHS else percent)(score.mean, score.half_width)
    at, low, high = (_place(value, span) for value in (score.mean, *_ends(score)))
    return Cell(text, float(score.mean), at, low, high)


def _ends(score: Score) -> tuple[float, float]:
    half = score.half_width or 0.0
    return score.mean - half, score.mean + half


def _span(scores: Sequence[Score]) -> tuple[float, float]:
    """From the lowest to the highest end of an interval; nothing is cut off."""
    ends = [end for score in scores if not math.isnan(score.mean) for end in _ends(score)]
    low, high = min(ends, default=0.0), max(ends, default=0.0)
    return (low, high) if high > low else (low - 1e-6, high + 1e-6)


def _place(value: float, span: tuple[float, float]) -> float:
    low, high = span
    return round(3 + 94 * (value - low) / (high - low), 2)


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
