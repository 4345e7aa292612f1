"""The ledger of a table: every opening of the test classes, a line each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NotRequired, TypedDict

import msgspec
from filelock import FileLock

from harness.foreign_files import RefusedFile, read_foreign
from harness.records.layout import LEDGER, table_lock
from harness.records.provenance import Time, command_line, now
from harness.records.records import Count
from harness.system.files import append_lines
from harness.typed import convert


class Opening(TypedDict):
    """One look at the test classes.

    Attributes:
        params: digest that begins the names of the run's records.
    """

    method: str
    params: str
    repetition: Count
    time: NotRequired[Time]
    command: NotRequired[str]


def note_test_opening(table: Path, method: str, params_digest: str, repetition: int) -> None:
    """Write to the ledger that test classes are being opened, before they are."""
    opening: Opening = {
        "time": now(),
        "method": method,
        "params": params_digest,
        "repetition": repetition,
        "command": command_line(),
    }
    with FileLock(table_lock(table)):
        append_lines(table / LEDGER, [opening])


def add_openings(table: Path, openings: Sequence[Opening]) -> None:
    """Add openings of other machines, unless the ledger has them."""
    if not openings:
        return
    with FileLock(table_lock(table)):
        there = read_ledger(table / LEDGER, [])
        append_lines(table / LEDGER, [opening for opening in openings if opening not in there])


def read_ledger(path: Path, problems: list[str]) -> list[Opening]:
    """The entries of a ledger, as they stand; lines that are none are named."""
    if not path.exists():
        return []
    try:
        lines = read_foreign(path).splitlines()
    except (OSError, RefusedFile) as error:
        problems.append(f"{path}: cannot be read ({getattr(error, 'strerror', error)})")
        return []
    entries = []
    for number, line in enumerate(lines, start=1):
        try:
            entry = msgspec.json.decode(line)
            convert(entry, Opening, "it")
        except (ValueError, RecursionError):
            problems.append(f"{path}, line {number}: not a ledger entry")
        else:
            entries.append(entry)
    return entries
