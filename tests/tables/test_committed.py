"""The committed tables are what their records say, whichever tables there are."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from csv_files import assert_same_csv

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
    assert_same_csv(copy / CSV, table / CSV)
    for name in (MARKDOWN, LATEX, COLUMNS):
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


@every_table
def test_every_table_names_its_commands_and_is_in_the_index(table: Path) -> None:
    commands = (table / MARKDOWN).read_text().split("Made by")[1]
    trained = {row[0].identity["method"] for row in read_rows(table, []) if row[0].kind != "naive"}
    assert all(re.split(r"\+\w+=", method)[0] in commands for method in trained)
    link = (table / MARKDOWN).relative_to(RESULTS).as_posix()
    assert f"({link})" in (RESULTS / "README.md").read_text()


# How docs/findings.md calls the methods of its comparisons.
CALLED = {
    "CCP": "ccp-c2",
    "C2": "c2",
    "DRML": "drml-pa",
    "Proxy Anchor": "proxyanchor",
    "HPL": "hpl-pa",
    "ProxyNCA++": "proxynca++",
    "ProxyNCA": "proxynca",
    "ProxyGML": "proxygml",
    "SoftTriple": "softtriple",
}


def test_the_findings_state_what_the_judgement_says() -> None:
    text = (ROOT / "docs" / "findings.md").read_text()
    judged = harness.judge(results_dir=str(RESULTS), against="none")
    tables = {table.dataset: table for table in judged.tables if table.protocol == "frozen"}
    rows = re.findall(
        r"^\| ([A-Z][\w+ ]+) - ([A-Z][\w+ ]+) \| (.+?) \| (.+?) \|", text, re.MULTILINE
    )
    assert len(rows) == 5
    for method, rival, *cells in rows:
        for dataset, cell in zip(("cub", "cars"), cells, strict=True):
            pair = tables[dataset].pair(CALLED[method], CALLED[rival])
            assert pair is not None
            estimate = pair.estimate
            half = estimate.high - estimate.difference
            stated = f"{100 * estimate.difference:+.2f} ± {100 * half:.2f}, {pair.answer.value}"
            assert cell.startswith(stated), (method, rival, dataset, stated)


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
