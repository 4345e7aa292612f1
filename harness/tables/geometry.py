"""The table of how tight classes are and how far apart, stage by stage of training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.metrics.names import title_of
from harness.tables.column import Column, View
from harness.tables.spelling import length

MEASURED = ("map_at_r", "covering_radius", "class_distance")

REMARK = (
    "Each stage has the weights that were best in validation; a method without stages has one. "
    "covering radius: of the samples of a class, smaller is tighter; class distance: between "
    "samples of different classes."
)

Stage = Mapping[str, Any]  # what was measured of one stage of one model, by column


def columns_of(parts: Sequence[str]) -> list[Column[Stage]]:
    """Every column of the table.

    Args:
        parts: of the classes: training, validation, test. People see all that was measured of the
            last one, and MAP@R of the training classes.
    """
    return [
        Column("method", "name of --loss"),
        Column("fold", "number of the fold", shown=View.ALL),
        Column("stage", "`before` training, or the number of the stage", shown=View.ALL),
        Column("step", "at which the weights of the stage were best"),
        *(_measured(part, metric, parts) for part in parts for metric in MEASURED),
        Column("params", "all parameters, as JSON"),
        Column("commit", "of the code, with + if it had been changed"),
        Column("versions", "of Python and the libraries, as JSON"),
        Column("command", "that measured it"),
    ]


def _measured(part: str, metric: str, parts: Sequence[str]) -> Column[Stage]:
    name = f"{part}_{metric}"
    shown = part == parts[-1] or (part, metric) == (parts[0], MEASURED[0])
    return Column(
        name,
        f"{title_of(metric)} of the {part} classes",
        None,
        View.ALL if shown else View.CSV,
        f"{part} {title_of(metric)}",
        lambda cells: length(cells[name]),
    )
