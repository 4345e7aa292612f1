"""What training cost, from what records say of their models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from harness.records.records import FoldFacts


def cost_of(folds: Sequence[FoldFacts]) -> dict[str, Any]:
    """Columns of a table, from at least one model."""
    seconds_per_step = [fold["train_seconds"] / fold["steps"] for fold in folds]
    best_steps = [fold["best_step"] for fold in folds]
    return {
        "best_step": np.mean(best_steps),
        "ms_per_step": 1000 * np.mean(seconds_per_step),
        "convergence_seconds": np.mean(np.multiply(seconds_per_step, best_steps)),
        "train_seconds": np.mean([fold["train_seconds"] for fold in folds]),
        "peak_memory_mib": max(fold["peak_memory"] for fold in folds) / 2**20,
        "device": ", ".join(sorted({fold["device"] for fold in folds})),
    }


# Of a score: what is within it of the best is as good, a tenth of a point.
AS_GOOD = 1e-3


def converged_step(history: Sequence[tuple[int, float, float]], best: float) -> int:
    """The first validation that was as good as the best.

    Args:
        history: (step, loss, score) of every validation.
    """
    return next(step for step, _, score in history if score >= best - AS_GOOD)
