"""Files of tables, as equal as the installed versions of scipy and numpy let them be."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest


def assert_same_csv(found: Path, expected: Path) -> None:
    """The same cells; older versions of scipy and numpy give other last digits."""
    ours, theirs = (list(csv.reader(path.open(newline=""))) for path in (found, expected))
    assert [len(row) for row in ours] == [len(row) for row in theirs]
    for row, other in zip(ours, theirs, strict=True):
        for cell, wanted in zip(row, other, strict=True):
            if cell != wanted:
                assert float(cell) == pytest.approx(float(wanted), rel=1e-9, abs=0)
