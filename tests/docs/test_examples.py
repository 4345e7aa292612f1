"""Every example runs."""

from __future__ import annotations

import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import typer
from conftest import QUICK
from documents import ROOT, flags_in
from made_records import make_record, put_scores

from harness.cli import app, main
from harness.testing import check_method

EXAMPLES = ROOT / "examples"
SLURM = EXAMPLES / "slurm_run.sh"

# Stands for a program: writes down how it was called.
STUB = """#!/bin/sh
printf '%s %s\\n' "$(basename "$0")" "$*" >> "$CALLS"
"""


def run(file: str, *arguments: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """As a program; returns what it defines."""
    monkeypatch.setattr(sys, "argv", [file, *arguments])
    return runpy.run_path(str(EXAMPLES / file), run_name="__main__")


@pytest.mark.parametrize("file", ["own_loss.py", "own_method.py"])
def test_a_loss_keeps_the_contract_of_a_method(file: str) -> None:
    check_method(EXAMPLES / file)


@pytest.mark.slow
@pytest.mark.parametrize("file", ["own_loss.py", "own_method.py"])
def test_a_loss_can_be_searched(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--runs-dir", str(tmp_path), "--workers", "1", "--protocol", QUICK]
    assert main(["search", "--loss", str(EXAMPLES / file), "--trials", "2", *where]) == 0
    assert "2 trials, 0 failed" in capsys.readouterr().out


@pytest.mark.slow
def test_a_folder_of_images_is_searched_and_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run("folder_run.py", str(tmp_path), monkeypatch=monkeypatch)
    assert "best of 2 trials" in capsys.readouterr().out
    (table,) = tmp_path.glob("results/*/folder_stripes-convnet/leaderboard.csv")
    scores = pd.read_csv(table).set_index("method")["map_at_r_concatenated"]
    assert scores["contrastive"] > scores["untrained"]


@pytest.mark.slow
def test_ccp_trains_without_the_orchestrator(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    defined = run("ccp_plain.py", monkeypatch=monkeypatch)
    printed = capsys.readouterr().out
    untrained, best = map(float, re.findall(r"([\d.]+)%", printed))
    assert best > 2 * untrained
    assert "problems: 2" in printed
    # Of the package it takes the loss and the arrays alone.
    modules = {str(getattr(value, "__module__", "")) for value in defined.values()}
    own = {name for name in modules if name.startswith("harness.")}
    assert own and all(name.startswith("harness.losses.") for name in own)


def test_records_are_read_in_the_order_of_the_leaderboard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folds = [{**fold, "seconds": 10.0} for fold in make_record().folds]
    for place, method in enumerate(("ms", "triplet", "margin")):
        scores = [0.2113 + 0.05 * place + 0.01 * run for run in range(5)]
        table = put_scores(tmp_path, method, scores, folds=folds)
    assert main(["leaderboard", "--results-dir", str(tmp_path)]) == 0
    capsys.readouterr()
    run("read_records.py", str(table), monkeypatch=monkeypatch)
    printed = capsys.readouterr().out
    board = pd.read_csv(table / "leaderboard.csv")
    ranked = board[board["kind"] == "reproduction"]
    rows = [f"{row.method} {row.map_at_r_concatenated:.4f}" for row in ranked.itertuples()]
    shown = [" ".join(line.split()[:2]) for line in printed.splitlines()]
    assert [line for line in shown if line in rows] == rows
    assert f"{ranked['method'].iloc[0]} - {ranked['method'].iloc[1]}, run by run" in printed


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a stand-in for `harness` writes its calls to."""
    stub = tmp_path / "bin" / "harness"
    stub.parent.mkdir()
    stub.write_text(STUB)
    stub.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    return tmp_path / "calls"


@pytest.mark.parametrize("step", ["search", "status"])
def test_the_slurm_run_calls_commands_that_parse(
    step: str, calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARNESS_STORAGE", "postgresql+psycopg://me@host/db")
    monkeypatch.setenv("HARNESS_DATA", "/data")
    subprocess.run(["bash", str(SLURM), step], check=True)
    lines = re.findall(r"harness (.*)$", calls.read_text(), flags=re.MULTILINE)
    assert lines
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for line in lines:
        name, *words = shlex.split(line)
        command = commands[name]
        if name == "data":
            command = command.commands[words.pop(0)]
        assert flags_in(command, name, words)["dataset"] == "cub"


def test_the_slurm_run_says_what_it_lacks(calls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HARNESS_STORAGE", raising=False)
    done = subprocess.run(["bash", str(SLURM)], capture_output=True, text=True, check=False)
    assert done.returncode != 0 and "HARNESS_STORAGE: must be a database" in done.stderr
    assert not calls.exists()
