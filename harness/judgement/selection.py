"""Does validation choose what tests best? The methods of a table by both of their scores."""

from __future__ import annotations

from dataclasses import dataclass
from string import ascii_letters

import numpy as np
import pandas as pd

from harness.judgement.ranks import rank_correlation
from harness.metrics.names import EMBEDDINGS

# Of fewer methods the order says little.
MIN_METHODS = 5

SEVERAL = "*"  # methods at the same place of a scatter
WIDTH, HEIGHT = 60, 12  # of a scatter, in characters


@dataclass(frozen=True)
class Selection:
    """Trained methods that were searched.

    Attributes:
        validation: score that the parameters were chosen by.
        test: embedding -> MAP@R on the test classes.
    """

    methods: list[str]
    validation: list[float]
    test: dict[str, list[float]]


def selection_in(frame: pd.DataFrame) -> Selection | None:
    """Of a table; None if it has too few methods to say something."""
    test = {embedding: f"map_at_r_{embedding}" for embedding in EMBEDDINGS}
    rows = frame[frame["kind"] == "reproduction"]
    rows = rows.dropna(subset=["validation_score", *test.values()])
    if len(rows) < MIN_METHODS:
        return None
    return Selection(
        methods=rows["method"].tolist(),
        validation=rows["validation_score"].tolist(),
        test={embedding: rows[column].tolist() for embedding, column in test.items()},
    )


def correlations(selection: Selection) -> dict[str, float | None]:
    """Embedding -> rank correlation of validation and test."""
    return {
        embedding: rank_correlation(selection.validation, s)
        for embedding, s in selection.test.items()
    }


def scatter(selection: Selection, embedding: str) -> list[str]:
    """Validation across, test up, a letter for each method; as lines of text."""
    test = selection.test[embedding]
    letters = [ascii_letters[i] if i < len(ascii_letters) else SEVERAL for i in range(len(test))]
    columns, rows = _places(selection.validation, WIDTH), _places(test, HEIGHT)
    cells = [[" "] * WIDTH for _ in range(HEIGHT)]
    for letter, column, row in zip(letters, columns, rows, strict=True):
        cells[row][column] = letter if cells[row][column] == " " else SEVERAL
    ends = {HEIGHT - 1: f"{100 * max(test):.2f}", 0: f"{100 * min(test):.2f}"}
    lines = [
        f"{ends.get(row, ''):>6} |{''.join(cells[row]).rstrip()}" for row in reversed(range(HEIGHT))
    ]
    low, high = (f"{100 * end(selection.validation):.2f}" for end in (min, max))
    named = [f"{letter} {name}" for letter, name in zip(letters, selection.methods, strict=True)]
    return [
        *lines,
        f"{'':6} +{'-' * WIDTH}",
        f"{'':8}{low}{high:>{WIDTH - len(low)}}",
        ", ".join(named),
    ]


def _places(values: list[float], size: int) -> list[int]:
    """Where values lie between the lowest and the highest, in cells."""
    low, high = min(values), max(values)
    if high == low:
        return [size // 2] * len(values)
    return np.rint((size - 1) * (np.array(values) - low) / (high - low)).astype(int).tolist()
