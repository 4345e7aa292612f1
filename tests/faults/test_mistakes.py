"""Mistakes of users and surprises of their machines: each is a message that says what to do."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from conftest import FOLDER, write_images
from ends import run
from failing_calls import read_only
from made_tables import put_table
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from harness import registry
from harness.config import RunConfig, load_config
from harness.errors import HarnessError
from harness.evaluation.reproductions import evaluate
from harness.experiment import Experiment
from harness.records import provenance
from harness.searching.loop import search
from harness.searching.samplers import grid, sobol
from harness.training import trainer

LOSS = """
from optuna.distributions import *
from pytorch_metric_learning.losses import TripletMarginLoss

class Mine(TripletMarginLoss):
    pass

"""


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("SPACE = {'margin': (0, 1)}", r"margin is searched in .*FloatDistribution\(0, 1\)"),
        ("SPACE = {'margin': None}", "margin is searched in"),
        ("SPACE = {'margin': FloatDistribution(0, float('inf'))}", "margin is .* finite numbers"),
        ("SPACE = {'margin': CategoricalDistribution([1.0, float('nan')])}", "finite numbers"),
        (
            "SPACE = {'margn': FloatDistribution(0, 1)}",
            "'margn', which Mine does not take; did you mean 'margin'",
        ),
        ("SPACE = [1]", "a space maps parameters"),
        ("METHODS = 3", "METHODS of .* must be a tuple"),
        ("METHODS = (Mine,)", "METHODS of .* must be a tuple"),
        ("METHODS = {}", "METHODS of .* must be a tuple"),
        ("METHODS = ()", "must hold one method, got 0"),
        ("1 / 0", r"ZeroDivisionError.*mine\.py, line 8"),
        (
            "from harness.losses.method import Method, Preset\n"
            "METHODS = (Method('m', 'p', lambda num_classes, embedding_size: None,\n"
            "                  lambda data, n: 1 / 0, {'mlrc': {'cub': Preset({})}}),)",
            r"cannot be used: ZeroDivisionError.*mine\.py, line 10",
        ),
        (
            "from harness.losses.method import Method\n"
            "METHODS = (Method('m', 'p', lambda num_classes, embedding_size: None,\n"
            "                  lambda data, n: {}, None),)",
            "cannot be used: TypeError",
        ),
    ],
)
def test_what_is_wrong_in_a_loss_file_is_said(code: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(LOSS + code)
    with pytest.raises(HarnessError, match=says):
        registry.load_method(str(path))


@pytest.mark.parametrize("name", ["", "..", "../../evil", "a\\b", "a\nb"])
def test_a_method_is_named_by_what_can_be_a_folder(name: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        f"{LOSS}from harness.losses.method import Method, Preset\n"
        f"METHODS = (Method({name!r}, 'p', lambda num_classes, embedding_size: None,\n"
        "                  lambda data, n: {}, {'mlrc': {'cub': Preset({})}}),)"
    )
    with pytest.raises(HarnessError, match="a name is text in one line, without slashes"):
        registry.load_method(str(path))


def test_a_class_that_hands_its_arguments_on_takes_what_it_inherits(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "from optuna.distributions import *\n"
        "from pytorch_metric_learning.losses import ProxyAnchorLoss\n"
        "class Mine(ProxyAnchorLoss):\n"
        "    def __init__(self, factor=1.0, **kwargs):\n"
        "        super().__init__(**kwargs)\n"
        "SPACE = {'margin': FloatDistribution(0, 1), 'factor': FloatDistribution(0, 1)}"
    )
    method = registry.load_method(str(path))
    loss: Any = method.build_loss(5, 3, margin=0.25, factor=0.5)
    assert loss.proxies.shape == (5, 3) and loss.margin == 0.25
    assert "loss_lr" in method.space("cub", 8) and method.samples_per_class == 1


def test_a_folder_whose_name_is_no_text_is_refused_before_any_work(tmp_path: Path) -> None:
    for key in ("runs_dir", "dataset", "loss"):
        with pytest.raises(HarnessError, match=rf"{key} is not UTF-8: .*\\udcff; rename"):
            RunConfig(**{key: f"{tmp_path}/\udcff"})


def test_a_config_without_an_end_is_refused() -> None:
    end = run(["search", "--config", "/dev/zero"])
    assert end.code == 2 and "cannot read config /dev/zero: it is no file" in end.err


def test_a_config_may_come_through_a_pipe() -> None:
    """As of `--config <(echo ...)`."""
    there, here = os.pipe()
    os.write(here, b"trials: 1")
    os.close(here)
    assert load_config(Path(f"/dev/fd/{there}")) == {"trials": 1}
    os.close(there)


@pytest.mark.parametrize(
    ("single", "command", "more", "says"),
    [
        (range(6, 8), "search", "", "no class of the 2 validation classes of fold 0 of"),
        (range(8, 16), "eval", "--preset mlrc", "no class of the 8 test classes of"),
    ],
)
def test_classes_of_single_images_are_refused_before_any_training(
    single: range, command: str, more: str, says: str, tmp_path: Path
) -> None:
    write_images(tmp_path / "pictures", num_classes=16, per_class=3)
    for number in single:
        _, *others = sorted((tmp_path / "pictures" / f"class_{number:02}").iterdir())
        for path in others:
            path.unlink()
    end = run(
        [
            *(command, "--loss", "triplet", "--dataset", f"folder:{tmp_path / 'pictures'}"),
            *("--protocol", FOLDER, "--trunk", "convnet", "--runs-dir", str(tmp_path / "runs")),
            *("--device", "cpu", *more.split()),
        ]
    )
    assert end.code == 2
    assert says in end.err and "--split FILE" in end.err
    assert not list(tmp_path.rglob("record*.json"))


def test_a_space_of_nothing_is_a_space(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(f"{LOSS}SPACE = None")
    assert registry.load_method(str(path)).space("cub", 8) == {}


def test_a_space_with_steps_is_searched_on_its_steps() -> None:
    space: dict[str, Any] = {
        "margin": FloatDistribution(0.1, 0.9, step=0.2),
        "count": IntDistribution(1, 10, step=3),
        "kind": CategoricalDistribution(["a", None]),
    }
    for point in (*sobol(space, seed=0), *grid(space)):
        for name, value in point.items():
            assert space[name]._contains(space[name].to_internal_repr(value)), (name, value)


def test_a_loss_with_steps_starts_on_one(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(f"{LOSS}SPACE = {{'margin': FloatDistribution(0.0, 1.0, step=0.4)}}")
    method = registry.load_method(str(path))
    assert method.preset("mlrc", "cub").params["margin"] == pytest.approx(0.4)


def test_a_broken_plug_in_is_named_and_the_others_work(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    points = [EntryPoint("theirs", "no_such_package.loss", "harness.losses")]
    monkeypatch.setattr(registry, "entry_points", lambda group: points)
    registry.items.cache_clear()
    try:
        assert registry.load_method("triplet").name == "triplet"
        assert "plug-in theirs (no_such_package.loss) cannot be used" in caplog.text
    finally:
        registry.items.cache_clear()


def test_home_is_found_wherever_a_folder_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    config = RunConfig(loss="~/mine.py", runs_dir="~/runs", results_dir="~", split="~/split.yaml")
    assert config.loss == f"{tmp_path}/mine.py"
    assert (config.runs_dir, config.results_dir) == (f"{tmp_path}/runs", str(tmp_path))
    assert config.split == f"{tmp_path}/split.yaml"
    put_table(tmp_path / "results", "cub", ("ms", "triplet"))
    assert run(["leaderboard", "--results-dir=~/results"]).code == 0


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--workers", "10000"], "--workers 10000 is more than"),
        (["--protocol", "mlrc+threads=100000"], "threads must be a whole number <= 256"),
    ],
)
def test_more_than_a_machine_has_is_refused(flags: list[str], says: str, tmp_path: Path) -> None:
    end = run(["search", "--loss", "triplet", "--runs-dir", str(tmp_path), *flags])
    assert end.code == 2
    assert says in end.err


@pytest.mark.parametrize("name", [b"a\nb", b"\xff\xfe", b"a\rb"])
def test_a_class_whose_name_cannot_be_written_down_is_named(name: bytes, tmp_path: Path) -> None:
    write_images(tmp_path / "pictures", num_classes=4, per_class=2)
    os.rename(tmp_path / "pictures" / "class_00", os.fsencode(tmp_path / "pictures") + b"/" + name)
    end = run(["data", "check", f"folder:{tmp_path / 'pictures'}"])
    assert end.code == 2
    assert "rename it" in end.err


def test_a_name_of_255_bytes_is_named(tmp_path: Path) -> None:
    root = tmp_path / ("x" * 250)
    write_images(root, num_classes=16, per_class=2)
    end = run(
        [
            *("search", "--loss", "triplet", "--dataset", f"folder:{root}", "--device", "cpu"),
            *("--runs-dir", str(tmp_path / "runs"), "--protocol", FOLDER, "--trunk", "convnet"),
        ]
    )
    assert end.code == 2
    assert "too long" in end.err


def test_a_checkout_of_somebody_else_is_not_taken_for_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    expected = provenance.provenance()["commit"]
    monkeypatch.setenv("GIT_DIR", str(tmp_path / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(tmp_path))
    provenance._commit.cache_clear()
    assert provenance.provenance()["commit"] == expected


COMMANDS = {
    "leaderboard": ["leaderboard", "--published"],
    "compare": ["compare", "ms", "triplet", "--dataset", "cub"],
    "verdict": ["verdict", "ms", "--against", "none"],
    "report": ["report", "--output", "../report.html"],
    "plot": ["plot", "scores", "--dataset", "cub", "--output", "../scores.svg"],
    "tables": ["tables", "ccp"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_tables_are_shown_from_a_folder_that_nobody_may_write_to(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = tmp_path / "results"
    put_table(results, "cub", ("ms", "triplet"))
    monkeypatch.chdir(results)
    with read_only(monkeypatch, results):
        end = run([*COMMANDS[command], "--results-dir", str(results)])
    assert end.code == 0
    assert end.out
    assert ("left as they are" in end.err) == (command == "leaderboard")


def test_eval_finds_a_closed_folder_before_it_trains(
    folder_config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    search([folder_config.updated({"trials": 1})])

    def fit(*arguments: object) -> None:
        raise AssertionError("something was trained")

    monkeypatch.setattr(trainer.Trainer, "fit", fit)
    (tmp_path / "results").mkdir()
    where = {"runs_dir": folder_config.runs_dir, "results_dir": folder_config.results_dir}
    with (
        read_only(monkeypatch, tmp_path / "results"),
        pytest.raises(HarnessError, match=r"cannot write to .*results"),
    ):
        evaluate([], {**where, "workers": 1, "device": "cpu", "reproductions": 1})


def test_what_killed_writers_left_in_a_table_is_swept(tmp_path: Path) -> None:
    table = put_table(tmp_path, "cub", ("ms", "triplet"))
    left = [table / ".leaderboard.csv.1.unfinished", table / "records/ms/.x.json.1.unfinished"]
    fresh = table / "records/ms/.y.json.1.unfinished"
    for path in (*left, fresh):
        path.write_text("half")
    for path in left:
        os.utime(path, (0, 0))
    assert run(["leaderboard", "--results-dir", str(tmp_path)]).code == 0
    assert not any(path.exists() for path in left)
    assert fresh.exists()  # somebody may be writing it right now


def test_parameters_are_refused_however_large_they_are(
    make_experiment: Callable[..., Experiment],
) -> None:
    with pytest.raises(HarnessError, match="margin must be a number"):
        make_experiment(params={"margin": 10**400})
