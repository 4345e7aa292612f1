"""Part 4: training. Score and loss against steps, for every fold and reproduction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.records.records import TEST_SELECTED, FoldFacts
from harness.report.table import Table
from harness.tables.leaderboard import validation_column

MOST_MARKS = 60  # of one event in a picture; more are drawn as that they were


def trainings(table: Table) -> dict[str, list[dict[str, Any]]]:
    """Method -> its models; those whose records keep no history are left out."""
    found = {
        method: [_model(run, fold) for run, fold in table.folds(method) if _drawable(fold)]
        for method in table.methods
    }
    return {method: models for method, models in found.items() if models}


def score_title(table: Table) -> str:
    """What the scores on the way are of: the test classes, where these select."""
    looked = (table.frame["kind"] == TEST_SELECTED).any()
    title = validation_column(table.frame)
    return title.replace("validation", "test") if looked else title


def without(table: Table) -> list[str]:
    """Trained methods whose records were written before they kept the history."""
    there = trainings(table)
    return [method for method in table.trained if method not in there]


def _drawable(fold: FoldFacts) -> bool:
    """Whether there is a history, with a value of each sort for each step."""
    history = fold.get("history")
    if history is None:
        return False
    steps = len(history["steps"])
    return len(history["loss"]) == steps == len(history.get("score", history["loss"]))


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
    """What the method's hook did, name -> steps; hooks write what they like: all is checked."""
    events = fold.get("hook", {}).get("events")
    if not isinstance(events, dict):
        return {}
    found = {str(name): _steps(at, fold["steps"]) for name, at in events.items()}
    return {
        name: list(steps[:: max(1, -(-len(steps) // MOST_MARKS))])
        for name, steps in found.items()
        if steps
    }


def _steps(at: Any, last: int) -> Sequence[int]:
    if isinstance(at, dict):
        every = at.get("every")
        # Not as a list: a record may state any number of steps.
        return range(0, last, every) if isinstance(every, int) and every > 0 else []
    return [step for step in at if isinstance(step, int)] if isinstance(at, list) else []
