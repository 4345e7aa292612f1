"""How tables spell numbers for people."""

from __future__ import annotations

from collections.abc import Callable

from harness.metrics.names import LENGTHS
from harness.tables.column import Cells, is_missing


def percent(value: float | None, half_width: float | None = None) -> str:
    """A score as percent, with half the width of its interval if there is one."""
    if is_missing(value):
        return ""
    interval = "" if is_missing(half_width) else f" ± {100 * half_width:.2f}"  # type: ignore[operator]
    return f"{100 * value:.2f}{interval}"  # type: ignore[operator]


def length(value: float | None, half_width: float | None = None) -> str:
    """A distance between embeddings, likewise."""
    if is_missing(value):
        return ""
    return f"{value:.3f}" + ("" if is_missing(half_width) else f" ± {half_width:.3f}")


def points(value: float | None, half_width: float | None = None) -> str:
    """A difference in percentage points, with its sign."""
    text = percent(value, half_width)
    return f"+{text}" if text and not text.startswith("-") else text


def share(value: float | None) -> str:
    """A share of models, in whole percent."""
    return "" if is_missing(value) else f"{100 * value:.0f}%"  # type: ignore[operator]


def in_percent(name: str) -> Callable[[Cells], str]:
    """Spells the column of this name as percent."""
    return lambda cells: percent(cells[name])


def with_interval(name: str, metric: str = "") -> Callable[[Cells], str]:
    """Spells a score with the interval from the column beside it, `NAME_ci95`."""
    spell = length if metric in LENGTHS else percent
    return lambda cells: spell(cells[name], cells[f"{name}_ci95"])
