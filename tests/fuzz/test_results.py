"""Records, ledgers and names of classes that somebody damaged: every table is still made."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest
from ends import cases, run, unchanged
from hypothesis import given
from hypothesis import strategies as st
from made_tables import put_table
from mutations import damaged_json, damaged_jsonl

from harness.records.layout import LEDGER, TEST_CLASSES, find_records, find_tables
from harness.records.ledger import read_ledger
from harness.records.records import RecordError, read_record

METHODS = ("ms", "triplet", "contrastive")

# What the commands write into a table.
OURS = ("*/leaderboard*", "*/published.csv")

READERS = {
    "leaderboard": ["leaderboard"],
    "compare": ["compare", *METHODS, "--dataset", "cub"],
    "verdict": ["verdict", "ms", "--against", "none"],
    "report": ["report", "--output", "page.html"],
    "plot": ["plot", "scores", "--dataset", "cub", "--output", "scores.svg"],
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fuzz") / "results"
    put_table(folder, "cub", METHODS)
    for method in METHODS:
        for path in sorted(folder.glob(f"*/*/records/{method}/*"))[2:]:
            path.unlink()
    return folder


@pytest.fixture(scope="module")
def place(results: Path) -> Path:
    """Where commands run: a copy in which one file is damaged at a time."""
    copy = results.parent / "place" / "results"
    shutil.copytree(results, copy)
    return copy


@cases(0.25)
@given(data=st.data())
def test_a_damaged_record_is_refused_by_name_or_every_command_shows_it(
    data: st.DataObject, results: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _damage_record(data, results, place)
    try:
        read_record(path)
    except RecordError as refused:
        assert str(path) in str(refused)
        return
    monkeypatch.chdir(place.parent)
    reader = data.draw(st.sampled_from([*READERS, "leaderboard", "leaderboard"]))
    with unchanged(place, *OURS):
        run([*READERS[reader], "--results-dir", str(place)]).check()


@cases(0.01)
@given(data=st.data())
def test_a_damaged_record_is_merged_only_if_it_can_be_shown(
    data: st.DataObject, results: Path, place: Path, tmp_path: Path
) -> None:
    _damage_record(data, results, place)
    ours = tmp_path / "ours"
    shutil.rmtree(ours, ignore_errors=True)
    with unchanged(place):
        merged = run(["merge", str(place), "--results-dir", str(ours)])
    merged.check()
    for reader in (["leaderboard"], ["report", "--output", str(tmp_path / "page.html")]):
        shown = run([*reader, "--results-dir", str(ours)])
        shown.check()
        # What was taken without a word is shown without one.
        assert shown.err == "" or merged.code == 2


@cases(0.04)
@given(data=st.data())
def test_of_a_damaged_ledger_every_line_is_read_or_named(
    data: st.DataObject, results: Path, tmp_path: Path
) -> None:
    (table,) = find_tables(results)
    path = tmp_path / LEDGER
    path.write_bytes(data.draw(damaged_jsonl((table / LEDGER).read_bytes())))
    problems: list[str] = []
    entries = read_ledger(path, problems)
    assert len(entries) + len(problems) == len(path.read_bytes().splitlines())
    assert all(str(path) in problem for problem in problems)
    Counter(entry["method"] for entry in entries)


@cases(0.01)
@given(data=st.data())
def test_a_damaged_ledger_or_list_of_classes_stops_no_table(
    data: st.DataObject, results: Path, place: Path
) -> None:
    (table,) = find_tables(results)
    name = data.draw(st.sampled_from([LEDGER, TEST_CLASSES]))
    damage = damaged_jsonl if name == LEDGER else damaged_json
    for intact in (LEDGER, TEST_CLASSES, _record(results).relative_to(table)):
        shutil.copy(table / intact, place / table.relative_to(results) / intact)
    target = place / table.relative_to(results) / name
    target.write_bytes(data.draw(damage((table / name).read_bytes())))
    with unchanged(place, *OURS):
        end = run(["leaderboard", "--results-dir", str(place)])
    end.check()
    assert end.code == 0


def _record(results: Path) -> Path:
    (table,) = find_tables(results)
    return find_records(table)[0]


def _damage_record(data: st.DataObject, results: Path, place: Path) -> Path:
    intact = _record(results)
    path = place / intact.relative_to(results)
    path.write_bytes(data.draw(damaged_json(intact.read_bytes())))
    return path
