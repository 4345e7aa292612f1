"""What a check is handed: an object, its name, or a file that exports it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from harness.errors import HarnessError
from harness.registry import CATEGORIES, import_file

Item = TypeVar("Item")


def items_of(
    given: Item | str | Path, category: str, of: type[Item], load: Callable[[str], Item]
) -> tuple[Item, ...]:
    """The objects to check.

    Args:
        given: one of them, its name, or a Python file, registered or not.
        load: finds a registered one by its name.
    """
    if isinstance(given, of):
        return (given,)
    if not str(given).endswith(".py"):
        return (load(str(given)),)
    export = CATEGORIES[category].export
    found = getattr(import_file(Path(str(given))), export, ())
    if not found:
        raise HarnessError(f"{given} exports no {export}")
    return tuple(found)
