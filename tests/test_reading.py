"""Commands on tables work with the packages of requirements/read.txt alone, without torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from made_tables import put_table
from test_dependencies import ROOT, requirements

READ = requirements((ROOT / "requirements" / "read.txt").read_text())
NEEDED = requirements(section="install_requires")

# Runs each command of a list, in one interpreter that cannot import some modules.
SCRIPT = """
import json, sys
from importlib.machinery import PathFinder
commands, blocked = json.loads(sys.argv[1])
class Finder(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        hidden = name.partition(".")[0] in blocked
        return None if hidden else super().find_spec(name, path, target)
sys.meta_path = [Finder if one is PathFinder else one for one in sys.meta_path]
import harness
from harness.cli import main
print(json.dumps([main(command) for command in commands]), file=sys.stderr)
"""
BLOCKED = (
    *("torch", "torchvision", "pytorch_metric_learning", "timm", "huggingface_hub"),
    *("faiss", "sklearn", "greenlet"),
)


def run(*commands: list[str], blocked: tuple[str, ...] = BLOCKED) -> tuple[list[int], str]:
    """Exit codes of some commands, and all that they say as errors."""
    script = (sys.executable, "-c", SCRIPT, json.dumps([commands, blocked]))
    done = subprocess.run(script, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    *said, codes = done.stderr.splitlines()
    return json.loads(codes), "\n".join(said)


def test_the_list_for_readers_repeats_the_bounds_of_the_package() -> None:
    assert READ.items() <= NEEDED.items()


def test_tables_are_read_without_torch_and_faiss(tmp_path: Path) -> None:
    results, merged = tmp_path / "results", tmp_path / "merged"
    put_table(results, methods=("ms", "triplet"))
    where = ["--results-dir", str(results)]
    codes, said = run(
        *([["list", name] for name in ("datasets", "protocols", "figures")]),
        ["leaderboard", "--published", *where],
        ["compare", "ms", "triplet", "--dataset", "cub", *where],
        ["verdict", "ms", *where],
        ["verdict", *where, "--json"],
        ["report", *where, "--output", str(tmp_path / "page.html")],
        ["plot", "scores", "--dataset", "cub", *where, "--output", str(tmp_path / "x.pdf")],
        ["tables", "ccp"],
        ["merge", str(results), "--results-dir", str(merged)],
    )
    assert not any(codes), said
    assert list(merged.glob("**/leaderboard.csv"))


@pytest.mark.parametrize("command", ["search --loss ms", "train --loss ms", "list losses"])
def test_what_trains_says_which_module_is_missing(command: str) -> None:
    codes, said = run(command.split(), blocked=("torch",))
    assert codes == [2]
    assert "needs the Python module torch, which is not installed" in said
    assert "Traceback" not in said


def test_nmi_without_faiss_is_refused_before_any_work() -> None:
    codes, said = run(["eval", "--metrics", "nmi"], blocked=("faiss",))
    assert codes == [2], said
    assert "nmi needs faiss" in said


def test_a_name_that_only_losses_know_is_refused_with_the_rows(tmp_path: Path) -> None:
    put_table(tmp_path, methods=("ccp-c2", "triplet"))
    where = ["--dataset", "cub", "--results-dir", str(tmp_path)]
    codes, said = run(["compare", "ccp", "triplet", *where])
    assert codes == [2], said
    assert "Did you mean 'ccp-c2'?" in said
