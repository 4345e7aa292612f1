"""What training cost, from what records say of their models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from harness.results.records import FoldFacts


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
