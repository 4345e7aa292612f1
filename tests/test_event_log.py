"""Loggers hear the progress of all commands that train, and never end one."""

from __future__ import annotations

import csv
import dataclasses
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import harness
from harness import event_log, registry
from harness.cli import main
from harness.config import RunConfig
from harness.errors import HarnessError
from harness.loggers.logger import Logger, Run
from harness.system.progress import Configured, ModelEnded, Validated


class Recorder:
    """A log that keeps what it is told."""

    def __init__(self) -> None:
        self.curves: dict[tuple[str, str], dict[str, list[tuple[int, float]]]] = {}
        self.ends: dict[tuple[str, str], tuple[dict[str, Any], dict[str, float], str]] = {}
        self.configs: dict[str, Mapping[str, Any]] = {}
        self.closed = 0

    def add_score(self, run: Run, name: str, score: float, step: int) -> None:
        curves = self.curves.setdefault((run.group, run.name), {})
        curves.setdefault(name, []).append((step, score))
        self.configs[run.group] = run.config

    def end_run(
        self, run: Run, params: Mapping[str, Any], scores: Mapping[str, float], failure: str
    ) -> None:
        assert (run.group, run.name) not in self.ends
        self.ends[run.group, run.name] = dict(params), dict(scores), failure

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Logger], None]]:
    """Installs a package that has a logger."""

    def install(logger: Logger) -> None:
        module = ModuleType("my_logger")
        module.LOGGERS = (logger,)  # type: ignore[attr-defined]
        point = EntryPoint("mine", "my_logger", "harness.loggers")
        monkeypatch.setattr(EntryPoint, "load", lambda self: module)
        found = {"harness.loggers": [point]}
        monkeypatch.setattr(registry, "entry_points", lambda group: found.get(group, []))
        registry.items.cache_clear()

    yield install
    registry.items.cache_clear()


def test_the_logger_of_a_plug_in_hears_a_search_and_its_evaluation(
    folder_config: RunConfig, install: Callable[[Logger], None]
) -> None:
    log = Recorder()
    install(Logger("mine", "", lambda folder: log))
    settings = {**folder_config.shown(), "trials": 2, "reproductions": 1, "log": ["mine"]}
    summary = harness.search(**settings)
    for key in ("loss", "preset"):  # either would ask for a fixed configuration
        del settings[key]
    (board,) = harness.evaluate(**settings)
    group = f"{board.folder.parent.name}/{board.folder.name}/proxyanchor"
    for number in (1, 2):
        params, scores, failure = log.ends[group, f"trial-{number}"]
        assert params == summary.trial_params[number - 1] and not failure
        assert scores == {"map_at_r": summary.trial_scores[number - 1]}
        curves = log.curves[group, f"trial-{number}"]
        names = [f"{name}/fold-{fold}" for name in ("loss", "map_at_r") for fold in (1, 2, 3, 4)]
        assert sorted(curves) == names
        assert all([step for step, _ in curve] == [2, 4] for curve in curves.values())
        folds = [max(s for _, s in curves[f"map_at_r/fold-{fold}"]) for fold in (1, 2, 3, 4)]
        assert tuple(folds) == summary.trial_folds[number - 1]
    assert log.configs[group]["trunk"] == "convnet"
    assert log.configs[group]["protocol.batch_size"] == 8
    assert log.closed == 2
    tested = board.frame.set_index("method").loc["proxyanchor"]
    params, scores, _ = log.ends[group, "reproduction-1"]
    assert params == summary.best_params
    assert scores["concatenated/map_at_r"] == tested["map_at_r_concatenated"]
    assert len(log.curves[group, "reproduction-1"]) == 8
    assert any(run[0].endswith("/pixels") for run in log.ends)


def test_points_of_a_sweep_have_runs_of_their_own(
    folder_config: RunConfig, install: Callable[[Logger], None]
) -> None:
    log = Recorder()
    install(Logger("mine", "", lambda folder: log))
    settings = folder_config.updated({"log": ["mine"]}).shown()
    loss = settings.pop("loss")
    harness.sweep(loss, {"params.margin": [0.1, 0.2]}, name="margins", seeds=2, **settings)
    names = [f"point-{point}-seed-{seed}" for point in (1, 2) for seed in (1, 2)]
    assert list(log.ends) == [("sweeps/margins/proxyanchor", name) for name in names]
    assert [end[0]["values"] for end in log.ends.values()] == [
        *["margin=0.1"] * 2,
        *["margin=0.2"] * 2,
    ]
    assert set(log.curves) == set(log.ends)
    assert all(len(curves) == 8 for curves in log.curves.values())


