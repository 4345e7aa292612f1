"""The page as a file, with pictures of the test images if they are wanted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import HarnessError
from harness.report.page import Report, render
from harness.system.files import write_text

if TYPE_CHECKING:
    from harness.report.galleries import PictureSettings


def write_report(report: Report, output: Path) -> int:
    """Write the page; returns its size in bytes."""
    page = render(report)
    try:
        write_text(output, page)
    except OSError as error:
        raise HarnessError(f"cannot write {output}: {error.strerror}; --output FILE") from None
    return len(page.encode())


def add_pictures(report: Report, values: Mapping[str, Any], settings: PictureSettings) -> None:
    """Add pictures to every table that has its data set and models; the others say why not.

    Args:
        values: config keys that say where runs and data are.
    """
    from harness.report.galleries import make_pictures

    for table in report.tables:
        try:
            report.pictures[table.name] = make_pictures(table, dict(values), settings)
        except HarnessError as error:
            reason = f"No pictures: {error}. {table.name} needs its data set and its models."
            report.missing[table.name] = {"pictures": reason}
