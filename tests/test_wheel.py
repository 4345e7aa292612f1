"""The package that pip builds works where there is no checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from made_records import put_scores

import harness

ROOT = Path(__file__).parents[1]
SOURCES = ("harness", "losses", "protocols", "results")
SEARCHED = "ms"  # in a table of results
FILES = ("setup.cfg", "pyproject.toml", "README.md", "LICENSE")


def run(*command: str | Path, cwd: Path, path: Path | None = None) -> str:
    """What a command prints; nothing of this checkout is on its path."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    env |= {"PYTHONPATH": str(path)} if path else {}
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package that a copy of the source code is built into."""
    work = tmp_path_factory.mktemp("wheel")
    source, target = work / "source", work / "target"
    for name in SOURCES:
        shutil.copytree(
            ROOT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__")
        )
    for name in FILES:
        shutil.copy(ROOT / name, source / name)
    put_scores(source / "results", SEARCHED, [0.3 + 0.01 * run for run in range(10)])
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    offline = ("--no-deps", "--no-index")
    run(*pip, "wheel", *offline, "--no-build-isolation", "-w", work, source, cwd=work)
    (wheel,) = work.glob("*.whl")
    assert wheel.name.startswith(f"metric_harness-{harness.__version__}-")
    run(*pip, "install", *offline, "--target", target, wheel, cwd=work)
    return target


@pytest.mark.slow
def test_the_papers_numbers_are_there_without_a_checkout(installed: Path, tmp_path: Path) -> None:
    where = "import harness; print(harness.__file__)"
    assert str(installed) in run(sys.executable, "-c", where, cwd=tmp_path, path=installed)
    text = run(sys.executable, "-m", "harness", "tables", "ccp", cwd=tmp_path, path=installed)
    assert "Deep Metric Learning with Chance Constraints" in text and "MAP@R 512" in text
    numbers = (ROOT / "results" / "published").glob("*.csv")
    carried = {path.name: path.read_bytes() for path in installed.glob("**/published/*.csv")}
    assert carried == {path.name: path.read_bytes() for path in numbers}


@pytest.mark.slow
def test_the_weights_of_the_embedded_trunk_come_with_the_package(installed: Path) -> None:
    carried = installed / "harness" / "trunks" / "glyphnet.pt"
    assert carried.read_bytes() == (ROOT / "harness" / "trunks" / "glyphnet.pt").read_bytes()


@pytest.mark.slow
def test_the_papers_figures_come_with_the_package(installed: Path, tmp_path: Path) -> None:
    files = {path.name: path.read_bytes() for path in (ROOT / "protocols/figures").iterdir()}
    folder = installed / "harness" / "protocols" / "figures"
    assert files and {path.name: path.read_bytes() for path in folder.iterdir()} == files
    listed = ("-m", "harness", "list", "figures")
    text = run(sys.executable, *listed, cwd=tmp_path, path=installed)
    assert all(f"  {name.removesuffix('.yaml')} " in text for name in files)


@pytest.mark.slow
def test_the_papers_settings_come_with_the_package(installed: Path, tmp_path: Path) -> None:
    files = {path.stem for path in (ROOT / "protocols/papers").iterdir()}
    code = "from harness.sweeping.paper_settings import load_papers as p; print(*sorted(p()))"
    text = run(sys.executable, "-c", code, cwd=tmp_path, path=installed)
    assert files and text.split() == sorted(files)


@pytest.mark.slow
def test_a_loss_can_be_held_against_those_that_were_searched(
    installed: Path, tmp_path: Path
) -> None:
    """The records of all tables come with the package."""
    put_scores(tmp_path / "results", "my_loss@12345678", [0.4 + 0.01 * run for run in range(10)])
    verdict = ("-m", "harness", "verdict", "my_loss")
    text = run(sys.executable, *verdict, cwd=tmp_path, path=installed)
    assert "ranks 1 of 2 on cub" in text and f"better than {SEARCHED}" in " ".join(text.split())
    assert "harness search --loss my_loss.py" in text


@pytest.mark.slow
def test_every_module_is_in_the_package(installed: Path) -> None:
    modules = {path.relative_to(ROOT) for path in ROOT.glob("harness/**/*.py")}
    for name in ("losses", "protocols"):
        beside = ROOT / name
        modules |= {Path("harness", name, p.relative_to(beside)) for p in beside.rglob("*.py")}
    missing = [path for path in modules if not (installed / path).exists()]
    assert len(modules) > 200 and missing == [] and (installed / "harness" / "py.typed").exists()


@pytest.mark.slow
def test_the_package_installs_one_import_name(installed: Path) -> None:
    names = {path.name for path in installed.iterdir() if not path.name.endswith(".dist-info")}
    assert names - {"bin"} == {"harness"}


@pytest.mark.slow
def test_the_version_of_the_package_is_that_of_the_code(installed: Path, tmp_path: Path) -> None:
    code = "from importlib.metadata import version; print(version('metric-harness'))"
    assert run(sys.executable, "-c", code, cwd=tmp_path, path=installed) == (
        f"{harness.__version__}\n"
    )