def test_a_logger_that_fails_is_off_with_one_warning_and_the_work_goes_on(
    folder_config: RunConfig, install: Callable[[Logger], None], caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Recorder):
        calls = 0

        def add_score(self, run: Run, name: str, score: float, step: int) -> None:
            self.calls += 1
            raise ConnectionError("the server is gone\nmore")

    log = Broken()
    install(Logger("mine", "", lambda folder: log))
    with caplog.at_level(logging.WARNING):
        folds = harness.train(folds=2, **folder_config.updated({"log": ["mine", "csv"]}).shown())
    assert len(folds) == 2 and log.calls == 1
    assert [record.message for record in caplog.records] == [
        "--log mine failed and is off from here, the work goes on: the server is gone"
    ]
    with open(
        Path(folder_config.runs_dir, "logs", "csv", "log.csv")
    ) as file:  # the other one is not affected
        assert sum(row["kind"] == "curve" for row in csv.DictReader(file)) == 8


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            ModuleNotFoundError("No module named 'mine'"),
            "--log mine needs a package that is not installed (No module named 'mine'); pip "
            "install 'metric-harness[log]'",
        ),
        (ValueError("it does not answer\nat all"), "--log mine cannot be used: it does not answer"),
    ],
)
def test_a_logger_that_cannot_be_used_is_one_sentence_before_any_work(
    error: Exception,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    install: Callable[[Logger], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(folder: Path) -> Any:
        raise error

    install(Logger("mine", "", fail))
    monkeypatch.chdir(tmp_path)
    assert main(["search", "--loss", "proxyanchor", "--log", "mine"]) == 2
    assert capsys.readouterr().err == f"error: {message}\n"
    assert not list(tmp_path.iterdir())


def test_an_unknown_logger_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--loss", "ms", "--log", "tensorbord", "--runs-dir", str(tmp_path)]) == 2
    assert "no logger named 'tensorbord'. Did you mean 'tensorboard'?" in capsys.readouterr().err


def test_a_run_that_failed_ends_once_with_its_reason() -> None:
    log = Recorder()
    listener = event_log.EventLog("mine", log)
    listener(Configured(method="x", table="t", metric="map_at_r", config={}))
    ended = ModelEnded(
        method="x", run="reproduction-1", reproduction=1, reproductions=1, fold=1, reason="NaN"
    )
    listener(ended)
    listener(dataclasses.replace(ended, fold=2))
    listener(Validated(method="x", run="reproduction-1", fold=3, step=1, max_steps=2, best=0.1))
    ((key, (_, scores, failure)),) = log.ends.items()
    assert key[1] == "reproduction-1" and not scores and failure == "NaN" and not log.curves


# Two trials, as every real logger is told of them: their curves cross, and one of them fails.
GROUP = "mlrc+batch_size=64/glyphs-glyphnet/proxynca++"
CONFIG = {"dataset": "glyphs", "protocol.lr": 0.1, "params": {}}
FIRST, SECOND = Run(GROUP, "trial-1", CONFIG), Run(GROUP, "trial-2", CONFIG)


def write_two_trials(name: str, folder: Path) -> None:
    log = event_log.open_log(name, folder)
    for step, score in ((10, 0.25), (20, 0.5)):
        log.add_score(FIRST, "map_at_r/fold-1", score, step)
        log.add_score(SECOND, "map_at_r/fold-1", score / 2, step)
    log.add_score(FIRST, "map_at_r/fold-2", 0.75, 10)
    log.end_run(FIRST, {"margin": 0.1, "kind": "a"}, {"map_at_r": 0.625, "recall@1": 0.5}, "")
    log.end_run(SECOND, {"margin": 0.2, "kind": "b"}, {}, "the loss became NaN")
    log.close()


def test_csv_holds_every_number(tmp_path: Path) -> None:
    for _ in range(2):  # another process appends
        write_two_trials("csv", tmp_path)
    with open(tmp_path / "log.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    first = [row for row in rows if row["run"] == "trial-1"]
    assert len(rows) == 2 * 15 and len(first) == 2 * 7
    assert {row["group"] for row in rows} == {GROUP}
    curve = [(row["step"], row["value"]) for row in first if row["name"] == "map_at_r/fold-1"]
    assert curve == [("10", "0.25"), ("20", "0.5")] * 2
    assert [row["value"] for row in rows if row["kind"] == "failure"] == ["the loss became NaN"] * 2
    configs = {row["name"]: row["value"] for row in rows if row["kind"] == "config"}
    assert configs == {name: str(value) for name, value in CONFIG.items()}


def test_tensorboard_reads_curves_trials_and_configuration(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import plugin_data_pb2

    write_two_trials("tensorboard", tmp_path)

    def read(folder: Path) -> EventAccumulator:
        events = EventAccumulator(str(folder))
        events.Reload()
        return events

    first, second = read(tmp_path / GROUP / "trial-1"), read(tmp_path / GROUP / "trial-2")
    curve = [(point.step, point.value) for point in first.Scalars("map_at_r/fold-1")]
    assert curve == [(10, 0.25), (20, 0.5)]
    assert [point.value for point in second.Scalars("map_at_r/fold-1")] == [0.125, 0.25]
    assert first.Scalars("map_at_r")[0].value == 0.625
    start = first.PluginTagToContent("hparams")["_hparams_/session_start_info"]
    hparams = plugin_data_pb2.HParamsPluginData.FromString(start).session_start_info.hparams
    assert hparams["margin"].number_value == 0.1 and hparams["kind"].string_value == "a"
    failure = second.Tensors("failure/text_summary")[0].tensor_proto.string_val[0]
    assert failure == b"the loss became NaN"
    config = read(tmp_path / GROUP).Tensors("config/text_summary")[0].tensor_proto.string_val[0]
    assert b"| protocol.lr | 0.1 |" in config


def test_mlflow_reads_curves_trials_and_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    for name in ("MLFLOW_HTTP_REQUEST_TIMEOUT", "MLFLOW_HTTP_REQUEST_MAX_RETRIES"):
        monkeypatch.setenv(name, "1")
    write_two_trials("mlflow", tmp_path)
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    experiment = client.get_experiment_by_name(GROUP)
    runs = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    first, second = runs["trial-1"], runs["trial-2"]
    assert first.data.params == {"margin": "0.1", "kind": "a"}
    assert first.data.metrics["map_at_r"] == 0.625 and first.data.metrics["recall_at_1"] == 0.5
    assert first.data.tags["protocol.lr"] == "0.1"
    history = client.get_metric_history(first.info.run_id, "map_at_r/fold-1")
    assert [(point.step, point.value) for point in history] == [(10, 0.25), (20, 0.5)]
    assert (first.info.status, second.info.status) == ("FINISHED", "FAILED")
    assert second.data.tags["failure"] == "the loss became NaN"


def test_an_mlflow_server_that_does_not_answer_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow", reason="mlflow is not installed")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    with pytest.raises(HarnessError, match=r"the tracking server http://127\.0\.0\.1:9 does not"):
        event_log.open_log("mlflow", tmp_path)


def test_wandb_keeps_curves_trials_and_configuration_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = pytest.importorskip("wandb", reason="wandb is not installed")
    from wandb.proto.wandb_internal_pb2 import Record
    from wandb.sdk.internal.datastore import DataStore

    wandb.teardown()
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("HOME", str(tmp_path))
    write_two_trials("wandb", tmp_path / "log")
    wandb.teardown()  # as when the process ends; before, a file may be incomplete
    runs: dict[str, list[Any]] = {}
    for path in sorted((tmp_path / "log" / "wandb").glob("offline-run-*/*.wandb")):
        store = DataStore()
        store.open_for_scan(str(path))
        records = []
        while (data := store.scan_data()) is not None:
            records.append(Record.FromString(data))
        (run,) = [record.run for record in records if record.HasField("run")]
        assert run.run_group == GROUP
        runs[run.display_name] = records
        config = {item.key: item.value_json for item in run.config.update}
        assert config["protocol.lr"] == "0.1"
    assert sorted(runs) == ["trial-1", "trial-2"]

    def rows(records: list[Any]) -> list[dict[str, str]]:
        return [
            {".".join([item.key, *item.nested_key]).strip("."): item.value_json for item in items}
            for items in (record.history.item for record in records if record.HasField("history"))
        ]

    logged = [
        (row["step"], row["map_at_r/fold-1"])
        for row in rows(runs["trial-1"])
        if "map_at_r/fold-1" in row
    ]
    assert logged == [("10", "0.25"), ("20", "0.5")]
    updates = {
        item.key: item.value_json
        for record in runs["trial-1"]
        if record.HasField("config")
        for item in record.config.update
    }
    assert updates["params.margin"] == "0.1"
    summaries = {
        ".".join([item.key, *item.nested_key]).strip("."): item.value_json
        for record in runs["trial-1"]
        if record.HasField("summary")
        for item in record.summary.update
    }
    assert summaries["map_at_r"] == "0.625" and summaries["recall@1"] == "0.5"
    assert [r.exit.exit_code for r in runs["trial-2"] if r.HasField("exit")] == [1]


def test_wandb_without_an_api_key_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = pytest.importorskip("wandb", reason="wandb is not installed")
    wandb.teardown()  # it keeps settings of the environment that another test had
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    with pytest.raises(HarnessError, match="--log wandb cannot be used: no API key found; run"):
        event_log.open_log("wandb", tmp_path)
