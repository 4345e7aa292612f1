"""Is the order of the rows that of a setting which every method searched?"""

from __future__ import annotations

from collections.abc import Iterable

from harness.results.rows import Row, mean_score
from harness.results.selection import MIN_METHODS
from harness.results.stats import rank_correlation


def shared_in_words(dataset: str, rows: Iterable[Row]) -> list[str]:
    """A sentence for every number that all searches chose: whether higher ones scored higher.

    Where it orders the rows, a difference of two may be one of that setting, which each search
    chose by validation classes alone.
    """
    searched = [row for row in rows if row[-1].search.get("trials")]
    if len(searched) < MIN_METHODS:
        return []
    ranges = [row[-1].search.get("ranges", {}) for row in searched]
    scores = [mean_score(row) for row in searched]
    said = []
    for name in ranges[0]:
        if not all("low" in of_row.get(name, {}) for of_row in ranges):
            continue
        found = [row[-1].params.get(name) for row in searched]
        values = [float(value) for value in found if isinstance(value, int | float)]
        if len(values) < len(found):
            continue
        correlation = rank_correlation(values, scores)
        if correlation is not None:
            said.append(
                f"{name} on {dataset}, which all {len(searched)} methods searched: best values "
                f"from {min(values):.2g} to {max(values):.2g}, rank correlation {correlation:.2f} "
                "with MAP@R on the test classes."
            )
    return said
