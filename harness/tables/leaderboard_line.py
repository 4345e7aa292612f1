"""One line of a leaderboard: the records of a row, and what its columns are computed from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from harness.judgement.judged import EMBEDDING, METRIC, Estimate, JudgedRow, Score
from harness.judgement.samples import Sample
from harness.judgement.words import row_notes, run_notes
from harness.records.records import AskedFor, SearchFacts, TestRecord
from harness.records.rows import Row, mean_score
from harness.tables.mean_scores import mean_and_interval, mean_over_searches
from harness.tables.training_cost import cost_of

NOTHING_ASKED: AskedFor = {"trials": 0, "reproductions": 0}


@dataclass(frozen=True)
class Line:
    """What one line of a leaderboard is made from.

    Attributes:
        sample: its records, search by search; CSV columns describe the first search.
        judged: what the judgement says about it; None for rows that are not ranked.
        to_base: the difference to the row of its base, if there is one.
        openings: how often the test classes were opened for the method.
        indistinguishable: cell of the column of this name.
        marked: whether stored rows stand among the user's, so that it must say which it is.
    """

    sample: Sample
    judged: JudgedRow | None = None
    to_base: Estimate | None = None
    openings: int = 0
    indistinguishable: str | None = None
    marked: bool = False

    @property
    def name(self) -> str:
        return self.sample.name

    @property
    def row(self) -> Row:
        return self.sample.searches[0]

    @property
    def score(self) -> Score:
        """What the row is ordered by: concatenated MAP@R over all searches."""
        if self.judged is not None:
            return self.judged.score
        found = self.sample.scores(EMBEDDING, METRIC) or [[]]
        _, half_width = mean_and_interval(found[0])
        return Score(self.sample.mean(EMBEDDING, METRIC), half_width)

    @property
    def notes(self) -> list[str]:
        """What to know before believing it, in words."""
        origin = ["stored"] if self.marked and self.sample.stored else []
        if self.judged is None:
            return [*origin, *run_notes(self.sample)]
        return [*origin, *row_notes(self.judged, brief=True)]

    @cached_property
    def first(self) -> Sample:
        """Its first search alone."""
        return replace(self.sample, searches=[self.row])

    @property
    def last(self) -> TestRecord:
        return self.first.newest

    @property
    def search(self) -> SearchFacts:
        return self.last.search

    @property
    def searched(self) -> bool:
        return bool(self.search.get("trials"))

    @cached_property
    def cost(self) -> Mapping[str, Any]:
        return cost_of(self.first.folds) if self.first.folds else {}

    @cached_property
    def scores(self) -> dict[str, float]:
        """Column -> value, of all score columns; means over searches if there are several."""
        return {**_as_a_paper_has_it(self.row), **mean_over_searches(self.sample.searches)}

    @property
    def incomplete(self) -> bool:
        """Whether a search has fewer trials or reproductions than were asked for."""
        return any(map(_is_incomplete, self.sample.searches))

    @property
    def search_scores(self) -> list[float]:
        """The score of each search; empty if there was one, or parameters were given."""
        searched = [row for row in self.sample.searches if row[-1].search.get("trials")]
        return [mean_score(row) for row in searched] if len(searched) > 1 else []


def _is_incomplete(row: Row) -> bool:
    search = max(row, key=lambda record: record.provenance["time"]).search
    asked = search.get("asked", NOTHING_ASKED)
    return search.get("trials", 0) < asked["trials"] or len(row) < asked["reproductions"]


def _as_a_paper_has_it(row: Row) -> dict[str, float]:
    """Deviations over the records of a row, and what its last epochs scored."""
    values = {}
    for metric in row[0].scores["concatenated"]:
        scores = [record.scores["concatenated"].get(metric, np.nan) for record in row]
        # Metrics that were asked for later are of the best epoch alone.
        of_last = [record.last.get("concatenated", {}) for record in row]
        lasts = [values_of[metric] for values_of in of_last if metric in values_of]
        values[f"{metric}_sd"] = float(np.std(scores, ddof=1)) if len(scores) > 1 else np.nan
        values[f"{metric}_last"] = float(np.mean(lasts)) if lasts else np.nan
    return values


def half_width_of(estimate: Estimate) -> float | None:
    """Half the width of the interval of a difference; None without one."""
    if estimate.low is None or estimate.high is None:
        return None
    return (estimate.high - estimate.low) / 2
