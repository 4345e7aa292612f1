"""The papers' own protocols, from training to a table: resumed, tested, and told apart."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import write_images
from dataset_files import publish
from made_records import make_record, put

from harness import registry
from harness.cli import main
from harness.config import RunConfig
from harness.errors import HarnessError
from harness.evaluation import selected_on_test
from harness.evaluation.reproductions import evaluate
from harness.experiment import build_experiment
from harness.judgement.judge import judge
from harness.losses.ccp import AlternatingProjections
from harness.metrics import retrieval
from harness.protocols.mlrc import GLYPHS
from harness.records.layout import CHECKPOINT, LEDGER, RECORDS
from harness.records.records import TestRecord
from harness.system.progress import Event, Validated
from harness.tables import leaderboard
from harness.training.replay import replayed
from harness.training.trial import train, units_of

CLASSIC = ("classic-proxygml", "classic-hpl", "classic-drml", "classic-ccp")
ONE_MODEL = ("two_stage", "ablation-ccp")

# Small pictures, small batches, two epochs: a run takes a fraction of a second.
SMALL = "+batch_size=8+crop=12+embedding_size=8+freeze_affine=false+lr=0.001+resize=16"
EPOCHS = "+epochs=2+warmup_epochs=0"
STEPS = "+max_steps=4+validate_every=2"


def quick(protocol: str) -> str:
    """The same on folders of small pictures, over in no time."""
    length = STEPS if registry.load_protocol(protocol, "folder").epochs is None else EPOCHS
    extra = "+warmup_extra=false" if protocol == "two_stage" else ""
    patience = "+loss_lr=0.01" if protocol == "two_stage" else ""
    return f"{protocol}{SMALL}{length}{extra}{patience}"


def values_of(config: RunConfig, protocol: str, **more: Any) -> dict[str, Any]:
    kept = ("dataset", "trunk", "workers", "device", "runs_dir", "results_dir", "cache_dir")
    values = {name: getattr(config, name) for name in kept}
    return {**values, "protocol": quick(protocol), "reproductions": 1, **more}


def records_of(config: RunConfig) -> list[TestRecord]:
    paths = sorted(Path(config.results_dir).glob(f"*/*/{RECORDS}/*/*.json"))
    records = [TestRecord.read(path) for path in paths]
    return [record for record in records if record.kind != "naive"]


def openings_of(config: RunConfig, method: str) -> int:
    (ledger,) = Path(config.results_dir).glob(f"*/*/{LEDGER}")
    entries = [json.loads(line) for line in ledger.read_text().splitlines()]
    return sum(entry["method"] == method for entry in entries)


@pytest.mark.parametrize("protocol", CLASSIC)
def test_a_classic_protocol_is_tested_without_a_search(
    folder_config: RunConfig, protocol: str
) -> None:
    done = evaluate(["proxyanchor"], values_of(folder_config, protocol))
    assert done.problems == []
    (record,) = records_of(folder_config)
    assert record.kind == "test-selected"
    assert record.search.get("trials") == 0
    (fold,) = record.folds
    looks = len(fold["history"]["steps"])
    assert looks == 2
    # Each look, and the two tests of the kept weights.
    assert openings_of(folder_config, record.identity["method"]) == looks + 2
    assert {"recall_at_1", "recall_at_8", "nmi"} <= record.scores["concatenated"].keys()
    assert record.last.keys() == record.scores.keys()
    board = leaderboard.build(done.tables[0])
    row = board.frame.set_index("method").loc[f"{record.identity['method']} (test-selected)"]
    assert pd.isna(row["rank"])
    assert row["p_at_1_last"] <= row["p_at_1_concatenated"]
    for path in leaderboard.write(board):
        text = path.read_text()
        assert "last" in text and ("test-selected" in text or "columns" in path.name)
    tex = (done.tables[0] / "leaderboard.tex").read_text()
    (heads,) = [line for line in tex.splitlines() if "method &" in line]
    (cells,) = [line for line in tex.splitlines() if "(test-selected)" in line and "&" in line]
    assert heads.count("&") == cells.count("&")
    assert "R@8" in heads and "NMI" in heads


def test_the_best_look_at_the_test_is_kept_and_the_last_beside_it(
    folder_config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores of the looks are turned round, so that the first one is the best."""
    plain = selected_on_test.SelectedOnTest.build_trainer

    def backwards(self: Any, unit: Any, device: torch.device) -> Any:
        trainer = plain(self, unit, device)
        look = trainer.validate
        trainer.validate = lambda model, step: look(model, step) / step
        return trainer

    monkeypatch.setattr(selected_on_test.SelectedOnTest, "build_trainer", backwards)
    values = values_of(folder_config, "classic-proxygml")
    evaluate(["triplet"], {**values, "params": {"margin": 0.2}})
    (record,) = records_of(folder_config)
    (fold,) = record.folds
    # A metric that is asked for later is one of the weights that were selected alone.
    done = evaluate(["triplet"], {**values, "params": {"margin": 0.2}}, metrics=("recall_at_3",))
    frame = leaderboard.build(done.tables[0]).frame
    (row,) = [row for _, row in frame.iterrows() if row["kind"] == "test-selected"]
    assert row["recall_at_3_concatenated"] >= row["p_at_1_concatenated"]
    assert pd.isna(row["recall_at_3_last"]) and row["p_at_1_last"] >= 0
    assert fold["best_step"] < fold["steps"]
    unit_folder = next(Path(folder_config.runs_dir).rglob("last.pt")).parent
    last, best = (torch.load(unit_folder / name) for name in ("last.pt", "model.pt"))
    assert not all(torch.equal(last[name], best[name]) for name in last)


