"""Explicit class lists as a split: anybody's, from a file of theirs.

train: [0-49]          # class names, numbers from 0 in the data set's order, or ranges of these
validation: [50-99]    # may be left out: then the protocol cuts its folds from `train`
test: [100-199]
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.config import load_config
from harness.errors import HarnessError, convert_value_errors, unknown
from harness.protocols.splits import GIVEN, ClassSplit, Fold, check_enough, cut

PARTS = ("train", "validation", "test")
FEWEST = 2  # classes of a part: among images of one class every answer is right

_RANGE = re.compile(r"(\d{1,18})-(\d{1,18})")


def read_split(path: Path, class_names: Sequence[str], folds: str) -> ClassSplit:
    """The split in a file; what cannot be one is refused here, before any work.

    Args:
        folds: of the protocol, for files without validation classes.
    """
    found = load_config(path, what="split")
    for key in found:
        if key not in PARTS:
            raise unknown(f"part of a split in {path}", str(key), PARTS)
    parts = {name: _classes(path, name, found.get(name), class_names) for name in PARTS}
    _check(path, parts, class_names)
    trainval = tuple(sorted((*parts["train"], *parts["validation"])))
    test = tuple(sorted(parts["test"]))
    if parts["validation"]:
        fold = Fold(*(tuple(sorted(parts[name])) for name in ("train", "validation")))
        return ClassSplit(trainval, test, (fold,))
    with convert_value_errors(str(path)):
        check_enough(folds, len(trainval), "in its list `train`")
    return ClassSplit(trainval, test, cut(trainval, folds))


def label_of(path: Path, split: ClassSplit) -> dict[str, str]:
    """The fields of a protocol with that split: its name tells the file and its content."""
    name = re.sub(r"[^\w.-]", "_", path.stem)
    given = {"folds": GIVEN} if len(split.folds) == 1 and split.folds[0].val else {}
    return {"split": f"{name}@{split.digest[:8]}", **given}


def _classes(path: Path, part: str, listed: Any, class_names: Sequence[str]) -> list[int]:
    if listed is None and part == "validation":
        return []
    if not isinstance(listed, list) or not listed:
        raise HarnessError(f"{path}: `{part}` must be a list of classes, got {listed!r}")
    labels = {name: label for label, name in enumerate(class_names)}
    return [label for item in listed for label in _labels(path, item, labels)]


def _labels(path: Path, item: Any, labels: dict[str, int]) -> Sequence[int]:
    """Of a name, of a number, or of a range with both its ends."""
    if isinstance(item, str) and item in labels:
        return [labels[item]]
    ends = _RANGE.fullmatch(str(item))
    first, last = (int(ends[1]), int(ends[2])) if ends else (item, item)
    is_number = isinstance(item, int) and not isinstance(item, bool)
    if is_number or (ends and first <= last):
        if first >= 0 and last < len(labels):
            return range(first, last + 1)
        raise HarnessError(
            f"{path}: there are {len(labels)} classes, from 0 to {len(labels) - 1}, got {item}"
        )
    raise HarnessError(f"{path}: {unknown('class', str(item), labels)}")


def _check(path: Path, parts: dict[str, list[int]], class_names: Sequence[str]) -> None:
    seen: dict[int, str] = {}
    for part, classes in parts.items():
        for label in classes:
            if label in seen:
                where = (
                    f"`{seen[label]}` and `{part}`" if seen[label] != part else f"`{part}` twice"
                )
                raise HarnessError(
                    f"{path}: class {label} ({class_names[label]}) is in {where}; "
                    "no class may have two roles"
                )
            seen[label] = part
        if classes and len(classes) < FEWEST:
            raise HarnessError(
                f"{path}: `{part}` needs at least {FEWEST} classes, got {len(classes)}"
            )
