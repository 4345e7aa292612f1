"""The committed sweeps are what their plans and records say, whichever there are."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from csv_files import assert_same_csv

from harness.records.layout import (
    SWEEP_CSV,
    SWEEP_LATEX,
    SWEEP_MARKDOWN,
    find_sweeps,
    find_validations,
)
from harness.records.records import ValidationRecord
from harness.tables import sweeps

RESULTS = Path(__file__).parents[2] / "results"

every_sweep = pytest.mark.parametrize(
    "folder", find_sweeps(RESULTS), ids=lambda folder: folder.name
)


@every_sweep
def test_the_files_are_those_of_the_records(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / folder.name
    shutil.copytree(folder, copy)
    table = sweeps.build(copy)
    assert table.problems == [] and (table.frame["seeds"] > 0).all()
    sweeps.write(table)
    assert_same_csv(copy / SWEEP_CSV, folder / SWEEP_CSV)
    for name in (SWEEP_MARKDOWN, SWEEP_LATEX):
        assert (copy / name).read_bytes() == (folder / name).read_bytes(), name


@every_sweep
def test_records_come_from_committed_code_and_name_no_folder_of_a_machine(folder: Path) -> None:
    paths = [path for table in folder.glob("*/*") for path in find_validations(table)]
    assert paths
    for path in paths:
        provenance = ValidationRecord.read(path).provenance
        assert provenance["commit"] and provenance["clean"], path
        assert "/home/" not in path.read_text() and "/tmp/" not in path.read_text(), path


@every_sweep
def test_every_sweep_names_its_command_and_is_in_the_index(folder: Path) -> None:
    assert f"--name {folder.name}" in (folder / SWEEP_MARKDOWN).read_text()
    assert f"(sweeps/{folder.name}/{SWEEP_MARKDOWN})" in (RESULTS / "README.md").read_text()
