"""Part 3: the search. What was tried, what it brought, which parameters matter."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.interpolate import griddata

from harness.judgement.selection import correlations, selection_in
from harness.records.records import rounded
from harness.report.table import Table

GRID = 24  # points of a contour along each side


def searches(table: Table) -> dict[str, dict[str, Any]]:
    """Method -> what its pictures are drawn from; those without trial scores are left out."""
    return {
        method: _search(table, method)
        for method in table.trained
        if table.search(method).get("trial_scores")
    }


def without(table: Table) -> list[str]:
    """Methods that were searched, but whose records were written before trials were kept."""
    searched = [m for m in table.trained if table.search(m).get("trials")]
    return [m for m in searched if not table.search(m).get("trial_params")]


def _search(table: Table, method: str) -> dict[str, Any]:
    facts = table.search(method)
    scores = facts["trial_scores"]
    params = {n: v for n, v in facts.get("trial_params", {}).items() if len(v) == len(scores)}
    ranges = {n: ends for n, ends in facts.get("ranges", {}).items() if n in params}
    chosen = _most_important(ranges, facts.get("importance", {}))
    best = table.rows[method][-1].params
    return {
        "scores": [None if score is None else rounded(100 * score) for score in scores],
        "best": facts.get("best_trial"),
        "seconds": facts.get("trial_seconds", []),
        "params": params,
        "chosen": {name: best.get(name) for name in params},
        "ranges": ranges,
        "importance": facts.get("importance", {}),
        "on_bound": facts.get("on_bound", {}),
        "contour": contour(scores, params, ranges, chosen),
    }


def _most_important(
    ranges: Mapping[str, Mapping[str, Any]], importance: Mapping[str, float]
) -> list[str]:
    """The two parameters that a contour shows: those that matter most, else the first two."""
    numeric = [name for name, ends in ranges.items() if _measurable(ends)]
    return sorted(numeric, key=lambda name: -importance.get(name, 0.0))[:2]


def contour(
    scores: Sequence[float | None],
    params: Mapping[str, Sequence[Any]],
    ranges: Mapping[str, Mapping[str, Any]],
    chosen: Sequence[str],
) -> dict[str, Any] | None:
    """Scores between the trials, interpolated on a grid over two parameters."""
    if len(chosen) < 2:
        return None
    done = [
        i
        for i, score in enumerate(scores)
        if score is not None and all(_inside(params[n][i], ranges[n]) for n in chosen)
    ]
    if not done:
        return None
    axes = [_scaled([params[name][i] for i in done], ranges[name]) for name in chosen]
    points = np.stack(axes, axis=1)
    if len(np.unique(points, axis=0)) < 4 or np.linalg.matrix_rank(points - points[0]) < 2:
        return None
    values = np.array([100 * float(scores[i] or 0.0) for i in done])
    across, up = np.meshgrid(np.linspace(0, 1, GRID), np.linspace(0, 1, GRID))
    grid = griddata(points, values, (across, up), method="linear")
    return {
        "names": list(chosen),
        "x": _ticks(ranges[chosen[0]]),
        "y": _ticks(ranges[chosen[1]]),
        "z": [[None if np.isnan(v) else round(float(v), 2) for v in line] for line in grid],
    }


def _measurable(ends: Mapping[str, Any]) -> bool:
    """Whether a range has two numbers as its ends, which its scale can show."""
    low, high = ends.get("low"), ends.get("high")
    if not isinstance(low, int | float) or not isinstance(high, int | float):
        return False
    return low < high and (low > 0 or not ends.get("log"))


def _inside(value: Any, ends: Mapping[str, Any]) -> bool:
    return isinstance(value, int | float) and ends["low"] <= value <= ends["high"]


def _scaled(values: Sequence[float], ends: Mapping[str, Any]) -> np.ndarray:
    """Values from 0 to 1 within a range, on its own scale."""
    low, high = float(ends["low"]), float(ends["high"])
    at = np.array(values, dtype=float)
    if ends.get("log"):
        at, low, high = np.log(at), math.log(low), math.log(high)
    return (at - low) / (high - low) if high > low else np.zeros(len(at))


def _ticks(ends: Mapping[str, Any]) -> list[float]:
    low, high = float(ends["low"]), float(ends["high"])
    spread = np.geomspace(low, high, GRID) if ends.get("log") else np.linspace(low, high, GRID)
    return [rounded(value) for value in spread.tolist()]


def carry_over(table: Table) -> dict[str, Any] | None:
    """Validation against test score over methods; None of fewer than five."""
    selection = selection_in(table.frame)
    if selection is None:
        return None
    return {
        "methods": selection.methods,
        "validation": [rounded(100 * value) for value in selection.validation],
        "test": {
            embedding: [rounded(100 * value) for value in values]
            for embedding, values in selection.test.items()
        },
        "correlation": {
            embedding: None if value is None else round(value, 2)
            for embedding, value in correlations(selection).items()
        },
    }
