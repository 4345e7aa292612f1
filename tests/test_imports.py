"""Imports point one way, and the light commands stay light."""

from __future__ import annotations

import ast
import inspect
import os
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from made_tables import put_table

import harness
from harness import losses
from harness.errors import HarnessError
from harness.registry import CATEGORIES

ROOT = Path(__file__).parent.parent

# What is directly in `harness`, lowest first: a file imports what is in its own layer or below.
LAYERS = (
    *(
        ("errors", "foreign_files", "plain_text", "redact", "typed", "plain_yaml", "config"),
        ("system",),
        ("cluster",),
        ("metrics",),
        ("records",),
        ("judgement",),
        ("tables",),
        ("verdicts",),
    ),
    *(
        (
            "old_import_names",
            "loss_file",
            "imported_features",
            "registry",
            "event_log",
            "split_file",
            "experiment",
        ),
        ("model",),
        ("data",),
        ("training",),
    ),
    *(
        ("searching",),
        ("evaluation",),
        ("calibration", "exported", "sweeping"),
        ("report",),
        ("cli",),
    ),
    ("__init__", "__main__", "testing"),
)
RANKS = {name: rank for rank, names in enumerate(LAYERS) for name in names}

# Raised by losses, protocols, data sets and trunks, too.
ERRORS = "harness.errors"

# What is registered by name is beside the layers.
BESIDE = tuple(category.package for category in CATEGORIES.values())


def files_of(folder: str) -> list[Path]:
    """The Python files of a folder, without those behind a link."""
    folders = os.walk(ROOT / folder)
    return sorted(
        Path(where, name) for where, _, names in folders for name in names if name.endswith(".py")
    )


# The folders of the packages, with what their modules are called.
PACKAGES = {"harness": "harness", "losses": "harness.losses", "protocols": "harness.protocols"}


def name_of(path: Path) -> str:
    folder, *parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join([PACKAGES[folder], *parts]).removesuffix(".__init__")


MODULES = {name_of(path): path for folder in PACKAGES for path in files_of(folder)}


def imported_by(path: Path) -> set[str]:
    """Our modules named in an import statement of a file, inside of functions, too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.module and not node.level, f"{path}: relative imports hide where they go"
            both = [(f"{node.module}.{alias.name}", node.module) for alias in node.names]
            found |= {one if one in MODULES else other for one, other in both}
    return found & set(MODULES)


EDGES = {name: imported_by(path) for name, path in MODULES.items()}


def within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def beside(module: str) -> str | None:
    """The package beside the layers that a module is in."""
    return next((package for package in BESIDE if within(module, package)), None)


def rank_of(module: str) -> int:
    return RANKS["__init__" if module == "harness" else module.split(".")[1]]


def test_every_part_of_the_harness_has_a_layer() -> None:
    parts = {info.name for info in pkgutil.iter_modules(harness.__path__)}
    assert parts - {name.rpartition(".")[2] for name in BESIDE} <= set(RANKS)


def test_no_import_points_upward() -> None:
    upward = [
        f"{module} -> {other}"
        for module, others in EDGES.items()
        for other in others
        if not beside(module) and not beside(other) and rank_of(other) > rank_of(module)
    ]
    assert upward == []


def test_no_import_goes_round_in_a_circle() -> None:
    assert len(list(TopologicalSorter(EDGES).static_order())) == len(MODULES)


def test_losses_protocols_data_sets_and_trunks_import_only_errors_of_the_rest() -> None:
    reaching = [
        f"{module} -> {other}"
        for module, others in EDGES.items()
        for other in others
        if beside(module) and not within(other, beside(module) or "") and other != ERRORS
    ]
    assert reaching == []
    assert EDGES[ERRORS] == set()


def exports(module: str, name: str) -> bool:
    """Whether a module registers something."""
    nodes = ast.parse(MODULES[module].read_text()).body
    assigned = [t for n in nodes if isinstance(n, ast.Assign) for t in n.targets]
    assigned += [n.target for n in nodes if isinstance(n, ast.AnnAssign)]
    return any(isinstance(target, ast.Name) and target.id == name for target in assigned)


def test_what_is_registered_is_reached_by_name_alone() -> None:
    """The harness knows what a method or a data set is like, and none in particular."""
    registered = {
        module
        for category in CATEGORIES.values()
        for module in MODULES
        if within(module, category.package) and exports(module, category.export)
    }
    assert len(registered) > len(CATEGORIES)
    reaching = {
        f"{module} -> {other}"
        for module, others in EDGES.items()
        for other in others & registered
        if not beside(module)
    }
    assert reaching == set()


def test_no_module_has_the_name_of_a_public_function() -> None:
    """Importing it would put the module in the place of the function."""
    parts = {info.name for info in pkgutil.iter_modules(harness.__path__)}
    assert harness.__all__ and not parts & set(harness.__all__)


@pytest.mark.parametrize("name", harness.__all__)
def test_a_public_function_can_be_called_again(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        with pytest.raises(HarnessError):
            getattr(harness, name)("no-such-loss", *(["folder"] if name == "export" else []))
        assert inspect.isfunction(getattr(harness, name))


def test_only_the_command_line_prints_or_exits() -> None:
    for path in files_of("harness"):
        calls = [n.func for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)]
        names = {call.id for call in calls if isinstance(call, ast.Name)}
        names |= {call.attr for call in calls if isinstance(call, ast.Attribute)}
        if path.parent.name != "cli" and path.name != "__main__.py":
            assert not names & {"print", "exit"}, path


def modules_after(*statements: str) -> list[set[str]]:
    """What one new interpreter has loaded after each of some statements."""
    tell = "print('loaded:', *sys.modules)"
    code = "\n".join(["import sys", *(f"{statement}\n{tell}" for statement in statements)])
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    return [set(line.split()[1:]) for line in lines if line.startswith("loaded:")]


def torch_free(folder: Path) -> Iterator[str]:
    """What must never wait for torch: modules, and commands on results in a folder."""
    yield "import harness"
    about_results = [f"harness.{name}" for name in ("records", "judgement", "tables", "verdicts")]
    yield from (f"import {m}" for m in MODULES if any(within(m, name) for name in about_results))
    light = ("harness.metrics.names", "harness.losses.method", "harness.config")
    yield from (f"import {module}" for module in light)
    report = [m for m in MODULES if within(m, "harness.report")]
    with_models = [
        f"harness.report.{name}" for name in ("galleries", "neighbours", "stage_maps", "moons")
    ]
    yield from (f"import {module}" for module in report if module not in with_models)
    main = "__import__('harness.cli').cli.main"
    yield f"{main}(['--help'])"
    where = f"'--results-dir', r'{folder}'"
    yield f"assert {main}(['compare', 'ms', 'triplet', '--dataset', 'cub', {where}]) == 0"
    yield f"assert {main}(['report', {where}, '--output', r'{folder / 'page.html'}']) == 0"


def test_light_work_does_not_import_torch(tmp_path: Path) -> None:
    put_table(tmp_path, methods=("ms", "triplet"))
    statements = list(torch_free(tmp_path))
    for statement, loaded in zip(statements, modules_after(*statements), strict=True):
        assert "harness" in loaded
        assert "torch" not in loaded, statement


def test_a_loss_class_can_be_had_from_the_package() -> None:
    assert harness.CCPLoss is losses.CCPLoss