@pytest.mark.parametrize("protocol", CLASSIC)
@pytest.mark.parametrize("command", ["search", "train"])
def test_search_and_train_refuse_to_look_at_the_test(
    folder_config: RunConfig,
    capsys: pytest.CaptureFixture[str],
    protocol: str,
    command: str,
) -> None:
    flags = ["--dataset", folder_config.dataset, "--trunk", "convnet"]
    where = ["--runs-dir", folder_config.runs_dir]
    spec = ["--protocol", quick(protocol)]
    assert main([command, "--loss", "ms", *flags, *spec, *where]) == 2
    said = capsys.readouterr().err
    assert "it selects what it reports on the test classes" in said
    assert "harness eval --loss ms" in said
    assert not Path(folder_config.runs_dir).exists()


@pytest.mark.parametrize("protocol", ONE_MODEL)
def test_one_model_is_searched_trained_and_tested(folder_config: RunConfig, protocol: str) -> None:
    values = values_of(folder_config, protocol)
    config = folder_config.updated({**values, "loss": "proxyanchor", "trials": 1})
    flags = ["--loss", "proxyanchor", "--trials", "1"]
    for key in ("dataset", "protocol", "trunk", "workers", "device", "runs_dir", "cache_dir"):
        flags += [f"--{key.replace('_', '-')}", str(getattr(config, key))]
    assert main(["search", *flags]) == 0
    done = evaluate(["proxyanchor"], {**values, "reproductions": 1})
    assert done.problems == []
    (record,) = records_of(folder_config)
    assert (record.kind, record.search["trials"]) == ("reproduction", 1)
    assert openings_of(folder_config, "proxyanchor") == 1
    frame = leaderboard.build(done.tables[0]).frame
    assert ("p_at_1_sd" in frame) == (protocol == "two_stage")
    assert len(record.folds) == (2 if protocol == "two_stage" else 1)
    assert "separated" not in record.scores


def first_record(folder_config: RunConfig, **fields: Any) -> Any:
    spec = quick("two_stage").replace("+epochs=2", "+epochs=5")
    config = folder_config.updated({"loss": "proxyanchor", "protocol": spec})
    units, (record,) = train(config)
    history = [(3 * i, 1.0, 0.5) for i in range(1, 6)]
    return units[0].experiment, replace(record, history=history, **fields)


