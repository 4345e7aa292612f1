"""The committed tables are what their records say, whichever tables there are."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from itertools import groupby
from pathlib import Path

import pytest

import harness
from harness import registry
from harness.cli import main
from harness.experiment import Experiment
from harness.records.layout import (
    COLUMNS,
    CSV,
    LATEX,
    LEDGER,
    MARKDOWN,
    RECORDS,
    find_records,
    find_tables,
)
from harness.records.ledger import read_ledger
from harness.records.records import Identity, TestRecord, read_record
from harness.records.rows import read_rows

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
TABLES = find_tables(RESULTS)
DOCUMENTS = [ROOT / "README.md", RESULTS / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]

every_table = pytest.mark.parametrize(
    "table", TABLES, ids=lambda path: f"{path.parent.name}/{path.name}"
)


def identity_in(table: Path) -> Identity:
    """That of one of its trained models."""
    return next(row[0].identity for row in read_rows(table, []) if row[0].kind != "naive")


@every_table
def test_the_command_makes_the_committed_files_from_the_records(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / table.relative_to(RESULTS)
    shutil.copytree(table / RECORDS, copy / RECORDS)
    shutil.copy(table / LEDGER, copy / LEDGER)
    assert main(["leaderboard", "--results-dir", str(tmp_path)]) == 0
    assert capsys.readouterr().err == ""  # no record was left out
    for name in (CSV, MARKDOWN, LATEX, COLUMNS):
        assert (copy / name).read_bytes() == (table / name).read_bytes(), name


def test_the_verdict_is_what_the_records_say() -> None:
    again = "harness verdict --results-dir results --against none --output results/VERDICT.md"
    text = harness.verdict(results_dir=str(RESULTS), against="none") if TABLES else None
    file = RESULTS / "VERDICT.md"
    assert (file.read_text() if file.exists() else None) == text, f"write it again: {again}"


@every_table
def test_a_record_that_is_read_and_written_again_has_the_same_bytes(
    table: Path, tmp_path: Path
) -> None:
    paths = find_records(table)
    assert paths
    for path in paths:
        copy = tmp_path / path.name
        read_record(path).write(copy)
        assert copy.read_bytes() == path.read_bytes(), path


@every_table
def test_every_test_is_in_the_ledger(table: Path) -> None:
    problems: list[str] = []
    openings = {(o["method"], o["repetition"]) for o in read_ledger(table / LEDGER, problems)}
    records = [read_record(path) for path in find_records(table)]
    tested = {(r.identity["method"], r.repetition) for r in records if isinstance(r, TestRecord)}
    assert problems == [] and tested <= openings


@every_table
def test_records_come_from_committed_code_and_name_no_folder_of_a_machine(table: Path) -> None:
    for path in find_records(table):
        provenance = read_record(path).provenance
        assert provenance["commit"] and provenance["clean"], path
        assert "/home/" not in path.read_text() and "/tmp/" not in path.read_text(), path
        assert not re.search(r'["\s=:]/\w', path.read_text()), path


def leaderboards_in(document: Path) -> list[list[str]]:
    """The rows of every leaderboard that a document shows."""
    lines = document.read_text().splitlines()
    blocks = [list(block) for _, block in groupby(lines, key=lambda line: line.startswith("|"))]
    return [block for block in blocks if block[0].startswith("| group | method |")]


SHOWN = [rows for document in DOCUMENTS for rows in leaderboards_in(document)]


def test_documents_show_leaderboards_as_they_are_committed() -> None:
    """Whole, or their heads: a title, a rule, and some rows from the first one on."""
    committed = [rows for table in TABLES for rows in leaderboards_in(table / MARKDOWN)]
    for shown in SHOWN:
        heads = [rows[: len(shown)] for rows in committed] if len(shown) > 4 else committed
        assert shown in heads, shown[2]


@every_table
def test_the_head_of_every_committed_leaderboard_is_shown_in_a_document(table: Path) -> None:
    for rows in leaderboards_in(table / MARKDOWN):
        assert any(shown == rows[: len(shown)] for shown in SHOWN)


@every_table
def test_the_commands_of_every_table_are_in_the_readme_of_the_results(table: Path) -> None:
    headings = re.findall("^## (.+)$", (RESULTS / "README.md").read_text(), flags=re.MULTILINE)
    assert f"{table.parent.name}/{table.name}" in headings


@every_table
def test_a_protocol_of_today_has_the_fields_of_the_committed_records(table: Path) -> None:
    stated = identity_in(table)["protocol"]
    protocol = registry.load_protocol(str(stated["name"]), identity_in(table)["dataset"])
    today = json.loads(json.dumps(protocol.identity()))
    assert today | {"trunk": stated["trunk"]} == stated


@pytest.mark.parametrize(
    "table",
    # The data set that needs no download.
    [table for table in TABLES if identity_in(table)["dataset"] == "glyphs"],
    ids=lambda path: f"{path.parent.name}/{path.name}",
)
def test_a_run_of_today_has_the_identity_of_a_committed_record(
    table: Path, make_experiment: Callable[..., Experiment]
) -> None:
    committed = identity_in(table)
    experiment = make_experiment(
        loss=committed["method"],
        protocol=committed["protocol"]["name"],
        trunk=committed["trunk"],
    )
    # Of the fingerprint nothing is asked: the installed matplotlib and Pillow render the glyphs.
    today = experiment.identity(committed["data_fingerprint"])
    assert json.loads(json.dumps(today)) == committed
