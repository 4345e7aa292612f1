"""`harness search --dry-run`: what it foretells is what a search then does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from harness.cli import main
from harness.config import RunConfig
from harness.records.records import FoldRecord
from harness.searching.forecast import forecast
from harness.searching.loop import search

WITHOUT_DOWNLOAD = (
    "harness search --loss ccp --dataset cars --protocol frozen-pairs --trunk efficientnet_lite0"
)


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No data sets, no weights, no network."""

    def no_network(*arguments: object) -> None:
        raise OSError("there is no network in a test")

    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    monkeypatch.setattr("socket.socket.connect", no_network)
    monkeypatch.delenv("HARNESS_DATA", raising=False)
    monkeypatch.chdir(tmp_path)


def test_the_headline_command_is_planned_without_files(
    offline: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["search", "--loss", "ccp", "--dataset", "cars", "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        "mlrc/cars-bninception/ccp-c2: nothing was run",
        "  trials      50, 200 models in all",
        "  steps       2,000 to 100,000 per model, until 3 validations bring no improvement",
    ]
    # 200 models of 2,000 steps of 97 ms are 10.8 hours.
    assert lines[3] == "  time        10.8 h to 538.9 h of one GPU"
    assert "97 ms per step (estimate: BN-Inception on RTX 2080 Ti" in lines[4]
    missing = [line for line in lines if line.startswith("  missing ")]
    assert [
        next(w for w in ("files", "weights", "GPU", "download") if w in m) for m in missing
    ] == [*("files", "download", "GPU")]
    assert WITHOUT_DOWNLOAD in lines
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("asked", "trials", "models", "steps"),
    [
        ({"dataset": "cub"}, 50, 200, (1_200, 100_000)),
        # Four models, then two other partitions of five finalists.
        ({"dataset": "cub", "protocol": "frozen-pairs"}, 50, 240, (2_100, 20_000)),
        ({"dataset": "cub", "searches": 3, "trials": 10}, 30, 120, (1_200, 100_000)),
        ({"dataset": "sop", "protocol": "mlrc-hpl"}, 10, 40, (6_000, 100_000)),
        # A quarter of 11,788 images trains, 32 at a time, for 5 epochs and then 40.
        ({"dataset": "cub", "protocol": "two_stage"}, 50, 50, (45 * 92, 45 * 92)),
    ],
)
def test_trials_models_and_steps_are_those_of_the_protocol(
    asked: dict[str, object], trials: int, models: int, steps: tuple[int, int], offline: None
) -> None:
    found = forecast(RunConfig(loss="proxynca++").updated(asked))
    assert (found.trials, found.models, found.steps) == (trials, models, steps)


def test_a_data_set_that_comes_split_is_planned_with_its_own_classes(offline: None) -> None:
    found = forecast(RunConfig(loss="c2", dataset="inshop"))
    assert len(found.experiment.split.trainval) == 3_997
    assert found.experiment.protocol.name == "mlrc+folds=balanced"
    assert len(found.experiment.listed("trainval")) == 25_882


def test_a_search_does_what_was_foretold_and_then_its_time_is_known(config: RunConfig) -> None:
    asked = config.updated({"trials": 2})
    before = forecast(asked)
    assert before.time is None and before.missing == ()
    assert not Path(config.runs_dir).exists()
    search([asked])
    folds = [FoldRecord.read(p) for p in Path(config.runs_dir).glob("*/*/*/folds/*/record.json")]
    assert len(folds) == before.models == 8
    assert all(before.steps[0] <= fold.steps <= before.steps[1] for fold in folds)
    time = forecast(asked).time
    assert time is not None and time.source == "measured on 8 models of it"
    assert time.mean_steps == 6
    assert time.seconds == pytest.approx(sum(fold.seconds for fold in folds) / 48)


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--loss", "nope"], "no loss named 'nope'"),
        (["--loss", "c2", "--dataset", "folder:/nowhere"], "/nowhere"),
        (["--loss", "c2", "--protocol", "classic-ccp"], "has no validation classes"),
    ],
)
def test_what_no_machine_could_search_is_refused(
    flags: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["search", *flags, "--dry-run"]) == 2
    assert problem in capsys.readouterr().err
