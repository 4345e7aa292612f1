"""The table of what losses cost: a row for each loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd

from harness.tables.column import Cells, Column, Table, View, is_missing

REMARKS = (
    "ms per step: training alone, without validation and checkpoints.",
    "to converge: steps, and training time, to the first validation within 0.1 points of the best.",
    "peak memory: of a GPU, or of the whole process on a CPU. loss: parameters of the loss.",
)

Measured = Mapping[str, Any]  # what was measured of one loss, by column


def _beside_published(name: str) -> Callable[[Cells], str]:
    """Spells our value, and behind it the published one where there is one."""

    def spell(cells: Cells) -> str:
        theirs = cells.get(f"published_{name}")
        published = "" if is_missing(theirs) else f" (published {theirs:.4g})"
        return f"{cells[name]:.4g}{published}"

    return spell


def _shown(name: str, explanation: str, title: str, shown: View = View.ALL) -> Column[Measured]:
    return Column(name, explanation, None, shown, title, _beside_published(name))


COLUMNS: tuple[Column[Measured], ...] = (
    Column("method", "name of --loss", shown=View.ALL),
    Column("batch_size", "images in a batch"),
    _shown("ms_per_step", "training time per step, mean over folds", "ms per step"),
    _shown("converged_step", "steps until it has converged", "steps to converge", View.CSV),
    _shown("convergence_seconds", "training time until it has converged", "s to converge"),
    _shown("steps", "of the whole training", "steps"),
    Column("train_seconds", "training time, mean over folds"),
    Column("seconds", "the same with validation and checkpoints"),
    _shown("peak_memory_mib", "of a GPU, or of the process on a CPU", "peak memory, MiB"),
    _shown("loss_mib", "memory of the parameters of the loss", "loss, MiB"),
    Column("validation", "best validation score, mean over folds"),
    Column("folds", "number of folds"),
    Column("device", "what it was trained on"),
    Column("commit", "of the code, with + if it had been changed"),
    Column("versions", "of Python and the libraries, as JSON"),
    Column("command", "that measured it"),
)


def cost_table(title: str, frame: pd.DataFrame, command: str) -> Table:
    """What was measured, with what papers print in columns `published_...`."""
    devices = ", ".join(sorted(set(frame["device"])))
    return Table(title, COLUMNS, frame, [*REMARKS, f"Measured on {devices}."], [command])
