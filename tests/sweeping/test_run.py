"""A sweep trains each point once, whatever happens to it, and its table is what records say."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import harness
from harness.cli import main
from harness.config import RunConfig
from harness.data.sources import open_part
from harness.errors import HarnessError
from harness.experiment import build_experiment
from harness.losses.proxygml import ProxyGMLLoss
from harness.metrics.names import METRICS
from harness.records.layout import FOLD_RECORD, LEDGER, PLAN, SWEEP_CSV, SWEEP_LATEX, SWEEP_MARKDOWN
from harness.records.ledger import read_ledger
from harness.records.sweep_plan import PublishedValue
from harness.sweeping import run
from harness.sweeping.axes import parse_axis
from harness.sweeping.run import Sweep
from harness.system.progress import Event, Listener, PointEnded, ignore
from harness.tables import sweeps
from harness.tables.column import View
from harness.tables.mean_scores import mean_and_interval
from harness.tables.sweeps import SweepTable
from harness.training.trial import run_trial, units_of

AXES = ("params.proxies_per_class=1,2", "params.ratio=0.5,1")
SETTINGS = ("dataset", "protocol", "trunk", "cache_dir", "runs_dir", "results_dir", "workers")

RunSweep = Callable[..., SweepTable]


@pytest.fixture
def sweep(folder_config: RunConfig) -> RunSweep:
    values = {name: getattr(folder_config, name) for name in SETTINGS}

    def run_sweep(
        *axes: str,
        losses: tuple[str, ...] = ("proxygml",),
        more: Any = None,
        listener: Listener = ignore,
        **options: Any,
    ) -> SweepTable:
        parsed = [parse_axis(text) for text in axes or AXES]
        asked = Sweep(losses, parsed, {**values, **(more or {})}, name="test", **options)
        return run.sweep(asked, listener)

    return run_sweep


Trained = Callable[[], dict[Path, int]]


@pytest.fixture
def trained(folder_config: RunConfig) -> Trained:
    """The record of every fold, and when it was written: again, if the fold is trained again."""
    runs = Path(folder_config.runs_dir)
    return lambda: {path: path.stat().st_mtime_ns for path in runs.rglob(FOLD_RECORD)}


def test_a_point_has_the_scores_of_the_same_training_without_a_sweep(
    sweep: RunSweep, folder_config: RunConfig, tmp_path: Path
) -> None:
    frame = sweep(seeds=2).frame
    assert list(zip(frame["params.proxies_per_class"], frame["params.ratio"], strict=True)) == [
        *((1, 0.5), (1, 1.0), (2, 0.5), (2, 1.0))
    ]
    params = {"proxies_per_class": 2, "ratio": 0.5}
    experiment = build_experiment(
        folder_config.updated(
            {"loss": "proxygml", "params": params, "runs_dir": str(tmp_path / "elsewhere")}
        )
    )
    trainval = open_part(experiment, "trainval")
    means, spreads = [], []
    for repetition in range(2):
        units = units_of(experiment, trainval, experiment.published_params, repetition)
        scores = [record.best_score for record in run_trial(units)]
        means.append(np.mean(scores))
        spreads.append(np.std(scores, ddof=1))
    mean, half_width = mean_and_interval(means)
    row = frame.iloc[2]
    assert row["validation"] == mean
    assert row["validation_ci95"] == half_width
    assert row["validation_sd"] == pytest.approx(np.mean(spreads))
    assert row["seeds"] == 2 and row["failure"] == ""


def test_a_sweep_that_was_stopped_goes_on_and_trains_no_fold_twice(
    sweep: RunSweep, trained: Trained
) -> None:
    def stop(event: Event) -> None:
        if isinstance(event, PointEnded) and event.point == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep(listener=stop)
    before = trained()
    assert len(before) == 8  # two points on four folds
    frame = sweep().frame
    assert frame["seeds"].tolist() == [1, 1, 1, 1]
    after = trained()
    assert len(after) == 16 and after.items() >= before.items()
    sweep()
    assert trained() == after


def test_points_and_seeds_can_be_added_later(sweep: RunSweep, trained: Trained) -> None:
    sweep("params.ratio=0.5,1")
    before = trained()
    table = sweep("params.ratio=0.25,0.5", seeds=2)
    assert table.frame["params.ratio"].tolist() == [0.5, 1.0, 0.25]
    assert table.frame["seeds"].tolist() == [2, 1, 2]
    assert len(trained()) == 20 and trained().items() >= before.items()


def test_a_fold_that_a_search_or_train_has_is_not_trained_again(
    sweep: RunSweep, folder_config: RunConfig, trained: Trained
) -> None:
    settings = {name: getattr(folder_config, name) for name in SETTINGS}
    harness.train("proxygml", params={"ratio": 0.5}, **settings)
    before = trained()
    assert len(before) == 4
    sweep("params.ratio=0.5")
    assert trained() == before


@pytest.mark.usefixtures("quick_workers")
def test_two_workers_make_the_table_of_one(sweep: RunSweep) -> None:
    one = sweep("protocol.batch_size=4,8", losses=("c2", "ccp-c2")).frame
    shutil.rmtree(Path(one_folder(sweep)))
    two = sweep("protocol.batch_size=4,8", losses=("c2", "ccp-c2"), more={"workers": 2}).frame
    scores = ["method", "protocol.batch_size", "validation", "validation_sd", "protocol"]
    pd.testing.assert_frame_equal(one[scores], two[scores])
    assert one["method"].tolist() == ["c2", "c2", "ccp-c2", "ccp-c2"]
    assert one["protocol.batch_size"].tolist() == [4, 8, 4, 8]


def one_folder(sweep: RunSweep) -> Path:
    return sweep("protocol.batch_size=4,8", losses=("c2", "ccp-c2")).folder


def test_validation_opens_no_test_class_and_a_test_is_in_the_ledger(sweep: RunSweep) -> None:
    table = sweep("params.ratio=0.5,1")
    assert list(table.folder.rglob(LEDGER)) == []
    assert "map_at_r_concatenated" not in table.frame
    table = sweep("params.ratio=0.5,1", test=True, seeds=2, metrics=("nmi",))
    (ledger,) = table.folder.rglob(LEDGER)
    tests = [(entry["params"], entry["repetition"]) for entry in read_ledger(ledger, [])]
    assert len(set(tests)) == 4  # two points with two seeds
    assert table.frame["test_seeds"].tolist() == [2, 2]
    assert table.frame["nmi_concatenated"].between(0, 1).all()
    assert table.frame["map_at_r_concatenated_ci95"].notna().all()
    assert "test-selected" in (table.folder / SWEEP_MARKDOWN).read_text()
    before = len(ledger.read_text().splitlines())
    sweep("params.ratio=0.5,1", test=True, seeds=2, metrics=("nmi",))
    assert len(ledger.read_text().splitlines()) == before


def test_its_tests_are_in_no_leaderboard(
    sweep: RunSweep, folder_config: RunConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep("params.ratio=0.5", test=True)
    assert main(["leaderboard", "--results-dir", folder_config.results_dir]) == 2
    assert "no records in" in capsys.readouterr().err


def test_a_point_that_fails_is_told_and_the_others_go_on(
    sweep: RunSweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = ProxyGMLLoss.forward

    def broken(self: ProxyGMLLoss, *arguments: Any) -> Any:
        if self.ratio == 0.5:
            raise RuntimeError("not with this ratio")
        return forward(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(ProxyGMLLoss, "forward", broken)
        table = sweep("params.ratio=0.5,1")
    assert table.frame["seeds"].tolist() == [0, 1]
    assert "not with this ratio" in table.frame["failure"][0]
    assert table.table.texts(View.TERMINAL)["notes"].tolist() == ["failed", ""]
    assert "not with this ratio" in (table.folder / SWEEP_MARKDOWN).read_text()
    (failed,) = table.failed
    assert failed.startswith("proxygml ratio=0.5: ") and "not with this ratio" in failed
    others = sweep("params.ratio=1")  # of which none failed, though the table still has one
    assert others.failed == () and others.frame["failure"].astype(bool).tolist() == [True, False]
    mended = sweep("params.ratio=0.5,1")  # repeated, it is tried again
    assert mended.frame["seeds"].tolist() == [1, 1]
    assert mended.frame["failure"].tolist() == ["", ""] and mended.failed == ()


@pytest.mark.parametrize("test", [[], ["--test"]])
def test_the_command_ends_with_2_if_a_point_failed_and_its_table_is_there(
    folder_config: RunConfig,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    test: list[str],
) -> None:
    def broken(self: ProxyGMLLoss, *arguments: Any) -> Any:
        raise RuntimeError("not today")

    flags = [f"--{name.replace('_', '-')}={getattr(folder_config, name)}" for name in SETTINGS]
    command = ["sweep", "--loss", "proxygml", "--over", "params.ratio=0.5", *test, *flags]
    with monkeypatch.context() as patch:
        patch.setattr(ProxyGMLLoss, "forward", broken)
        assert main(command) == 2
    told = capsys.readouterr()
    assert "not every point could be trained:\n  proxygml ratio=0.5: " in told.err
    assert "not today" in told.err and "Traceback" not in told.err
    (written,) = Path(folder_config.results_dir).rglob(SWEEP_CSV)
    assert "not today" in pd.read_csv(written)["failure"][0] and str(written.parent) in told.out
    assert main(command) == 0


def test_the_files_are_made_from_the_plan_and_the_records_alone(
    sweep: RunSweep, tmp_path: Path
) -> None:
    table = sweep(test=True)
    copy = tmp_path / table.folder.name
    shutil.copytree(table.folder, copy)
    files = (SWEEP_CSV, SWEEP_MARKDOWN, SWEEP_LATEX)
    for name in files:
        (copy / name).unlink()
    sweeps.write(sweeps.build(copy))
    for name in files:
        assert (copy / name).read_bytes() == (table.folder / name).read_bytes()
    frame = pd.read_csv(copy / SWEEP_CSV)
    assert set(frame.columns) == {column.name for column in sweeps.columns_of(table.plan, METRICS)}


def test_every_value_is_checked_before_any_work(
    sweep: RunSweep, trained: Trained, folder_config: RunConfig
) -> None:
    refused = {
        "params.ratio=0.5,2": "must be at most 1, got 2",
        "params.ration=1": "Did you mean 'ratio'",
        "protocol.batch_size=8,none": "batch_size must be a whole number",
        "protocol.pooling=avg,mean": "no pooling named 'mean'",
        "preset=mlrc,nobody": "named 'nobody'",
        "params.proxies_per_class=1..30000": "30,000 points, more than --max-points 200",
    }
    for axis, says in refused.items():
        with pytest.raises(HarnessError, match=says):
            sweep(axis)
    assert trained() == {} and not Path(folder_config.results_dir).exists()


def test_another_sweep_of_the_same_name_is_refused(sweep: RunSweep) -> None:
    folder = sweep("params.ratio=0.5").folder
    plan = (folder / PLAN).read_bytes()
    with pytest.raises(
        HarnessError, match=r"axes are loss, params\.ratio, now loss, params\.scale"
    ):
        sweep("params.scale=1")
    with pytest.raises(HarnessError, match="settings are seed=0, now seed=1"):
        sweep("params.ratio=0.5", more={"seed": 1})
    assert (folder / PLAN).read_bytes() == plan


def test_python_and_the_command_line_make_the_same_sweep(
    folder_config: RunConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {name: getattr(folder_config, name) for name in SETTINGS}
    table = harness.sweep("proxygml", {"params.ratio": [0.5, 1]}, **settings)
    written = (table.folder / PLAN).read_bytes()
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    assert main(["sweep", "--loss", "proxygml", "--over", "params.ratio=0.5,1", *flags]) == 0
    assert (table.folder / PLAN).read_bytes() == written
    assert table.folder.name == "proxygml-ratio-pictures"
    shown = capsys.readouterr().out
    assert "0.5" in shown and "files in" in shown


def test_a_name_that_is_no_folder_is_refused(sweep: RunSweep, folder_config: RunConfig) -> None:
    with pytest.raises(HarnessError, match="a sweep is named by letters"):
        run.sweep(Sweep(["proxygml"], name="../elsewhere"))
    with pytest.raises(HarnessError, match="which loss"):
        run.sweep(Sweep())


def test_variants_change_several_settings_at_once_and_may_name_their_loss(sweep: RunSweep) -> None:
    variants = {
        "plain": {"loss": "c2"},
        "no proxies": {"loss": "ccp-c2", "params.proxies_per_class": 1, "protocol.norm": "layer"},
    }
    table = sweep("protocol.batch_size=4,8", losses=(), variants=variants)
    frame = table.frame
    assert frame["variant"].tolist() == ["plain", "plain", "no proxies", "no proxies"]
    assert frame["method"].tolist() == ["c2", "c2", "ccp-c2", "ccp-c2"]
    assert frame["protocol.batch_size"].tolist() == [4, 8, 4, 8]
    assert "norm=layer" in frame["protocol"][2] and "norm=layer" not in frame["protocol"][0]
    assert '"proxies_per_class": 1' in frame["params"][3]
    with pytest.raises(HarnessError, match=r"variant 'a' changes params\.ratio, which"):
        sweep("params.ratio=0.5", variants={"a": {"params.ratio": 1}})
    with pytest.raises(HarnessError, match="no axis named 'ratio'"):
        sweep("params.scale=1", variants={"a": {"ratio": 1}})


def test_what_a_paper_printed_stands_beside_its_points(sweep: RunSweep) -> None:
    published: list[PublishedValue] = [
        {
            "values": {"params.ratio": 0.5},
            "metric": "recall_at_1",
            "embedding": "",
            "value": 84.5,
            "read_off": True,
        },
        {"values": {}, "metric": "nmi", "embedding": "", "value": 70.0, "read_off": False},
    ]
    table = sweep("params.ratio=0.5,1", published=published)
    assert table.frame["published_recall_at_1"][0] == pytest.approx(0.845)
    assert np.isnan(table.frame["published_recall_at_1"][1])
    shown = table.table.texts(View.MARKDOWN)
    assert shown["published R@1"].tolist() == ["84.5", ""]
    assert shown["published NMI"].tolist() == ["70", "70"]
    assert shown["notes"].tolist() == ["published: read off a plot", ""]


def test_a_protocol_without_validation_classes_needs_test(sweep: RunSweep) -> None:
    protocol = {"protocol": "classic-ccp", "trunk": "convnet"}
    with pytest.raises(HarnessError, match="has no validation classes"):
        sweep("params.ratio=0.5", more=protocol)
