"""The documentation site is built without a warning, and its wording is checked."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from documents import ROOT


@pytest.mark.slow
def test_the_site_builds_strictly_and_asks_no_other_host(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    home = (tmp_path / "index.html").read_text()
    assert 'src="https://' not in home and 'rel="stylesheet" href="https://' not in home
    assert "harness verdict" in (tmp_path / "reference" / "commands.html").read_text()
    assert "harness.search" in (tmp_path / "reference" / "python.html").read_text()
    assert (
        tmp_path / "results" / "frozen" / "cub-efficientnet_lite0" / "leaderboard.html"
    ).exists()


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("Whoever changes it gets another name.", "Whoever"),
        (" ".join(["word"] * 36) + ".", "36 words"),
        ("| a | b | c | d | e | f | g |\n|---|---|---|---|---|---|---|", "7 columns"),
        ("## And this is what happened to us on that day.", "heading"),
        ("A row marked ≡ coincides.", "≡"),
    ],
)
def test_the_checker_finds(text: str, rule: str, tmp_path: Path) -> None:
    checker = runpy.run_path(str(ROOT / "docs" / "check_words.py"))
    document = tmp_path / "page.md"
    document.write_text(f"# Title\n\n{text}\n")
    checker["check"].__globals__["ROOT"] = tmp_path
    (problem,) = checker["check"](document)
    assert problem.startswith("page.md:3: ") and rule in problem


def test_code_blocks_are_not_checked(tmp_path: Path) -> None:
    checker = runpy.run_path(str(ROOT / "docs" / "check_words.py"))
    document = tmp_path / "page.md"
    document.write_text("# Title\n\n```\nwhoever is in vain\n```\n\nA `whoever` in code.\n")
    checker["check"].__globals__["ROOT"] = tmp_path
    assert list(checker["check"](document)) == []
