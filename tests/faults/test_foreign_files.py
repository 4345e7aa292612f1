"""A file of somebody else's cannot hang a command, fill the memory or lead out of its folder."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from made_records import put_scores

from harness.cli import main
from harness.config import load_config
from harness.errors import HarnessError
from harness.foreign_files import RefusedFile, check_archive, read_foreign
from harness.records.layout import LEDGER, TEST_CLASSES, find_records, find_tables
from harness.records.merge import merge
from harness.training.saved import load, load_weights, save
from harness.trunks import weights

CPU = torch.device("cpu")
ROOT = Path(__file__).parents[2]


def link_to_zero(path: Path) -> None:
    path.symlink_to("/dev/zero")


def pipe(path: Path) -> None:
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.mkdir()


def large(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**40)  # takes no room on the disk


def link_outside(path: Path) -> None:
    outside = path.parents[4] / "private.json"
    outside.write_text("{}")
    path.symlink_to(outside)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def binary(path: Path) -> None:
    path.write_bytes(bytes(range(256)) * 8)


def not_a_number(path: Path) -> None:
    path.write_text('{"score": NaN}')


HOSTILE = [link_to_zero, pipe, folder, large, link_outside, empty, binary, not_a_number]


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Results of two methods, one record each; beside them room for links that lead out."""
    place = tmp_path / "theirs" / "results"
    put_scores(place, "ms", [0.3])
    put_scores(place, "triplet", [0.2])
    return place


@pytest.mark.parametrize("make", HOSTILE, ids=lambda make: make.__name__)
@pytest.mark.parametrize("command", ["leaderboard", "report", "merge"])
def test_a_hostile_record_is_named_and_left_out(
    results: Path,
    tmp_path: Path,
    make: Callable[[Path], None],
    command: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (table,) = find_tables(results)
    record = next(path for path in find_records(table) if "triplet" in str(path))
    record.unlink()
    make(record)
    arguments = {
        "leaderboard": ["leaderboard", f"--results-dir={results}"],
        "report": ["report", f"--results-dir={results}", f"--output={tmp_path / 'page.html'}"],
        "merge": ["merge", str(results), f"--results-dir={tmp_path / 'ours'}"],
    }
    assert main(arguments[command]) in (0, 2)
    said = capsys.readouterr()
    assert "bug" not in said.err
    if make is not folder:  # a folder named like a record may hold anything
        assert record.name in said.out + said.err


@pytest.mark.parametrize("make", HOSTILE, ids=lambda make: make.__name__)
@pytest.mark.parametrize("name", [LEDGER, TEST_CLASSES])
def test_other_files_of_a_table_are_as_harmless(
    results: Path, tmp_path: Path, make: Callable[[Path], None], name: str
) -> None:
    (table,) = find_tables(results)
    path = table / name
    path.unlink(missing_ok=True)
    make(path) if make is not link_outside else path.symlink_to(tmp_path)
    merged = merge([results], tmp_path / "ours")
    assert merged.copied == 2


@pytest.mark.parametrize("make", [link_to_zero, pipe, large])
def test_only_regular_files_of_bounded_size_are_read(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    make(tmp_path / "file")
    with pytest.raises(RefusedFile):
        read_foreign(tmp_path / "file")
    with pytest.raises(HarnessError, match="cannot read config"):
        load_config(tmp_path / "file", foreign=True)


def test_a_folder_that_is_a_link_is_read_and_links_inside_it(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "record.json").write_text("{}")
    (tmp_path / "real" / "again.json").symlink_to("record.json")
    (tmp_path / "link").symlink_to("real")
    assert read_foreign(tmp_path / "link" / "again.json", tmp_path / "link") == b"{}"


def test_our_own_ledger_is_not_written_through_a_link(results: Path, tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.write_text("")
    (table,) = find_tables(results)
    ours = tmp_path / "ours" / table.relative_to(results)
    ours.mkdir(parents=True)
    (ours / LEDGER).symlink_to(private)
    theirs = table / LEDGER
    theirs.write_text('{"method": "ms", "params": "a", "repetition": 1}\n')
    assert main(["merge", str(results), "--results-dir", str(tmp_path / "ours")]) == 2
    assert private.read_text() == ""


def test_compressed_weights_are_refused(tmp_path: Path) -> None:
    save({"weight": torch.zeros(1000)}, tmp_path / "plain.pt")
    packed = tmp_path / "packed.pt"
    with (
        zipfile.ZipFile(tmp_path / "plain.pt") as plain,
        zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        for entry in plain.infolist():
            archive.writestr(entry.filename, plain.read(entry))
    with pytest.raises(RefusedFile, match="is compressed"):
        load(packed, CPU)
    with pytest.raises(ValueError, match="has compressed entries"):
        weights.read(packed)
    check_archive(tmp_path / "plain.pt")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused(tmp_path: Path, value: float) -> None:
    save({"count": torch.tensor(1), "head": torch.tensor([1.0, value])}, tmp_path / "model.pt")
    with pytest.raises(ValueError, match="head in it has values that are not finite"):
        load_weights(tmp_path / "model.pt", CPU)


def test_a_number_that_no_figure_can_draw_is_refused(results: Path, tmp_path: Path) -> None:
    (table,) = find_tables(results)
    path = find_records(table)[0]
    text = path.read_text()
    seconds = f"{np.finfo(float).max:e}"
    changed = text.replace('"train_seconds": ', f'"train_seconds": {seconds}, "was": ')
    assert changed != text
    path.write_text(changed)
    merged = merge([results], tmp_path / "ours")
    assert merged.copied == 1 and "train_seconds" in merged.refused[0]


def test_no_other_place_reads_files_of_others() -> None:
    """Records and configs of run folders come through the one door."""
    bare = ("read_bytes(", "read_text(", "open(")
    found = {
        path.relative_to(ROOT).as_posix()
        for part in ("records", "tables", "judgement", "verdicts", "searching", "evaluation")
        for path in (ROOT / "harness" / part).rglob("*.py")
        if any(f".{call}" in path.read_text() or f" {call}" in path.read_text() for call in bare)
    }
    # The other one reads our own code.
    assert found <= {"harness/searching/journal.py", "harness/records/provenance.py"}
