"""The names of a table's test classes, written once beside its records."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

import msgspec

from harness.foreign_files import read_foreign
from harness.records.layout import TEST_CLASSES
from harness.system.files import write_json
from harness.typed import convert


class ClassNames(TypedDict):
    """Whose scores records keep.

    Attributes:
        split: hash of the class split that they are the test classes of.
        names: in the order of the labels.
    """

    split: str
    names: list[str]


def note_test_classes(table: Path, split: str, names: Sequence[str]) -> None:
    """Write the names down, unless they are there."""
    if read_test_classes(table, split) != list(names):
        write_json(table / TEST_CLASSES, {"split": split, "names": list(names)})


def read_test_classes(table: Path, split: str) -> list[str] | None:
    """The names, or None where there are none of this split."""
    try:
        found: ClassNames = msgspec.json.decode(read_foreign(table / TEST_CLASSES))
        convert(found, ClassNames, "it")
    except (OSError, ValueError, RecursionError):
        return None
    return found["names"] if found["split"] == split else None
