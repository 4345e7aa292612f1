"""A loss file of one's own: found from any folder, with its helpers, kept as it was searched."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import folders_of

from harness import registry
from harness.cli import main
from harness.config import RunConfig, load_config
from harness.errors import HarnessError
from harness.records.layout import CONFIG, SOURCE
from harness.searching import loop
from harness.system import workers
from harness.training import jobs

MINE = """
from optuna.distributions import FloatDistribution
from pytorch_metric_learning.losses import TripletMarginLoss

class Mine(TripletMarginLoss):
    def forward(self, *batch):
        from mine_helper import scale
        return scale(super().forward(*batch))

SPACE = {"margin": FloatDistribution(0, 1)}
"""
HELPER = "def scale(loss):\n    return 2 * loss\n"

Search = Callable[..., int]


@pytest.fixture
def loss_file(tmp_path: Path) -> Path:
    place = tmp_path / "mine"
    place.mkdir()
    (place / "mine_helper.py").write_text(HELPER)
    (place / "mine.py").write_text(MINE)
    return place / "mine.py"


@pytest.fixture
def searched(
    loss_file: Path, folder_config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """The folder of a search that named the file as it is seen from beside it."""
    keys = ("dataset", "protocol", "trunk", "cache_dir", "runs_dir")
    flags = [f"--{key.replace('_', '-')}={getattr(folder_config, key)}" for key in keys]
    monkeypatch.chdir(loss_file.parent)
    command = ["search", "--loss", "mine.py", "--trials", "1", "--workers", "1", *flags]
    assert main(command) == 0
    monkeypatch.chdir(tmp_path)
    (folder,) = (tmp_path / "runs").glob("*/*/mine@*")
    return folder


@pytest.fixture
def evaluate(folder_config: RunConfig, tmp_path: Path) -> Search:
    how = ["--reproductions", "1", "--workers", "1", "--cache-dir", folder_config.cache_dir]
    return lambda *words: main(["eval", *words, *how, *folders_of(tmp_path)])


def test_an_edited_file_is_named_with_what_changed_and_what_was_searched_can_be_tested(
    searched: Path, loss_file: Path, evaluate: Search, capsys: pytest.CaptureFixture[str]
) -> None:
    helper = loss_file.with_name("mine_helper.py")
    helper.write_text(HELPER.replace("2", "3"))
    kept = searched / SOURCE / "mine.py"
    assert evaluate("--loss", str(loss_file)) == 2
    said = capsys.readouterr().err
    assert "mine.py was changed since it was searched:" in said
    assert "-    return 2 * loss\n" in said and "+    return 3 * loss\n" in said
    assert f"harness eval --loss {kept}" in said
    assert evaluate("--loss", str(kept)) == 0  # from there the helper comes, too
    assert searched.name in capsys.readouterr().out


@pytest.mark.parametrize("command", ["search", "eval"])
def test_a_file_that_is_edited_while_it_is_used_gives_no_record(
    searched: Path,
    loss_file: Path,
    evaluate: Search,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: str,
) -> None:
    """After all was checked, before the first worker begins."""
    run_workers = workers.run_workers

    def edit_first(*arguments: Any) -> None:
        loss_file.write_text(f"{MINE}# edited")
        run_workers(*arguments)

    monkeypatch.setattr(jobs, "run_workers", edit_first)
    if command == "search":
        config = load_config(searched / CONFIG)
        with pytest.raises(HarnessError, match="was changed while it was being used: it was mine@"):
            loop.search([RunConfig(**{**config, "trials": 2})])
    else:
        assert evaluate("--loss", str(loss_file)) == 2
        assert (
            "mine.py was changed while it was being used: it was mine@" in capsys.readouterr().err
        )
    assert list(searched.parent.glob("mine@*")) == [searched]  # nothing of the other one


def test_a_search_is_tested_from_any_folder_where_its_file_is_named(
    searched: Path, loss_file: Path, evaluate: Search, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate() == 0
    said = capsys.readouterr().out
    assert f"a loss file runs only if you name it: harness eval --loss {loss_file}" in said
    assert evaluate("--loss", searched.name) == 2
    assert "which runs only if you name it: --loss mine.py" in capsys.readouterr().err
    assert evaluate("--loss", str(loss_file)) == 0
    assert searched.name in capsys.readouterr().out
    assert main(["show", "--runs-dir", str(searched.parents[2])]) == 0


@pytest.mark.parametrize("with_source", [True, False])
def test_no_file_that_a_run_folder_names_is_run(
    searched: Path,
    evaluate: Search,
    loss_file: Path,
    tmp_path: Path,
    with_source: bool,
) -> None:
    """Somebody else edits the copy in the run folder, and lets its config name it."""
    assert evaluate("--loss", str(loss_file)) == 0
    hostile = searched / SOURCE / "mine.py" if with_source else tmp_path / "hostile.py"
    if not with_source:
        shutil.rmtree(searched / SOURCE)
    ran = tmp_path / "ran"
    hostile.write_text(f"open({str(ran)!r}, 'w')\n{MINE}")
    configs = [searched / CONFIG, *searched.glob("folds/*/config.yaml")]
    for path in configs:
        values = {**load_config(path), "loss": str(hostile)}
        path.write_text(yaml.safe_dump(values))
    assert evaluate() == 0
    assert evaluate("--loss", searched.name) == 2
    page = ["report", "--pictures", f"--output={tmp_path / 'page.html'}"]
    assert main([*page, *folders_of(tmp_path)]) in (0, 2)
    for command in ("show", "retry"):
        assert main([command, "--runs-dir", str(searched.parents[2])]) == 0
    assert not ran.exists()


def test_another_helper_makes_another_method(loss_file: Path) -> None:
    before = registry.load_method(str(loss_file))
    loss_file.with_name("mine_helper.py").write_text(HELPER.replace("2", "3"))
    assert registry.load_method(str(loss_file)).name != before.name


def test_helpers_of_the_same_name_are_those_beside_each_file(tmp_path: Path) -> None:
    for number in (1, 2):
        place = tmp_path / str(number)
        (place / "mine_parts").mkdir(parents=True)
        (place / "mine_parts" / "__init__.py").write_text("")
        (place / "mine_parts" / "sizes.py").write_text(f"SIZE = {number}\n")
        text = MINE.replace("class Mine", "from mine_parts.sizes import SIZE\n\nclass Mine")
        text = text.replace("from mine_helper import scale", "scale = float")
        (place / "mine.py").write_text(text.replace("(0, 1)", "(0, SIZE)"))
    highs = [
        registry.load_method(str(tmp_path / str(number) / "mine.py")).space("cub", 8)["margin"].high  # type: ignore[attr-defined]
        for number in (1, 2, 1)
    ]
    assert highs == [1, 2, 1]
