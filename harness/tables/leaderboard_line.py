"""One line of a leaderboard: the records of a row, and what its columns are computed from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from harness.judgement.almost_base import almost_base
from harness.judgement.fairness import share_at_first, share_at_limit, still_rises
from harness.judgement.judged import EMBEDDING, METRIC, Estimate, JudgedRow, Score
from harness.judgement.samples import Sample
from harness.judgement.stats import mean_and_interval
from harness.metrics.names import EMBEDDINGS
from harness.records.records import AskedFor, FoldFacts, SearchFacts, TestRecord
from harness.records.rows import Row, Searches
from harness.tables.notes import notes_of
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
        indistinguishable: from the best row, by a paired t-test.
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
        return [*origin, *notes_of(self.sample, self.judged)]

    @cached_property
    def last(self) -> TestRecord:
        return max(self.row, key=lambda record: record.provenance["time"])

    @property
    def search(self) -> SearchFacts:
        return self.last.search

    @property
    def searched(self) -> bool:
        return bool(self.search.get("trials"))

    @cached_property
    def folds(self) -> list[FoldFacts]:
        return [fold for record in self.row for fold in record.folds]

    @cached_property
    def cost(self) -> Mapping[str, Any]:
        return cost_of(self.folds) if self.folds else {}

    @cached_property
    def scores(self) -> dict[str, float]:
        """Column -> value, of all score columns; means over searches if there are several."""
        return {**_as_a_paper_has_it(self.row), **_over_searches(self.sample.searches)}

    @property
    def incomplete(self) -> bool:
        """Whether a search has fewer trials or reproductions than were asked for."""
        return any(map(_is_incomplete, self.sample.searches))

    @property
    def not_flat(self) -> bool | None:
        """Whether the search still improved at its end; None if that is not known."""
        return still_rises(self.search)

    @property
    def at_step_limit(self) -> float | None:
        if self.last.kind != "reproduction":  # a single model is always stopped by steps
            return None
        return share_at_limit([fold["stopped_by"] for fold in self.folds if "stopped_by" in fold])

    @property
    def at_first_validation(self) -> float | None:
        return share_at_first(
            [
                (fold["best_step"], fold["history"]["steps"])
                for fold in self.folds
                if "score" in fold.get("history", {})
            ]
        )

    @property
    def almost_base(self) -> str:
        return almost_base(self.last)


def _is_incomplete(row: Row) -> bool:
    search = max(row, key=lambda record: record.provenance["time"]).search
    asked = search.get("asked", NOTHING_ASKED)
    return search.get("trials", 0) < asked["trials"] or len(row) < asked["reproductions"]


def _over_searches(searches: Searches) -> dict[str, float]:
    """Column -> score, and half the width of its interval: over reproductions, or over searches."""
    by_search = [mean_scores(row) for row in searches]
    if len(by_search) == 1:
        return by_search[0]
    values: dict[str, float] = {}
    for name in set.intersection(*(set(scores) for scores in by_search)):
        if not name.endswith(INTERVAL):
            mean, half_width = mean_and_interval([scores[name] for scores in by_search])
            values |= {name: mean, f"{name}{INTERVAL}": half_width}
    return values


INTERVAL = "_ci95"  # behind the name of a score: half the width of its interval


def mean_scores(row: Row) -> dict[str, float]:
    """Column -> mean over the records of a row, and half the width of its interval."""
    values = {}
    for embedding in EMBEDDINGS:
        for metric in {m for record in row for m in record.scores.get(embedding, {})}:
            scores = [
                r.scores[embedding][metric] for r in row if metric in r.scores.get(embedding, {})
            ]
            mean, half_width = mean_and_interval(scores)
            values[f"{metric}_{embedding}"] = mean
            values[f"{metric}_{embedding}{INTERVAL}"] = half_width
    return values


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
