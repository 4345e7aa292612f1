"""Scores of repeated searches of one method."""

from __future__ import annotations

from harness.records.rows import Searches, mean_score


def scores_of_searches(searches: Searches) -> list[float]:
    """The score of each search of a method; nothing if there was one, or parameters were given."""
    searched = [row for row in searches if row[-1].search.get("trials")]
    return [mean_score(row) for row in searched] if len(searched) > 1 else []
