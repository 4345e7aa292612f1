"""Selection rules are measured without the test classes; what is finished is not repeated."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import yaml
from conftest import write_images

from benchmarks import selection as benchmark
from harness.calibration.selection import SelectionPlan, calibrate_selection
from harness.cli import main
from harness.config import RunConfig
from harness.experiment import Benchmark, build_benchmark
from harness.searching.loop import search


@pytest.fixture
def plan(folder_config: RunConfig, tmp_path: Path) -> SelectionPlan:
    write_images(tmp_path / "more", num_classes=24, per_class=4)
    where = {"dataset": f"folder:{tmp_path / 'more'}", "loss": "triplet"}
    config = folder_config.updated(where)
    return SelectionPlan([config], 2, rotations=0, seeds=1, folder=tmp_path / "calibration")


@pytest.mark.slow
def test_a_fifth_of_the_trainval_classes_replaces_the_test_classes(
    plan: SelectionPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    split = build_benchmark(plan.configs[0]).split
    opened: set[int] = set()
    listed = Benchmark.listed

    def watched(self: Benchmark, part: str) -> list[int]:
        indices = listed(self, part)
        opened.update(self.listing.labels[indices].tolist())
        return indices

    monkeypatch.setattr(Benchmark, "listed", watched)
    lines = calibrate_selection(plan)
    assert opened == set(split.trainval)
    parts = yaml.safe_load((plan.folder / "stand-in.yaml").read_text())
    assert len(parts["train"]) == 10 and len(parts["test"]) == 2
    assert sorted([*parts["train"], *parts["test"]]) == list(split.trainval)
    assert "Trained on 10 of the trainval classes and tested on the other 2." in "\n".join(lines)

    kept = json.loads((plan.folder / "selection.json").read_text())["outcomes"]
    assert len(kept) == 2 and kept[0]["params"] != kept[1]["params"]
    for record in plan.folder.rglob("record.json"):
        record.unlink()  # outcomes alone are enough
    assert calibrate_selection(plan) == lines
    assert not list(plan.folder.rglob("record.json"))


@pytest.mark.slow
def test_the_trials_of_a_search_are_trained_again(plan: SelectionPlan, tmp_path: Path) -> None:
    (config,) = plan.configs
    search([config.updated({"trials": 4})])
    found = SelectionPlan(
        plan.configs, 2, rotations=0, seeds=1, folder=plan.folder, trials_from=tmp_path / "runs"
    )
    calibrate_selection(found)
    outcomes = json.loads((plan.folder / "selection.json").read_text())["outcomes"]
    trained = [
        json.loads(path.read_text())
        for path in (tmp_path / "runs").rglob("record.json")
        if path.parent.parent.name == "folds"
    ]
    assert {str(one["params"]) for one in outcomes} <= {str(one["params"]) for one in trained}


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--selection --copies 3", "--selection runs no searches; leave out --copies"),
        ("--selection --trials 3 --searches 2", "leave out --trials, --searches"),
        ("--trials-from runs", "need --selection"),
        ("--configurations 4", "need --selection"),
        ("--loss ms", "calibrate copies one loss, got 2"),
        ("--selection --trials-from nowhere", "no search of triplet"),
        ("--selection --protocol classic-drml", "folds"),
        ("--selection --loss nothing", "nothing"),
    ],
)
def test_bad_input_gets_one_message_before_any_work(
    flags: str,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["calibrate", "--loss", "triplet", *flags.split()]) == 2
    assert words in capsys.readouterr().err
    assert not list(tmp_path.rglob("runs"))


def test_too_few_classes_are_refused_with_their_number(
    folder_config: RunConfig, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    flags = ["--dataset", folder_config.dataset, "--protocol", folder_config.protocol]
    output = ["--output", str(tmp_path / "out"), "--trunk", "convnet"]
    assert main(["calibrate", "--selection", "--loss", "triplet", *flags, *output]) == 2
    assert "needs at least 10 trainval classes" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_pool_is_the_better_half_of_the_recorded_trials() -> None:
    table = Path(__file__).parents[2] / "results" / "frozen" / "cub-efficientnet_lite0"
    config, pool = benchmark.recorded_pool(table, "proxyanchor", 6)
    assert (config.dataset, config.protocol) == ("cub", "frozen")
    assert len(pool) == 6 and all({"margin", "head_lr"} <= params.keys() for params in pool)
    assert len({str(params) for params in pool}) == 6


@pytest.mark.slow
def test_the_benchmark_runs_and_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = "--protocol frozen+max_steps=4+validate_every=2 --losses contrastive"
    sizes = f"--configurations 2 --rotations 0 --seeds 1 --runs-dir {tmp_path / 'runs'}"
    monkeypatch.setattr(sys, "argv", ["selection", *flags.split(), *sizes.split()])
    benchmark.main()
    first = capsys.readouterr().out
    assert "Concatenated embeddings" in first and "random choice" in first
    outcomes = list((tmp_path / "runs" / "outcomes").glob("*.json"))
    for checkpoint in (tmp_path / "runs").rglob("record.json"):
        checkpoint.unlink()  # outcomes alone are enough
    benchmark.main()
    assert capsys.readouterr().out == first
    assert len(outcomes) == 2 and not list((tmp_path / "runs").rglob("record.json"))
