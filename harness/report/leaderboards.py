"""Part 1: the tables, row by row, with intervals to see and warnings where they belong."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from harness.metrics.names import EMBEDDINGS, LENGTHS, title_of
from harness.report.table import Table
from harness.tables.columns import BEST, SAME, leads_are_claimed, metrics_in
from harness.tables.marks import MARKS
from harness.tables.rendering import (
    embedding_size,
    length,
    notes_on,
    percent,
    search_scores,
    searched_again,
)


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
        marks: symbol and what it means.
        group: whether it is the best or not to be told from it.
        facts: title -> text, of the search and of training.
    """

    rank: str
    method: str
    kind: str
    marks: list[tuple[str, str]]
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
    spans = {metric: _span(frame, f"{metric}_{embedding}") for metric in metrics}
    symbols = [mark.applies(frame).fillna(False).astype(bool).tolist() for mark in MARKS]
    groups = {BEST: "best" if leads_are_claimed(frame) else "", SAME: "same"}
    searches = searched_again(frame)
    lines, naive = [], []
    for i, (_, row) in enumerate(frame.iterrows()):
        cells = [_cell(row, metric, embedding, spans[metric]) for metric in metrics]
        if row["kind"] == "naive":
            naive.append((str(row["method"]), [cell.at for cell in cells]))
        marks = [
            (mark.symbol, mark.explain(frame.iloc[[i]]))
            for mark, applies in zip(MARKS, symbols, strict=True)
            if applies[i]
        ]
        lines.append(
            Line(
                rank="" if pd.isna(row["rank"]) else str(row["rank"]),
                method=str(row["method"]),
                kind=str(row["kind"]),
                marks=marks,
                group=groups.get(row["indistinguishable"], ""),
                cells=cells,
                facts=_facts(row, searches),
            )
        )
    return Board(
        embedding, embedding_size(frame, embedding), [title_of(m) for m in metrics], lines, naive
    )


def _cell(row: pd.Series, metric: str, embedding: str, span: tuple[float, float]) -> Cell:
    mean, half = row[f"{metric}_{embedding}"], row[f"{metric}_{embedding}_ci95"]
    if pd.isna(mean):
        return Cell("", None)
    text = (length if metric in LENGTHS else percent)(mean, half)
    half = 0.0 if pd.isna(half) else half
    at, low, high = (_place(value, span) for value in (mean, mean - half, mean + half))
    return Cell(text, float(mean), at, low, high)


def _span(frame: pd.DataFrame, column: str) -> tuple[float, float]:
    """From the lowest to the highest end of an interval; nothing is cut off."""
    half = frame[f"{column}_ci95"].fillna(0.0)
    low, high = float((frame[column] - half).min()), float((frame[column] + half).max())
    return (low, high) if high > low else (low - 1e-6, high + 1e-6)


def _place(value: float, span: tuple[float, float]) -> float:
    low, high = span
    return round(3 + 94 * (value - low) / (high - low), 2)


def _facts(row: pd.Series, searches: bool) -> dict[str, str]:
    share = row["at_step_limit"]
    return {
        "validation": percent(row["validation_score"]),
        "fold sd": percent(row["validation_sd"]),
        "dimensions": _count(row["dimensions"]),
        "trials": _count(row["trials"]),
        **({"searches": search_scores(row["search_scores"])} if searches else {}),
        "at limit": "" if pd.isna(share) else f"{100 * share:.0f} %",
        "openings": _count(row["test_openings"]),
        "n": _count(row["reproductions"]),
    }


def _count(value: object) -> str:
    return "" if pd.isna(value) else str(value)  # type: ignore[call-overload]


def warnings(table: Table) -> list[str]:
    """What a reader must know before believing the table."""
    frame = table.frame
    found = notes_on(frame)
    openings = len(table.ledger)
    tests = sum(len(row) for searches in table.searches.values() for row in searches)
    found.append(
        f"Test classes were opened {openings:,} times for {tests:,} tests"
        + (": more looks than tests." if openings > tests else ".")
    )
    if dropped := int(frame["queries_dropped"].max()):
        found.append(f"Queries without another image of their class, left out: {dropped:,}.")
    return found