@pytest.mark.parametrize(("lag", "milestones"), [(0, (1, 2)), (1, (2, 3))])
def test_the_second_model_replays_the_epochs_and_drops_of_the_first(
    folder_config: RunConfig, lag: int, milestones: tuple[int, ...]
) -> None:
    experiment, record = first_record(folder_config, best_step=12, drops=[1, 2, 4])
    protocol = replace(experiment.protocol, replay_lag=lag)
    second = replayed(replace(experiment, protocol=protocol), record)
    assert (second.protocol.epochs, second.protocol.schedule) == (4, "multistep")
    assert second.protocol.lr_epochs == milestones
    assert second.protocol.select == "last"
    (fold,) = second.split.folds
    assert fold.train == experiment.split.trainval and fold.val == ()
    # The same seed, from the start again.
    (one,) = units_of(experiment, None, {})  # type: ignore[arg-type]
    (other,) = units_of(second, None, {})  # type: ignore[arg-type]
    assert one.seed("init") == other.seed("init")


def test_without_a_drop_the_second_model_has_constant_rates(folder_config: RunConfig) -> None:
    experiment, record = first_record(folder_config, best_step=3, drops=[2])
    second = replayed(experiment, record)
    assert (second.protocol.epochs, second.protocol.schedule) == (1, "constant")


def test_in_shop_has_no_first_stage() -> None:
    protocol = registry.load_protocol("two_stage", "inshop")
    assert (protocol.folds, protocol.select, protocol.schedule) == ("none", "last", "constant")
    assert (protocol.epochs, protocol.lr, protocol.loss_lr) == (80, 2.4e-2, 2.4e3)


class Stop(BaseException):
    """Stands for a kill."""


def on_glyphs(config: RunConfig, tmp_path: Path, protocol: str) -> dict[str, Any]:
    """On few of its classes, two steps or two passes over their images."""
    split = tmp_path / "few.yaml"
    split.write_text("{train: [0-7], test: [100-103]}")
    in_epochs = registry.load_protocol(protocol, "glyphs").epochs is not None
    kept = ("workers", "device", "runs_dir", "results_dir")
    length = "+epochs=2+warmup_epochs=0+warmup_extra=false+validate_epochs=none"
    return {
        **{name: getattr(config, name) for name in kept},
        "protocol": protocol + (length if in_epochs else "+max_steps=2+validate_every=1"),
        "split": str(split),
    }


@pytest.mark.slow
@pytest.mark.parametrize("dataset", ["glyphs", "folder"])
@pytest.mark.parametrize("protocol", registry.names("protocol"))
def test_every_protocol_trains_resumes_and_evaluates(
    folder_config: RunConfig, tmp_path: Path, protocol: str, dataset: str
) -> None:
    """A run that is killed at its first validation goes on from there, to the same scores."""

    def scores(name: str, cut: bool) -> list[Any]:
        heard: list[int] = []

        def listen(event: Event) -> None:
            if isinstance(event, Validated):
                heard.append(event.step)
                if cut and len(heard) == 1:
                    raise Stop

        where = {"runs_dir": str(tmp_path / name), "results_dir": str(tmp_path / f"{name}-r")}
        config = folder_config.updated(where)
        of_folder = values_of(config, protocol)
        values = of_folder if dataset == "folder" else on_glyphs(config, tmp_path, protocol)
        values |= {"reproductions": 1, "preset": "mlrc"}
        if cut:
            with pytest.raises(Stop):
                evaluate(["proxyanchor"], values, listen)
            assert list(Path(config.runs_dir).rglob(CHECKPOINT))
        assert evaluate(["proxyanchor"], values, listen).problems == []
        assert heard[1] > heard[0]  # nothing is trained twice
        (record,) = records_of(config)
        assert record.identity["dataset"] == ("folder_pictures" if dataset == "folder" else dataset)
        courses = [fold["history"] for fold in record.folds]
        return [record.scores, record.last, courses]

    assert scores("cut", cut=True) == scores("whole", cut=False)


