"""Mistakes in a user's loss are found in seconds, and `search` refuses them."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import registry
from harness.cli import main
from harness.config import RunConfig
from harness.errors import HarnessError
from harness.experiment import build_experiment
from harness.loss_file import unread_names
from harness.training.loss_check import check_loss

GOOD = """
from optuna.distributions import FloatDistribution
from pytorch_metric_learning.losses import TripletMarginLoss

class Mine(TripletMarginLoss): ...

SPACE = {"margin": FloatDistribution(0, 1)}
"""

CUSTOM = """
import torch
from pytorch_metric_learning.losses import BaseMetricLossFunction
from pytorch_metric_learning.reducers import AvgNonZeroReducer

class Mine(BaseMetricLossFunction):
    def compute_loss(self, embeddings, labels, indices_tuple, ref_emb, ref_labels):
        losses = BODY
        indices = torch.arange(len(labels))
        return {"loss": {"losses": losses, "indices": indices, "reduction_type": "element"}}

    def get_default_reducer(self):
        return AvgNonZeroReducer()
"""


@pytest.fixture
def write(tmp_path: Path) -> Path:
    return tmp_path / "mine.py"


def problems_of(path: Path, source: str) -> list[str]:
    path.write_text(source)
    return check_loss(build_experiment(RunConfig(loss=str(path)))).problems


def test_a_sound_loss_has_no_problem(write: Path) -> None:
    assert problems_of(write, GOOD) == []


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("embeddings.sum(dim=1) * 0 + float('nan')", "terms of the loss are NaN"),
        ("embeddings.detach().norm(dim=1)", "no gradient reaches the head"),
        ("embeddings.sum(dim=1) * 0 + 2", "is zero on 3 batches; losses: 2, 2, 2"),
        ("-embeddings.norm(dim=1)", "is zero on 3 batches; losses: 0, 0, 0"),
        ("embeddings.norm(dim=1) + float('inf')", "the loss is inf"),
    ],
    ids=["nan", "detached", "constant", "zero", "infinite"],
)
def test_a_loss_that_trains_nothing_is_found(write: Path, body: str, expected: str) -> None:
    (problem,) = problems_of(write, CUSTOM.replace("BODY", body))
    assert expected in problem


@pytest.mark.parametrize("name", ["build_head", "MINER", "space", "SAMPLES_PER_CLASS", "Presets"])
def test_a_name_that_nothing_reads_is_found(write: Path, name: str) -> None:
    (problem,) = problems_of(write, f"{GOOD}\n{name} = 1\n")
    assert f"it defines {name}, which nothing reads" in problem


def test_names_that_the_file_uses_are_its_own_business(write: Path) -> None:
    write.write_text(f"{GOOD}\nmargin = 1\ndef build_head(): ...\nHELPERS = [build_head]\n")
    assert unread_names(write) == []


def test_a_space_beside_methods_is_not_read(write: Path) -> None:
    write.write_text("METHODS = ()\nSPACE = {}\n")
    assert unread_names(write) == ["SPACE"]


def test_a_parameter_that_the_class_does_not_take_comes_with_a_suggestion(write: Path) -> None:
    write.write_text(GOOD.replace('"margin"', '"margn"'))
    with pytest.raises(HarnessError, match="'margn', which Mine does not take; did you mean"):
        registry.load_method(str(write))


def test_an_argument_of_another_name_for_the_number_of_classes_is_named(write: Path) -> None:
    own = "class Mine(TripletMarginLoss):\n    def __init__(self, nb_classes, margin=0.1): ..."
    write.write_text(GOOD.replace("class Mine(TripletMarginLoss): ...", own))
    with pytest.raises(HarnessError, match="needs 'nb_classes'") as refusal:
        registry.load_method(str(write))
    assert "num_classes and embedding_size" in str(refusal.value)


def test_a_loss_that_cannot_be_built_is_one_message(
    write: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = "class Mine(TripletMarginLoss):\n    def __init__(self, margin=0.1): 1 / 0"
    write.write_text(GOOD.replace("class Mine(TripletMarginLoss): ...", own))
    assert main(["check", str(write)]) == 2
    assert "ZeroDivisionError: division by zero (mine.py, line" in capsys.readouterr().err


@pytest.mark.parametrize("command", [("check",), ("search", "--trials", "1", "--loss")])
def test_a_problem_stops_the_command(
    write: Path,
    command: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    write.write_text(CUSTOM.replace("BODY", "embeddings.sum(dim=1) * 0 + float('nan')"))
    assert main([*command, "mine.py"]) == 2
    assert "some terms of the loss are NaN" in capsys.readouterr().err
    assert not list(tmp_path.glob("runs/*"))


def test_the_time_of_a_search_is_estimated(write: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write.write_text(GOOD)
    assert main(["check", str(write)]) == 0
    said = capsys.readouterr().out
    assert "50 trials x 4 folds = 200 models" in said
    assert " ms per step" in said and "at most " in said
