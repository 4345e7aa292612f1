"""What the README shows first works: its commands, and the same from Python."""

from __future__ import annotations

import re
import runpy
import shlex
from pathlib import Path

import pandas as pd
import pytest
from conftest import QUICK
from documents import ROOT, blocks

from harness.cli import main

README = ROOT / "README.md"

# What makes a command quick and keeps it to itself; of a flag that is given twice, the last counts.
QUICKLY = {
    "search": ["--protocol", QUICK, "--trials", "2", "--workers", "1", "--runs-dir", "{}/runs"],
    "eval": [
        *("--reproductions", "2", "--workers", "1", "--runs-dir", "{}/runs"),
        *("--results-dir", "{}/results"),
    ],
    "verdict": ["--results-dir", "{}/results"],
}
# The same for calls from Python.
SETTINGS = (
    'dataset="glyphs", protocol=QUICK, workers=1, reproductions=2, '
    'runs_dir=f"{WHERE}/runs", results_dir=f"{WHERE}/results"'
)


@pytest.fixture(scope="module")
def where(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shared: what the commands have done, the Python code finds done."""
    return tmp_path_factory.mktemp("readme")


@pytest.mark.slow
def test_the_first_commands_work_one_after_the_other(
    where: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (source,) = [block for block in blocks(README, "python") if block.startswith("# my_loss.py")]
    (where / "my_loss.py").write_text(source)
    monkeypatch.chdir(where)
    (block,) = [block for block in blocks(README) if block.startswith("harness search")]
    commands = [shlex.split(line, comments=True)[1:] for line in block.splitlines()]
    assert [command[0] for command in commands] == ["search", "eval", "verdict"]
    for command in commands:
        more = [word.format(where) for word in QUICKLY[command[0]]]
        assert main([*command, *more]) == 0, command
    printed = capsys.readouterr().out
    assert "best validation map@r" in printed and "Better than no" in printed
    (table,) = where.glob("results/*/glyphs-glyphnet/leaderboard.csv")
    (method,) = pd.read_csv(table).query("kind == 'reproduction'")["method"]
    assert method.startswith("my_loss@")


@pytest.mark.slow
def test_the_same_works_from_python(where: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = [block for block in blocks(README, "python") if "harness.search" in block]
    quick = re.sub(r"trials=\d+", "trials=2", code.replace('dataset="glyphs"', SETTINGS))
    assert quick.count("QUICK") == 2 and "trials=2" in quick
    file = where / "example.py"
    file.write_text(f"QUICK, WHERE = {QUICK!r}, {str(where)!r}\n{quick}")
    runpy.run_path(str(file), run_name="__main__")
    printed = capsys.readouterr().out
    assert "reference_weight" in printed and "ccp-c2" in printed
