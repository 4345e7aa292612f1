"""What failed says so: no failure looks like success."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from conftest import FOLDER

import harness
from harness import registry
from harness.cli import main
from harness.config import RunConfig
from harness.datasets import folder
from harness.errors import HarnessError
from harness.evaluation import runs
from harness.experiment import build_experiment
from harness.searching.loop import search
from harness.training.trainer import TrainingFailed
from harness.training.unit import Unit


@pytest.fixture
def searched(folder_config: RunConfig) -> RunConfig:
    config = folder_config.updated({"trials": 1})
    search([config])
    return config


def fail_folds(monkeypatch: pytest.MonkeyPatch, repetition: int) -> None:
    """Of one reproduction."""
    run = runs.run_fold

    def failing(unit: Unit, *arguments: Any, **more: Any) -> Any:
        if unit.repetition == repetition:
            raise TrainingFailed("ZeroDivisionError: mine")
        return run(unit, *arguments, **more)

    monkeypatch.setattr(runs, "run_fold", failing)


def test_eval_exits_with_2_when_a_reproduction_failed(
    searched: RunConfig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--runs-dir", searched.runs_dir, "--results-dir", searched.results_dir]
    given = ["eval", *where, "--workers", "1", "--reproductions", "2", "--device", "cpu"]
    with monkeypatch.context() as patched:
        fail_folds(patched, repetition=2)
        assert main(given) == 2
    said = capsys.readouterr()
    assert "not everything could be evaluated" in said.err
    assert "proxyanchor, reproduction 2: ZeroDivisionError: mine" in said.err
    assert "proxyanchor" in said.out  # the table has the other one
    assert main(given) == 0


def test_evaluate_from_python_returns_and_warns_of_what_failed(
    searched: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {
        **{"runs_dir": searched.runs_dir, "results_dir": searched.results_dir},
        **{"workers": 1, "reproductions": 2, "device": "cpu"},
    }
    with monkeypatch.context() as patched:
        fail_folds(patched, repetition=2)
        with pytest.warns(UserWarning, match="reproduction 2: ZeroDivisionError: mine"):
            boards = harness.evaluate(**settings)  # type: ignore[arg-type]
    assert "proxyanchor, reproduction 2: ZeroDivisionError: mine" in boards.problems
    assert len(boards) == 1
    assert harness.evaluate(**settings).problems == []  # type: ignore[arg-type]


@pytest.mark.parametrize("code", ["sys.exit(0)", "raise SystemExit", "quit()"])
@pytest.mark.parametrize("place", ["at import", "when it is built"])
def test_a_loss_file_that_exits_does_not_end_everything_silently(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], code: str, place: str
) -> None:
    inside = code if place == "when it is built" else "super().__init__()"
    path = tmp_path / "mine.py"
    path.write_text(
        "import sys\nfrom pytorch_metric_learning.losses import TripletMarginLoss\n"
        f"class Mine(TripletMarginLoss):\n    def __init__(self):\n        {inside}\n"
        + (f"{code}\n" if place == "at import" else "")
    )
    assert main(["search", "--loss", str(path), "--runs-dir", str(tmp_path / "runs")]) == 2
    said = capsys.readouterr().err
    assert "SystemExit" in said and "mine" in said


@pytest.mark.parametrize("name", ["loss_lr", "head_lr", "trunk_lr", "alpha"])
@pytest.mark.parametrize("command", ["search", "train"])
def test_a_negative_rate_or_scale_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, command: str
) -> None:
    given = [command, "--loss", "proxyanchor", "--set", f"params.{name}=-1"]
    assert main([*given, "--runs-dir", str(tmp_path / "runs")]) == 2
    assert f"{name} must not be negative, got -1" in capsys.readouterr().err


def test_a_path_behind_an_embedded_data_set_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for spec in ("glyphs:x", "glyphs:"):
        with pytest.raises(HarnessError, match="'glyphs' is embedded and has no path"):
            registry.load_dataset(spec)
    assert main(["data", "check", "glyphs:x"]) == 2


@pytest.mark.parametrize("place", ["cover.png", "class_03/more/7.png", "class_03/a/b/8.JPG"])
def test_an_image_that_is_of_no_class_is_refused_by_name(image_folder: Path, place: str) -> None:
    path = image_folder / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes((image_folder / "class_00" / "0.png").read_bytes())
    with pytest.raises(ValueError, match=f"1 images in .* are in no class folder:\n  {place}\n"):
        folder.list_images(image_folder)


def test_a_link_to_nothing_is_a_missing_image(
    image_folder: Path, tmp_path: Path, folder_config: RunConfig
) -> None:
    os.symlink(tmp_path / "gone.png", image_folder / "class_03" / "link.png")
    listing = folder.list_images(image_folder)
    assert [listing.names[i] for i in listing.missing] == ["class_03/link.png"]
    with pytest.raises(HarnessError, match=r"1 of the 81 images .* missing:\n  class_03/link.png"):
        build_experiment(folder_config)
    assert build_experiment(folder_config.updated({"allow_missing": True})).listing.missing
    assert main(["data", "check", f"folder:{image_folder}"]) == 2


@pytest.mark.parametrize("name", [".ipynb_checkpoints", "__MACOSX", "@eaDir", ".thumbnails"])
def test_what_systems_leave_behind_is_neither_class_nor_image(
    image_folder: Path, name: str
) -> None:
    before = folder.list_images(image_folder)
    for place in (image_folder / name, image_folder / "class_00" / name):
        place.mkdir()
        (place / "0.png").write_bytes(b"")
    (image_folder / "class_00" / "._0.png").write_bytes(b"")
    after = folder.list_images(image_folder)
    assert after.names == before.names and after.class_names == before.class_names


def test_links_to_images_and_folders_still_count(image_folder: Path, tmp_path: Path) -> None:
    os.rename(image_folder / "class_03", tmp_path / "elsewhere")
    os.symlink(tmp_path / "elsewhere", image_folder / "class_03")
    os.symlink(tmp_path / "elsewhere" / "0.png", image_folder / "class_04" / "link.png")
    listing = folder.list_images(image_folder)
    assert len(listing.names) == 81 and listing.missing == ()


def test_the_protocol_of_these_tests_is_a_real_one() -> None:
    assert registry.load_protocol(FOLDER, "folder").max_steps == 4
