"""Letters for rows: two rows share one exactly if they are not separated."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from string import ascii_uppercase


def letters(rows: Sequence[str], separated: Collection[frozenset[str]]) -> dict[str, str]:
    """Compact letter display (Piepho, 2004), the first row's letter first.

    "Not separated" is not transitive: A may equal B, and B equal C, while A differs from C. One
    group for each row cannot say that, several letters can.

    Args:
        rows: best first.
        separated: pairs of rows that differ.
    """
    place = {row: number for number, row in enumerate(rows)}
    groups = [set(rows)] if rows else []
    for pair in separated:
        if not pair <= place.keys():
            continue
        # A group with both rows becomes two groups, each without one of them.
        broken = [group for group in groups if pair <= group]
        parts = [group - {row} for group in broken for row in pair]
        groups = [group for group in groups if not pair <= group]
        for part in sorted(parts, key=len, reverse=True):
            if part and not any(part <= group for group in groups):
                groups.append(part)
    groups.sort(key=lambda group: sorted(place[row] for row in group))
    return {
        row: "".join(_letter(number) for number, group in enumerate(groups) if row in group)
        for row in rows
    }


def _letter(number: int) -> str:
    """A to Z, then A2 to Z2, and so on."""
    round_, place = divmod(number, len(ascii_uppercase))
    return ascii_uppercase[place] + (str(round_ + 1) if round_ else "")
