"""Mistakes and mishaps that once looked like a bug of ours end with a message, or work."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import study_of

from harness.cli import main
from harness.config import RunConfig
from harness.errors import HarnessError
from harness.experiment import build_experiment
from harness.loss_file import check_helpers
from harness.searching.loop import search

ROOT = Path(__file__).parents[2]

LOSS = """
import os
from pytorch_metric_learning.losses import TripletMarginLoss

class Mine(TripletMarginLoss):
    calls = 0
    def forward(self, *arguments, **more):
        Mine.calls += 1
        {statement}
        return super().forward(*arguments, **more)
"""


def write_loss(folder: Path, statement: str) -> Path:
    """A loss file that runs a statement in every step."""
    path = folder / "mine.py"
    path.write_text(LOSS.format(statement=statement))
    return path


def said_by(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What a command that ends with exit code 2 says."""
    assert main(list(arguments)) == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("command", [["search", "--loss", "ms", "--dataset"], ["data", "check"]])
def test_a_home_that_does_not_exist_is_a_folder_that_does_not_exist(
    capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    assert "~nobody-here/x" in said_by(capsys, *command, "folder:~nobody-here/x")


def test_no_path_is_expanded_by_the_function_that_raises() -> None:
    """Path.expanduser raises RuntimeError for an unknown user, os.path.expanduser never does."""
    wrong = [path for path in (ROOT / "harness").rglob("*.py") if ".expanduser()" in _code(path)]
    assert wrong == []


def _code(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def test_params_of_a_config_file_must_be_names_and_values(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.yaml").write_text("params: 3")
    given = ["--config", str(tmp_path / "config.yaml"), "--set", "params.margin=0.1"]
    assert "params must hold `name: value` lines, got 3" in said_by(
        capsys, "search", "--loss", "triplet", *given
    )


@pytest.mark.parametrize("error", ["GeneratorExit('mine')", "type('Odd', (BaseException,), {})()"])
def test_whatever_a_loss_raises_in_its_first_step_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], error: str
) -> None:
    loss = write_loss(tmp_path, f"raise {error}")
    said = said_by(capsys, "search", "--loss", str(loss), "--runs-dir", str(tmp_path / "runs"))
    assert "fails in its first step" in said and "mine.py" in said


def test_a_loss_that_raises_generator_exit_later_fails_its_trial(
    folder_config: RunConfig, tmp_path: Path
) -> None:
    late = "exec('raise GeneratorExit') if Mine.calls > 5 else None"
    config = folder_config.updated({"loss": str(write_loss(tmp_path, late)), "trials": 1})
    with pytest.raises(HarnessError, match=r"no trial of mine@.* completed: GeneratorExit"):
        search([config])


@pytest.mark.parametrize("name", ["torch", "json", "faiss"])
def test_a_file_beside_a_loss_cannot_take_the_place_of_a_library(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    loss = write_loss(tmp_path, f"import {name}")
    (tmp_path / f"{name}.py").write_text("raise AssertionError('it ran')")
    said = said_by(capsys, "search", "--loss", str(loss), "--runs-dir", str(tmp_path / "runs"))
    assert f"imports '{name}' from beside it" in said


def test_other_names_beside_a_loss_stay_allowed() -> None:
    check_helpers(Path("mine.py"), ["helpers", "helpers.norms", "losses", "my_torch", "pytest"])


def test_a_loss_that_forks_trains_once(folder_config: RunConfig, tmp_path: Path) -> None:
    """A process that it forks ends where the step ends, and writes nothing."""
    counted = f"os.fork() or open({str(tmp_path / 'forks')!r}, 'a').write('x')"
    config = folder_config.updated({"loss": str(write_loss(tmp_path, counted)), "trials": 1})
    before = os.getpid()
    (summary,) = search([config])
    assert os.getpid() == before  # else a forked process came out here and runs the other tests
    assert (summary.trials, summary.failed) == (1, 0)
    assert len(study_of(build_experiment(config)).trials()) == 1
    steps = 4 * 4 + 3  # of four folds, and of the check before them
    assert len((tmp_path / "forks").read_text()) == steps


def run_harness(redirection: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A command in a new process, with streams as a shell redirects them."""
    command = f'exec "$0" -m harness "$@" {redirection}'
    return subprocess.run(
        ["sh", "-c", command, sys.executable, *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


@pytest.mark.slow
@pytest.mark.parametrize("redirection", [">&-", "2>&-", ">&- 2>&- <&-"])
def test_closed_streams_change_no_search(
    folder_config: RunConfig, tmp_path: Path, redirection: str
) -> None:
    (tmp_path / "config.yaml").write_text(folder_config.updated({"trials": 2}).to_yaml())
    given = ["--config", str(tmp_path / "config.yaml"), "--workers", "2"]
    done = run_harness(redirection, "search", *given, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(study_of(build_experiment(folder_config)).counted()) == 2


@pytest.mark.slow
@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full", ">&-", ">/dev/full 2>&-"])
def test_an_error_keeps_its_exit_code_if_it_cannot_be_printed(
    tmp_path: Path, redirection: str
) -> None:
    assert run_harness(redirection, "search", "--loss", "none", cwd=tmp_path).returncode == 2
