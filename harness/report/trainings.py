"""Part 4: training. Score and loss against steps, for every fold and reproduction."""

from __future__ import annotations

from typing import Any

from harness.report.table import Table
from harness.results.records import FoldFacts

MOST_MARKS = 60  # of one event in a picture; more are drawn as that they were


def trainings(table: Table) -> dict[str, list[dict[str, Any]]]:
    """Method -> its models; those whose records keep no history are left out."""
    found = {
        method: [_model(run, fold) for run, fold in table.folds(method) if "history" in fold]
        for method in table.rows
    }
    return {method: models for method, models in found.items() if models}


def without(table: Table) -> list[str]:
    """Trained methods whose records were written before they kept the history."""
    there = trainings(table)
    return [method for method in table.trained if method not in there]


def _model(run: int, fold: FoldFacts) -> dict[str, Any]:
    history = fold["history"]
    return {
        "run": run,
        "fold": fold.get("fold", 0),
        "steps": history["steps"],
        "loss": history["loss"],
        "score": [round(100 * score, 3) for score in history.get("score", [])],
        "best": fold["best_step"],
        "end": fold.get("stopped_by", ""),
        "events": _events(fold),
    }


def _events(fold: FoldFacts) -> dict[str, list[int]]:
    """What the method's hook did, name -> steps."""
    found = {}
    events = fold.get("hook", {}).get("events", {})
    for name, at in events.items() if isinstance(events, dict) else ():
        if isinstance(at, dict):
            every = int(at.get("every") or 0)
            steps = list(range(0, fold["steps"], every)) if every > 0 else []
        else:
            steps = [int(step) for step in at]
        found[str(name)] = steps[:: max(1, -(-len(steps) // MOST_MARKS))]
    return found
