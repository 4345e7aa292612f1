"""What the luck of a search can do: seen where two searches of almost one method are in a table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from harness.results.almost_base import almost_base
from harness.results.rows import Row, label_of, mean_score


def almost_one(one: Row, other: Row) -> bool:
    """Whether one of two rows is the base of the other, which was best where it is almost that."""
    return label_of(other) == almost_base(one[-1]) or label_of(one) == almost_base(other[-1])


def luck_in_words(tables: Iterable[tuple[str, Mapping[str, Row]]]) -> str:
    """How far apart such searches ended; empty without any.

    Args:
        tables: data set and rows by name.
    """
    apart: dict[tuple[str, str], list[str]] = defaultdict(list)
    for dataset, rows in tables:
        for pair, difference in _apart(rows).items():
            apart[pair].append(f"by {100 * difference:.2f} points of MAP@R on {dataset}")
    if not apart:
        return ""
    pairs = [f"{method} and {base} differ {', '.join(by)}" for (method, base), by in apart.items()]
    return (
        f"Searches of almost the same loss: {'; '.join(pairs)}. Differences that are not larger "
        "may be those of two searches, whatever the tests say."
    )


def largest_luck(rows: Mapping[str, Row]) -> float:
    """The most that two such searches differ by; 0 where there are none."""
    return max(_apart(rows).values(), default=0.0)


def _apart(rows: Mapping[str, Row]) -> dict[tuple[str, str], float]:
    """Method and base -> what they differ by."""
    bases = {method: almost_base(row[-1]) for method, row in rows.items()}
    return {
        (method, base): abs(mean_score(rows[method]) - mean_score(rows[base]))
        for method, base in bases.items()
        if base in rows
    }