@pytest.mark.parametrize("newest", ["ms", "triplet"])
def test_a_classic_row_is_never_ranked_with_one_of_the_reality_check(
    tmp_path: Path, newest: str
) -> None:
    """Not even if its record was made to lie among them, under their name."""
    plain = make_record("ms", score=0.5)
    looked = {**plain.identity["protocol"], "select": "test"}
    forged = make_record("triplet", score=0.9, kind="test-selected", protocol=looked)
    for record in (plain, forged):
        day = "02" if record.identity["method"] == newest else "01"
        made = {**record.provenance, "time": f"2026-01-{day}T00:00:00+00:00"}
        table = put(tmp_path, replace(record, provenance=made)).parents[2]
    board = leaderboard.build(table)
    (row,) = board.frame.to_dict("records")
    assert row["method"] == ("ms" if newest == "ms" else "triplet (test-selected)")
    assert pd.isna(row["rank"]) == (newest == "triplet")
    one, other = ("test", "best") if newest == "ms" else ("best", "test")
    assert f"select is {one} in it, {other} in the newest record" in board.problems[0]


def test_test_selected_rows_are_neither_compared_nor_judged(tmp_path: Path) -> None:
    protocol = {**make_record().identity["protocol"], "name": "classic-hpl", "select": "test"}
    for method in ("ms", "triplet"):
        record = make_record(method, protocol=protocol, kind="test-selected")
        put(tmp_path, record)
    with pytest.raises(HarnessError, match="selected on the test classes, are not judged"):
        judge(tmp_path)


@pytest.mark.parametrize("protocol", ["classic-drml", "two_stage", "ablation-ccp"])
def test_models_of_a_fixed_configuration_are_found_again(
    folder_config: RunConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str], protocol: str
) -> None:
    """As those of a search are: embedded, and shown on the page with pictures."""
    values = values_of(folder_config, protocol, preset="mlrc", params={"margin": 0.2})
    evaluate(["triplet"], values)
    (record,) = records_of(folder_config)
    label = record.identity["method"]
    before = openings_of(folder_config, label)
    where = ["--runs-dir", folder_config.runs_dir, "--results-dir", folder_config.results_dir]
    row = f"{label} (test-selected)" if protocol == "classic-drml" else label
    table = ["--dataset", folder_config.dataset, "--protocol", record.identity["protocol"]["name"]]
    output = tmp_path / "test.npz"
    assert main(["embed", row, *table, *where, "--output", str(output)]) == 0
    file = np.load(output)
    found = retrieval.evaluate(*(torch.from_numpy(file[k]) for k in ("concatenated", "labels")))
    assert found.values["map_at_r"] == pytest.approx(record.scores["concatenated"]["map_at_r"])
    page = tmp_path / "page.html"
    assert main(["report", "--pictures", *where, "--output", str(page)]) == 0
    assert "data-thumb=" in page.read_text() and "No pictures" not in capsys.readouterr().err
    assert openings_of(folder_config, label) == before + 2


def test_a_record_cannot_hide_that_it_was_selected_on_the_test() -> None:
    plain = make_record()
    protocol = {**plain.identity["protocol"], "select": "test"}
    with pytest.raises(ValueError, match="kind is reproduction, but the protocol selects by test"):
        make_record(protocol=protocol)


def test_a_fixed_configuration_is_a_row_of_its_own(folder_config: RunConfig) -> None:
    values = values_of(folder_config, "ablation-ccp")
    evaluate(["triplet"], {**values, "preset": "mlrc"})
    evaluate(["triplet"], {**values, "preset": "mlrc", "params": {"margin": 0.2}})
    found = {record.identity["method"] for record in records_of(folder_config)}
    assert found == {"triplet", "triplet+margin=0.2"}


def test_a_fixed_configuration_needs_a_loss(folder_config: RunConfig) -> None:
    with pytest.raises(HarnessError, match="which loss"):
        evaluate([], values_of(folder_config, "classic-hpl"))


