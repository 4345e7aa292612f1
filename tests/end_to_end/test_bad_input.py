"""What cannot be run is refused by every command alike, with exit code 2 and before any work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import yaml
from conftest import FOLDER, write_images

from harness.cli import main

COMMANDS: Mapping[str, list[str]] = {
    "search": ["--trials", "1"],
    "train": [],
    "eval": ["--preset", "mlrc"],
    "sweep": ["--over", "params.margin=0.1,0.2"],
    "cost": [],
    "geometry": [],
}
SCHEDULES = {
    f"{FOLDER}+epochs=2": "give epochs or validate_every, not both, got 2 and 2",
    "two_stage+max_steps=9": "give epochs or max_steps, not both, got 40 and 9",
    "mlrc+patience=none": "training would never end: give epochs or max_steps",
    "mlrc-ccp+schedule=plateau+patience=none": "training would never end",
    "mlrc+schedule=multistep": "schedule=multistep needs lr_epochs",
}
SPLITS = {
    "no class named 'class_99'": {"train": ["0-9", "class_99"], "test": [10, 11]},
    "there are 16 classes, from 0 to 15, got 16": {"train": ["0-9"], "test": [15, 16]},
    "class 9 (class_09) is in `train` and `test`": {"train": ["0-9"], "test": ["9-12"]},
    "is in `validation` and `test`": {"train": ["0-7"], "validation": [8, 9], "test": [9, 10]},
    "four folds need at least 8 classes": {"train": ["0-6"], "test": [10, 11]},
    "`test` needs at least 2 classes, got 1": {"train": ["0-9"], "test": [10]},
}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("images") / "pictures"
    write_images(root)
    return root


@pytest.fixture
def refused(
    pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """What is said of a command on pictures, which leaves nothing behind."""

    def run(command: str, *flags: str, protocol: str = FOLDER) -> str:
        before = set(tmp_path.rglob("*"))
        what = ["--loss", "triplet", "--dataset", f"folder:{pictures}", "--trunk", "convnet"]
        places = ["runs", "cache"] + ["results"] * (command not in ("search", "train"))
        where = [word for name in places for word in (f"--{name}-dir", str(tmp_path / name))]
        how = ["--protocol", protocol, *COMMANDS[command], *flags]
        assert main([command, *what, *how, *where]) == 2
        assert set(tmp_path.rglob("*")) == before
        said = capsys.readouterr()
        assert said.out == "" and said.err.startswith("error: ")
        return said.err

    return run


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("protocol", SCHEDULES)
def test_a_length_that_is_none_or_two(
    command: str, protocol: str, refused: Callable[..., str]
) -> None:
    assert SCHEDULES[protocol] in refused(command, protocol=protocol)


@pytest.mark.parametrize("command", [command for command in COMMANDS if command != "cost"])
@pytest.mark.parametrize("message", SPLITS)
def test_a_split_of_classes_that_are_not_there_twice_or_too_few(
    command: str, message: str, refused: Callable[..., str], tmp_path: Path
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump(SPLITS[message]))
    said = refused(command, "--split", str(file))
    assert message in said and "mine.yaml" in said


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--max-points", "1"], "the grid has 2 points, more than --max-points 1"),
        (["--over", "params.smooth=1..101"], "the grid has 202 points, more than --max-points 200"),
        (["--figure", "proxygml-map", "--max-points", "9"], "points, more than --max-points 9"),
    ],
)
def test_a_grid_that_is_too_large(
    flags: list[str], message: str, refused: Callable[..., str]
) -> None:
    assert message in refused("sweep", *flags)
