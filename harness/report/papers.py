"""Part 8: ours beside the papers', where the protocols agree; the published rows over time."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from harness.errors import HarnessError
from harness.records.published import PAPERS, SCORES, find_folder, read, year_of
from harness.registry import settings_of
from harness.report.table import Table
from harness.tables.beside_published import beside
from harness.tables.column import View
from harness.verdicts.gains import Gain, gains

METRIC = "map_at_r"


@dataclass(frozen=True)
class PublishedBeside:
    """A table beside the papers.

    Attributes:
        rows: ours and theirs as text, where both were measured in the same way.
        differences: why the rest may not be compared.
        published: paper, year, method and MAP@R of every published row on the data set.
    """

    rows: pd.DataFrame
    differences: list[str]
    published: list[dict[str, Any]]


def beside_papers(table: Table, results: Path) -> PublishedBeside:
    """What the papers say of the data set of a table."""
    try:
        folder = find_folder(results)
    except HarnessError as error:
        return PublishedBeside(pd.DataFrame(), [str(error)], [])
    found = beside(table.folder, folder, settings_of)
    texts = found.table.texts(View.PAGE)
    return PublishedBeside(texts, found.differences, _over_time(folder, table.dataset))


def gains_of(table: Table, results: Path) -> list[Gain]:
    """What papers gained by planned comparisons, and what these gain here."""
    judged = table.board.judged
    try:
        return [] if judged is None else gains(judged, find_folder(results))
    except HarnessError:
        return []  # `beside_papers` says that there are no published numbers


def _over_time(folder: Path, dataset: str) -> list[dict[str, Any]]:
    rows = read(folder / SCORES)
    rows = rows[(rows["dataset"] == dataset) & (rows["metric"] == METRIC)]
    rows = rows[rows["embedding"] == "concatenated"]
    return [
        {
            "paper": PAPERS.get(paper, paper),
            "year": year_of(paper),
            "method": method,
            "value": float(value),
            "ci95": float(ci95 or 0),
        }
        for paper, method, value, ci95 in zip(
            *(rows[name] for name in ("paper", "method", "value", "ci95")), strict=True
        )
    ]
