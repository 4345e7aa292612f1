"""The package has one import name, `harness`, and is not confused by files of other projects."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import harness
from harness import registry
from harness.losses import CCPLoss
from harness.losses.method import Method

ROOT = Path(harness.__file__).parents[1]

OLD_STYLE = """
from losses.method import Method, Preset
import protocols.splits

def build(num_classes, embedding_size):
    from losses import CCPLoss
    return CCPLoss

METHODS = (
    Method(
        name="old_style",
        paper="none",
        build_loss=build,
        space=lambda dataset, num_classes: {},
        presets={"mlrc": {"cub": Preset({})}},
    ),
)
"""


def run_python(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([".", str(ROOT)])
    env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True)


@pytest.fixture
def other_project(tmp_path: Path) -> Path:
    """A folder with modules of our old names, which must not run."""
    (tmp_path / "losses").mkdir()
    for name in ("losses.py", "losses/__init__.py", "losses/method.py", "protocols.py"):
        (tmp_path / name).write_text("raise RuntimeError('a file of the other project was run')")
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ("-m", "harness", "list", "losses"),
        ("script.py",),
        (str(Path(sys.executable).with_name("harness")), "list", "losses"),
    ],
    ids=["module", "script", "command"],
)
def test_files_of_another_project_are_left_alone(
    other_project: Path, arguments: tuple[str, ...]
) -> None:
    (other_project / "script.py").write_text(
        "import harness\nprint(harness.train('ccp', protocol='mlrc+max_steps=1', folds=1))"
    )
    done = run_python(*arguments, cwd=other_project)
    assert done.returncode == 0, done.stderr
    assert "ccp-c2" in done.stdout
    assert "other project" not in done.stdout + done.stderr


@pytest.mark.parametrize("name", ["losses", "protocols"])
def test_the_old_name_fails_with_the_new_one(name: str) -> None:
    done = run_python("-c", f"import {name}", cwd=ROOT)
    assert done.returncode == 1
    assert f"imported as `harness.{name}`, not as `{name}`" in done.stderr.splitlines()[-1]


def test_a_checkout_without_links_works(tmp_path: Path) -> None:
    """On Windows, git writes a link as a text file."""
    for name in ("harness", "losses", "protocols"):
        unused = shutil.ignore_patterns("__pycache__", "stored")
        shutil.copytree(ROOT / name, tmp_path / name, ignore=unused)
    for name in ("losses", "protocols"):
        shutil.rmtree(tmp_path / "harness" / name)
        (tmp_path / "harness" / name).write_text(f"../{name}")
    code = "from harness import registry, losses; registry.load_method('ccp'); print(losses)"
    done = run_python("-c", code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert str(tmp_path / "losses") in done.stdout


def test_a_loss_file_of_the_old_names_gets_the_same_modules(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "old_style.py"
    path.write_text(OLD_STYLE)
    method = registry.load_method(str(path))
    assert isinstance(method, Method) and method.build_loss(1, 1) is CCPLoss
    assert method.name == f"old_style@{registry.digest_of({path.name: OLD_STYLE.encode()})}"
    (line,) = caplog.messages
    assert f"{path} imports " in line and "harness." in line


def test_a_plug_in_of_the_old_names_gets_the_same_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "old_plugin.py").write_text(OLD_STYLE)
    monkeypatch.syspath_prepend(tmp_path)
    point = EntryPoint("old", "old_plugin", "harness.losses")
    monkeypatch.setattr(
        registry, "entry_points", lambda group: [point] if group == point.group else []
    )
    registry.items.cache_clear()
    try:
        assert registry.load_method("old_style").build_loss(1, 1) is CCPLoss
    finally:
        registry.items.cache_clear()


def test_a_module_beside_a_loss_file_takes_precedence_and_counts_among_its_sources(
    tmp_path: Path,
) -> None:
    loss, beside = tmp_path / "mine.py", tmp_path / "losses.py"
    loss.write_text("from losses import Base\nclass Mine(Base): ...\nSPACE = {}\n")
    beside.write_text("from pytorch_metric_learning.losses import TripletMarginLoss as Base\n")
    before = registry.load_method(str(loss))
    beside.write_text("from pytorch_metric_learning.losses import ContrastiveLoss as Base\n")
    after = registry.load_method(str(loss))
    assert before.name != after.name
    assert "ContrastiveLoss" in str(type(after.build_loss(1, 1)).__mro__)


def test_a_loss_file_leaves_the_modules_of_a_script_alone(tmp_path: Path) -> None:
    """A script with a `losses` of its own may search an old loss file of another folder."""
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    for folder in (project, elsewhere):
        folder.mkdir()
    (project / "losses.py").write_text("MINE = True")
    (elsewhere / "old_style.py").write_text(OLD_STYLE)
    script = (
        "from harness import registry\n"
        f"registry.load_method({str(elsewhere / 'old_style.py')!r})\n"
        "import losses\nprint(losses.MINE)"
    )
    done = run_python("-c", script, cwd=project)
    assert done.stdout == "True\n", done.stderr
