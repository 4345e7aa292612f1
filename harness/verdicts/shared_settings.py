"""Is the order of the rows, or of two of them, that of a setting which every method searched?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from harness.judgement.selection import MIN_METHODS
from harness.judgement.stats import rank_correlation
from harness.records.rows import Row, label_of, mean_score

# The parameter that a protocol searches for every method alike, and its field that says so.
RATE, SEARCHED_BY_PROTOCOL = "head_lr", "search_head_lr"

# Times that the best rates of two methods differ by.
FAR_APART = 10.0


def shared_in_words(dataset: str, rows: Iterable[Row]) -> list[str]:
    """A sentence for every number that all searches chose: whether higher ones scored higher.

    Where it orders the rows, a difference of two may be one of that setting, which each search
    chose by validation classes alone.
    """
    searched = [row for row in rows if row[-1].search.get("trials")]
    if len(searched) < MIN_METHODS:
        return []
    scores = [mean_score(row) for row in searched]
    said = []
    for name in _shared(searched):
        values = [value for row in searched if (value := _value(row, name)) is not None]
        if len(values) < len(searched):
            continue
        correlation = rank_correlation(values, scores)
        if correlation is not None:
            said.append(
                f"{name} on {dataset}, which all {len(searched)} methods searched: best values "
                f"from {min(values):.2g} to {max(values):.2g}, rank correlation {correlation:.2f} "
                "with MAP@R on the test classes."
            )
    return said


def apart_in_words(one: Row, other: Row) -> str:
    """Of two searches under a protocol that searches the head's rate: where it ended far apart."""
    pair = (one, other)
    if not all(row[-1].identity["protocol"].get(SEARCHED_BY_PROTOCOL) for row in pair):
        return ""
    rates = [value for row in pair if (value := _value(row, RATE)) is not None]
    if len(rates) < 2 or max(rates) < FAR_APART * min(rates):
        return ""
    names = f"{label_of(one)} and {label_of(other)}"
    return f"{names} at {RATE} of {rates[0]:.2g} and {rates[1]:.2g}"


def _shared(rows: Sequence[Row]) -> list[str]:
    """Names of what each of these searches chose from a range of numbers."""
    ranges = [row[-1].search.get("ranges", {}) for row in rows]
    return [name for name in ranges[0] if all("low" in r.get(name, {}) for r in ranges)]


def _value(row: Row, name: str) -> float | None:
    value = row[-1].params.get(name)
    return float(value) if isinstance(value, int | float) else None
