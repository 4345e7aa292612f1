"""One table of results with all that its records say: what every part of the page is made from."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from harness.judgement.judged import Score
from harness.records.classes import read_test_classes
from harness.records.layout import LEDGER, find_tables
from harness.records.ledger import Opening, read_ledger
from harness.records.records import FoldFacts, SearchFacts, TestRecord
from harness.records.rows import Row, Searches, newest_of
from harness.tables import leaderboard
from harness.tables.column import View


@dataclass(frozen=True)
class Table:
    """A table and its rows.

    Attributes:
        board: its leaderboard, with the stored rows.
    """

    board: leaderboard.Leaderboard

    @property
    def folder(self) -> Path:
        return self.board.folder

    @property
    def frame(self) -> pd.DataFrame:
        """Every column of all rows, best first."""
        return self.board.whole

    @property
    def problems(self) -> list[str]:
        """Records that could not be used, each with the reason."""
        return self.board.problems

    @cached_property
    def searches(self) -> dict[str, Searches]:
        """The searches of each row, the one that is shown first."""
        return {line.name: line.sample.searches for line in self.board.lines}

    @cached_property
    def rows(self) -> dict[str, Row]:
        """Those that are shown."""
        return {method: searches[0] for method, searches in self.searches.items()}

    def only(self, methods: Collection[str]) -> Table:
        """The table with some of its rows; what was judged stays as it is."""
        pairs = zip(self.board.lines, self.board.own, strict=True)
        kept = [(line, own) for line, own in pairs if line.name in methods]
        lines, own = [line for line, _ in kept], [own for _, own in kept]
        return Table(replace(self.board, lines=lines, own=own))

    @property
    def title(self) -> str:
        return leaderboard.title_of_frame(self.frame)

    def texts(self, view: View) -> pd.DataFrame:
        """The columns that a view shows, as text."""
        return self.board.table(whole=True).texts(view)

    @property
    def name(self) -> str:
        """As it lies in results: protocol / data set - trunk."""
        return f"{self.folder.parent.name}/{self.folder.name}"

    @property
    def methods(self) -> list[str]:
        """Every row, best first."""
        return [str(name) for name in self.frame["method"]]

    @property
    def trained(self) -> list[str]:
        """The rows that have a rank, best first."""
        return [str(name) for name in self.frame["method"][self.frame["rank"].notna()]]

    @cached_property
    def newest(self) -> TestRecord:
        record = newest_of(record for row in self.rows.values() for record in row)
        assert isinstance(record, TestRecord)
        return record

    @property
    def protocol(self) -> str:
        return str(self.newest.identity["protocol"]["name"])

    @property
    def dataset(self) -> str:
        return self.newest.identity["dataset"]

    @property
    def trunk(self) -> str:
        return self.newest.identity["trunk"]

    def scores(self, metric: str, embedding: str) -> dict[str, Score]:
        """Row -> its score and interval as it is judged, or else as the CSV file has them."""
        column = f"{metric}_{embedding}"
        of_files = zip(*(self.frame[n] for n in ("method", column, f"{column}_ci95")), strict=True)
        found = {m: Score(mean, None if pd.isna(half) else half) for m, mean, half in of_files}
        rows = self.board.judged.rows if self.board.judged is not None else ()
        judged = {row.name: row.scores[embedding].get(metric) for row in rows}
        return {method: judged.get(method) or score for method, score in found.items()}

    @cached_property
    def leaders(self) -> list[str]:
        """Rows that are not shown to differ from the best one; empty if no two rows are."""
        judged = self.board.judged
        found = judged.leaders if judged is not None else []
        return found if judged is not None and len(found) < len(judged.trained) else []

    @property
    def ledger(self) -> list[Opening]:
        return read_ledger(self.folder / LEDGER, [])

    def search(self, method: str) -> SearchFacts:
        """What chose the parameters of a method."""
        return self.rows[method][-1].search

    def folds(self, method: str) -> list[tuple[int, FoldFacts]]:
        """Every model of a method, with the reproduction it belongs to."""
        return [(record.repetition, fold) for record in self.rows[method] for fold in record.folds]

    @cached_property
    def class_names(self) -> list[str] | None:
        """Of the test classes, if they were written down."""
        names = read_test_classes(self.folder, self.newest.identity["split"])
        fits = names is not None and len(names) == len(self.newest.class_queries)
        return names if fits else None

    def class_scores(self, method: str, metric: str = "map_at_r") -> list[float | None] | None:
        """Of each test class, mean over reproductions; None where records keep none."""
        found = [r.per_class.get("concatenated", {}).get(metric) for r in self.rows[method]]
        known = [values for values in found if values is not None]
        count = len(self.newest.class_queries)
        if not known or any(len(values) != count for values in known):
            return None
        means = np.mean(np.array(known, dtype=float), axis=0)  # None becomes NaN
        return [None if np.isnan(mean) else round(float(mean), 5) for mean in means]


def read_table(folder: Path, against: str | None = None) -> Table | None:
    """The table of a folder with the stored rows; None if no record of it can be used.

    Args:
        against: as `leaderboard.build` takes it.
    """
    board = leaderboard.build(folder, against)
    return Table(board) if any(board.own) else None


def choose(results: Path, wanted: Sequence[str]) -> list[Path]:
    """The folders of the tables that were asked for by a part of their name, or all."""
    found = find_tables(results)
    if not wanted:
        return found
    names = {table: f"{table.parent.name}/{table.name}" for table in found}
    return [table for table in found if any(part in names[table] for part in wanted)]
