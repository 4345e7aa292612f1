"""Imports point one way, and the light commands stay light."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def imported_by(path: Path) -> set[str]:
    """Every module named in an import statement of a file, wherever it stands."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def files_of(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


@pytest.mark.parametrize("own", ["losses", "protocols", "harness.datasets", "harness.trunks"])
def test_parts_import_nothing_from_the_orchestrator(own: str) -> None:
    files = files_of(own.replace(".", "/"))
    assert files
    for path in files:
        for module in imported_by(path):
            if any(within(module, package) for package in ("harness", "losses", "protocols")):
                assert within(module, own), path


def test_only_the_registry_reaches_losses_and_protocols() -> None:
    reaching = {
        path.relative_to(ROOT).as_posix()
        for path in files_of("harness")
        for module in imported_by(path)
        if within(module, "losses") or within(module, "protocols")
    }
    # harness/__init__.py hands out loss classes lazily.
    assert reaching == {"harness/registry.py", "harness/__init__.py"}


def test_only_the_command_line_prints_or_exits() -> None:
    for path in files_of("harness"):
        calls = [n.func for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)]
        names = {call.id for call in calls if isinstance(call, ast.Name)}
        names |= {call.attr for call in calls if isinstance(call, ast.Attribute)}
        if path.parent.name != "cli" and path.name not in ("__main__.py", "display.py"):
            assert not names & {"print", "exit"}, path


MAIN = "from harness.cli import main; main"


def modules_after(statement: str) -> set[str]:
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    command = [sys.executable, "-c", code]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())


@pytest.mark.parametrize(
    "statement",
    [
        "import harness",
        f"{MAIN}(['--help'])",
        "from harness.results import leaderboard, rendering",
        f"{MAIN}(['compare', 'proxygml', 'proxyanchor', '--results-dir', r'{ROOT / 'results'}'])",
        "from harness.config import RunConfig",
    ],
)
def test_light_work_does_not_import_torch(statement: str) -> None:
    loaded = modules_after(statement)
    assert "harness" in loaded
    assert "torch" not in loaded


def test_a_loss_class_can_be_had_from_the_package() -> None:
    assert "torch" in modules_after("from harness import CCPLoss")
