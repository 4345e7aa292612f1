"""requirements/lock.txt is the environment of the committed tables."""

from __future__ import annotations

import re
from pathlib import Path

from harness.records.layout import find_records, find_tables
from harness.records.records import read_record

ROOT = Path(__file__).parents[1]
LOCK = (ROOT / "requirements" / "lock.txt").read_text()
OWN = "metric-harness"


def test_the_newest_record_was_made_with_the_locked_versions() -> None:
    paths = [path for table in find_tables(ROOT / "results") for path in find_records(table)]
    made = max((read_record(path).provenance for path in paths), key=lambda one: one["time"])
    versions = {name: version for name, version in made["versions"].items() if name != OWN}
    assert {f"{name}=={version}" for name, version in versions.items()} <= set(LOCK.splitlines())


def test_the_lock_names_no_place_to_install_from() -> None:
    lines = [line for line in LOCK.splitlines() if not line.startswith("#")]
    assert lines and all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines)
