"""What a file exports that is not, or not yet, among those that the harness finds by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.errors import HarnessError
from harness.registry import import_file


def exported_by(path: Path, export: str) -> tuple[Any, ...]:
    """The objects under a name such as DATASETS in a Python file."""
    found = getattr(import_file(path), export, ())
    if not found:
        raise HarnessError(f"{path} exports no {export}")
    return tuple(found)
