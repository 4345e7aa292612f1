"""What commands say: help, versions, mistakes, bugs; on any terminal."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from ends import run
from made_records import put_scores

from harness import registry
from harness.cli import BUG, main
from harness.errors import HarnessError, unknown


def test_h_is_help_of_every_command() -> None:
    for arguments in (["-h"], ["search", "-h"], ["data", "check", "-h"]):
        end = run(arguments)
        assert end.code == 0
        assert "Usage: harness" in end.out


def test_version_is_printed() -> None:
    end = run(["--version"])
    assert end.code == 0
    assert end.out.startswith("metric-harness ")


@pytest.mark.parametrize(
    ("arguments", "help_"),
    [
        (["search", "--trals", "3"], "harness search --help"),
        (["data", "check"], "harness data check --help"),
        (["serch"], "harness --help"),
    ],
)
def test_a_refused_flag_points_to_the_help_of_its_command(arguments: list[str], help_: str) -> None:
    end = run(arguments)
    assert end.code == 2
    assert f"see: {help_}" in end.err


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("ProxyAnchor", "proxyanchor"), ("CCP", "ccp"), ("hlp", "hpl"), ("DRML-PA", "drml-pa")],
)
def test_did_you_mean_knows_aliases_and_case(typed: str, meant: str) -> None:
    with pytest.raises(HarnessError, match=f"Did you mean '{meant}'"):
        registry.load_method(typed)


def test_a_name_in_another_case_is_nearer_than_a_similar_one() -> None:
    assert "Did you mean 'CUB'" in str(unknown("x", "cub", ["CUB", "cubs"]))


def test_what_nobody_has_words_for_is_a_bug_of_ours_with_a_report(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def broken(folder: Path) -> None:
        raise ZeroDivisionError("in postgresql://me:secret@host/db")

    monkeypatch.setattr("harness.results.layout.find_tables", broken)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["harness", "--storage", "postgresql://me:secret@host/db"])
    end = run(["leaderboard"])
    assert end.code == BUG == 70
    assert "error: this is a bug in metric-harness: ZeroDivisionError" in end.err
    (report,) = tmp_path.iterdir()
    assert str(report) in end.err
    assert "in broken" in report.read_text()
    assert "metric-harness" in report.read_text()
    assert "secret" not in report.read_text() + end.err


def test_memory_that_is_short_is_no_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    def short(folder: Path) -> None:
        raise MemoryError

    monkeypatch.setattr("harness.results.layout.find_tables", short)
    end = run(["leaderboard"])
    assert end.code == 2
    assert "out of memory" in end.err


def test_a_terminal_without_utf8_gets_every_table(tmp_path: Path) -> None:
    put_scores(tmp_path, "café ±", [0.5, 0.6])
    end = run(["leaderboard", "--results-dir", str(tmp_path)], encoding="ascii")
    assert end.code == 0
    assert "caf\\xe9 +-" in end.out


def test_a_reader_that_has_enough_is_no_error() -> None:
    command = f"{sys.executable} -m harness list | true"
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    done = subprocess.run(command, shell=True, capture_output=True, text=True, env=environment)
    assert done.stderr == ""


def test_a_name_that_is_not_utf8_is_spelt_out(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/\xff"
    end = run(["leaderboard", "--results-dir", os.fsdecode(folder)])
    assert end.code == 2
    assert "\\udcff" in end.err
    assert main(["leaderboard", "--results-dir", os.fsdecode(folder)]) == 2
