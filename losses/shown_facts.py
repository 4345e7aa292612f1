"""Facts about a run that methods report through their hook and that tables show.

Declared without torch, since tables are made from records alone. A method reports a fact under its
name in `Hook.facts()`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fact:
    """A number that a hook reports of each model; tables show its mean over models.

    Attributes:
        name: its key in `Hook.facts()`, and the column of the table.
        explanation: what the column holds.
        expected: a mean below it gives the row a note.
        note: that note.
    """

    name: str
    explanation: str
    expected: float = float("-inf")
    note: str = ""


# CCP with fewer than two problems is its first problem alone.
INSTANCES = Fact(
    "instances",
    "how many proxy problems CCP went through, mean over models; empty for others",
    expected=1.5,
    note="ended before CCP changed its proxies",
)

FACTS = (INSTANCES,)