@pytest.mark.parametrize("protocol", [*CLASSIC, *ONE_MODEL])
def test_every_protocol_of_a_paper_has_the_network_of_glyphs_there(
    config: RunConfig, tmp_path: Path, protocol: str
) -> None:
    made = build_experiment(config.updated(on_glyphs(config, tmp_path, protocol)))
    assert made.trunk_label == GLYPHS["trunk"]
    assert f"+split=few@{made.split.digest[:8]}" in made.protocol.name


def test_the_variant_of_in_shop_tests_the_last_weights_of_one_stage(
    folder_config: RunConfig,
) -> None:
    values = values_of(folder_config, "two_stage")
    spec = f"{values['protocol']}+folds=none+schedule=constant+select=last"
    done = evaluate(["proxyanchor"], {**values, "protocol": spec})
    assert done.problems == []
    (record,) = records_of(folder_config)
    (fold,) = record.folds
    assert (record.kind, fold["best_step"]) == ("reproduction", fold["steps"])
    assert "best_score" not in fold and openings_of(folder_config, "proxyanchor") == 1


def test_a_classic_protocol_runs_on_frozen_features_under_a_name_of_its_own(
    folder_config: RunConfig,
) -> None:
    values = values_of(folder_config, "classic-hpl")
    done = evaluate(["proxyanchor"], {**values, "protocol": f"{values['protocol']}+frozen=true"})
    assert done.problems == []
    (record,) = records_of(folder_config)
    assert "+frozen=true" in str(record.identity["protocol"]["name"])


def test_ccp_is_told_the_scores_of_the_first_model(
    folder_config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[float] = []
    plain = AlternatingProjections.on_validation_end

    def listen(self: Any, context: Any, score: float) -> None:
        told.append(score)
        plain(self, context, score)

    monkeypatch.setattr(AlternatingProjections, "on_validation_end", listen)
    values = values_of(folder_config, "two_stage")
    evaluate(["ccp-c2"], {**values, "preset": "mlrc"})
    (record,) = records_of(folder_config)
    _, second = record.folds
    count = len(second["history"]["steps"])
    assert told[-count:] == told[:count]  # the second hears what the first heard
    assert max(told) <= 1  # and no steps


@pytest.mark.parametrize("test", [False, True])
def test_a_sweep_under_a_classic_protocol_must_be_one_of_tests(
    folder_config: RunConfig, capsys: pytest.CaptureFixture[str], test: bool
) -> None:
    flags = ["--loss", "triplet", "--over", "params.margin=0.1,0.2", "--seeds", "1"]
    for key, value in values_of(folder_config, "classic-drml").items():
        if key != "reproductions":
            flags += [f"--{key.replace('_', '-')}", str(value)]
    code = main(["sweep", *flags, *(["--test"] if test else [])])
    said = capsys.readouterr()
    if test:
        assert code == 0
        assert {record.kind for record in records_of_sweep(folder_config)} == {"test-selected"}
    else:
        assert code == 2 and "it selects what it reports on the test classes" in said.err


def records_of_sweep(config: RunConfig) -> list[TestRecord]:
    paths = Path(config.results_dir).glob(f"sweeps/*/*/*/{RECORDS}/*/*.json")
    return [TestRecord.read(path) for path in paths]


def test_a_data_set_with_the_same_classes_in_its_test_is_never_ranked(
    folder_config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A made ImageNet of eight classes: training images train, the others of them test."""
    for part, each in (("train", 4), ("val", 3)):
        write_images(tmp_path / "imagenet" / part, num_classes=8, per_class=each)
    publish(monkeypatch, "imagenet_closed")
    more = {"dataset": "imagenet_closed", "data_root": str(tmp_path)}
    with pytest.raises(HarnessError, match="tests on the classes that it trains on"):
        train(folder_config.updated({**more, "loss": "proxyanchor"}))
    done = evaluate(["proxyanchor"], values_of(folder_config, "classic-drml", **more))
    assert done.problems == []
    (record,) = records_of(folder_config)
    assert record.kind == "test-selected" and record.queries == 24
    (folder,) = done.tables
    table = leaderboard.build(folder)
    assert table.frame["rank"].isna().all()
    assert any("on the same classes" in remark for remark in table.table().remarks)
