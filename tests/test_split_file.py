"""Explicit class lists as a split: read, refused, and part of the identity."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from harness.cli import main
from harness.config import RunConfig
from harness.errors import HarnessError
from harness.experiment import Experiment, build_experiment
from harness.split_file import read_split

NAMES = [f"class {label}" for label in range(40)]


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def write(name: str = "mine", **parts: object) -> Path:
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump(parts))
        return path

    return write


def test_classes_are_named_numbered_or_ranges(write: Callable[..., Path]) -> None:
    path = write(train=["class 3", 0, "5-7"], validation=[1, 2], test=["20-22", "class 30"])
    split = read_split(path, NAMES, "mlrc")
    assert split.trainval == (0, 1, 2, 3, 5, 6, 7)
    assert split.test == (20, 21, 22, 30)
    (fold,) = split.folds
    assert fold.train == (0, 3, 5, 6, 7) and fold.val == (1, 2)


def test_without_validation_classes_the_protocol_cuts_its_folds(write: Callable[..., Path]) -> None:
    split = read_split(write(train=["0-11"], test=["20-29"]), NAMES, "balanced")
    assert [fold.val for fold in split.folds] == [(0, 1, 2), (3, 4, 5), (6, 7, 8), (9, 10, 11)]


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"train": ["class 41"], "test": [0]}, "no class named 'class 41'"),
        ({"train": ["clas 3"], "test": [0]}, "Did you mean 'class"),
        ({"train": [40, 1], "test": [0]}, "there are 40 classes, from 0 to 39, got 40"),
        ({"train": ["30-50"], "test": [0]}, "from 0 to 39, got 30-50"),
        ({"train": ["0-11"], "test": ["11-20"]}, r"class 11 \(class 11\) is in `train` and `test`"),
        ({"train": ["0-11", 3], "test": [20, 21]}, "class 3 .* is in `train` twice"),
        (
            {"train": ["0-11"], "validation": [20], "test": [22, 23]},
            "`validation` needs at least",
        ),
        ({"train": ["0-11"], "test": [20]}, "`test` needs at least 2 classes, got 1"),
        ({"train": ["0-6"], "test": [20, 21]}, "four folds need at least 8 classes .* got 7"),
        ({"train": ["0-11"]}, "`test` must be a list of classes, got None"),
        ({"train": "0-11", "test": [1, 2]}, "`train` must be a list of classes, got '0-11'"),
        ({"train": ["0-11"], "tets": [1, 2]}, "Did you mean 'test'"),
        ({"train": ["9-3", 1], "test": [1, 2]}, "no class named '9-3'"),
        ({"train": [1.5, 1], "test": [1, 2]}, "no class named '1.5'"),
    ],
)
def test_a_wrong_split_is_refused_with_the_file_and_the_reason(
    write: Callable[..., Path], parts: dict[str, object], message: str
) -> None:
    path = write(**parts)
    with pytest.raises(HarnessError, match=message) as refused:
        read_split(path, NAMES, "mlrc")
    assert "mine.yaml" in str(refused.value)


def test_a_file_that_is_no_split_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "split.yaml"
    picture.write_bytes(b"\x89PNG\xff\xfe")
    for path in (tmp_path / "none.yaml", picture):
        assert main(["train", "--loss", "ms", "--split", str(path)]) == 2
        assert f"cannot read split {path}" in capsys.readouterr().err


def experiment_of(path: Path, protocol: str = "mlrc") -> Experiment:
    return build_experiment(RunConfig(loss="triplet", protocol=protocol, split=str(path)))


def test_a_split_is_part_of_the_name_and_of_the_identity(write: Callable[..., Path]) -> None:
    one = experiment_of(write("one", train=["0-19"], validation=["20-29"], test=["100-119"]))
    other = experiment_of(write("one", train=["0-18"], validation=["20-29"], test=["100-119"]))
    assert one.split.folds[0].val == tuple(range(20, 30))
    assert one.protocol.name.startswith("mlrc+folds=given+split=one@")
    assert one.protocol.name != other.protocol.name
    assert one.table != other.table
    assert one.identity("f")["split"] != other.identity("f")["split"]


def test_the_name_leads_back_only_with_the_same_file(write: Callable[..., Path]) -> None:
    path = write(train=["0-19"], validation=["20-29"], test=["100-119"])
    name = experiment_of(path).protocol.name
    assert experiment_of(path, name).protocol.name == name
    with pytest.raises(HarnessError, match="give it with --split FILE"):
        build_experiment(RunConfig(loss="triplet", protocol=name))
    write(train=["0-18"], validation=["20-29"], test=["100-119"])
    with pytest.raises(HarnessError, match="the file has changed since"):
        experiment_of(path, name)


@pytest.mark.parametrize("protocol", ["classic-hpl", "two_stage"])
def test_one_model_trains_on_the_classes_of_a_file(
    write: Callable[..., Path], protocol: str
) -> None:
    experiment = experiment_of(write(train=["0-19"], test=["100-119"]), protocol)
    assert experiment.split.trainval == tuple(range(20))
    assert len(experiment.split.folds) == 1
