"""What the luck of a search can do: seen where one method, or almost one, was searched twice."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from harness.judgement.almost_base import almost_base
from harness.records.rows import Row, Searches, label_of, mean_score


def almost_one(one: Row, other: Row) -> bool:
    """Whether one of two rows is the base of the other, which was best where it is almost that."""
    return label_of(other) == almost_base(one[-1]) or label_of(one) == almost_base(other[-1])


def scores_of_searches(searches: Searches) -> list[float]:
    """The score of each search of a method; nothing if there was one, or parameters were given."""
    searched = [row for row in searches if row[-1].search.get("trials")]
    return [mean_score(row) for row in searched] if len(searched) > 1 else []


def luck_in_words(tables: Iterable[tuple[str, Mapping[str, Searches]]]) -> str:
    """How far apart such searches ended; empty without any.

    Args:
        tables: data set and searches by name.
    """
    apart: dict[str, list[str]] = defaultdict(list)
    for dataset, searches in tables:
        for what, difference in _apart(searches).items():
            apart[what].append(f"by {100 * difference:.2f} points of MAP@R on {dataset}")
    if not apart:
        return ""
    differ = [f"{what} differ {', '.join(by)}" for what, by in apart.items()]
    return (
        f"Searches of one loss, or almost one: {'; '.join(differ)}. Differences that are not "
        "larger may be those of two searches, whatever the tests say."
    )


def largest_luck(searches: Mapping[str, Searches]) -> float:
    """The most that two such searches differ by; 0 where there are none."""
    return max(_apart(searches).values(), default=0.0)


def _apart(searches: Mapping[str, Searches]) -> dict[str, float]:
    """Which searches -> what they differ by."""
    shown = {method: rows[0] for method, rows in searches.items()}
    bases = {method: almost_base(row[-1]) for method, row in shown.items()}
    apart = {
        f"{method} and {base}": abs(mean_score(shown[method]) - mean_score(shown[base]))
        for method, base in bases.items()
        if base in shown
    }
    for method, rows in searches.items():
        if scores := scores_of_searches(rows):
            apart[f"{len(scores)} searches of {method}"] = max(scores) - min(scores)
    return apart
