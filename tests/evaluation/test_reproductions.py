"""From search to leaderboard, through the command line; and the arithmetic of the test scores."""

from __future__ import annotations

import json
import re
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import FOLDER, run_pictures, study_of, unit_of
from processes import Command
from sklearn.decomposition import PCA

from harness import evaluate as evaluate_from_python
from harness import search as search_from_python
from harness import verdict
from harness.cli import main
from harness.config import RunConfig, load_config
from harness.data.sources import open_part
from harness.evaluation.reproductions import evaluate
from harness.experiment import build_experiment
from harness.losses.method import Hook
from harness.model.build import build_model, build_trunk
from harness.records.classes import read_test_classes
from harness.records.layout import LEDGER, WEIGHTS
from harness.records.records import FoldRecord, MetricsRecord, TestRecord
from harness.searching.loop import search
from harness.tables import leaderboard
from harness.tables.leaderboard_columns import columns_of
from harness.training.single_model import build_single_trainer, without_folds


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One search of two losses on a folder of pictures, and its evaluation, by command line."""
    return run_pictures(tmp_path_factory.mktemp("chain"), ["proxyanchor", "ccp"], FOLDER, trials=2)


def eval_command(root: Path) -> list[str]:
    return eval_from(root / "runs", root / "results")


def eval_from(runs: Path, results: Path, *flags: str) -> list[str]:
    folders = ["--runs-dir", str(runs), "--results-dir", str(results)]
    return ["eval", "--reproductions", "2", "--workers", "1", *folders, *flags]


def config_of(root: Path, loss: str) -> RunConfig:
    return RunConfig().updated(load_config(next(root.glob(f"runs/*/*/{loss}/config.yaml"))))


@pytest.fixture
def table(finished: Path) -> Path:
    return finished / "results" / FOLDER / "folder_pictures-convnet"


def test_the_leaderboard_has_a_row_for_each_method_and_each_naive_baseline(table: Path) -> None:
    frame = pd.read_csv(table / "leaderboard.csv")
    assert set(frame["method"]) == {"proxyanchor", "ccp-c2", "untrained", "pixels"}
    assert list(frame.columns) == [column.name for column in columns_of()]
    trained = frame[frame["trials"].notna()]
    assert trained["reproductions"].tolist() == [2, 2]
    assert sorted(trained["rank"]) == [1, 2]
    assert trained["incomplete"].all()  # 2 trials of 50, 2 reproductions of 10
    ordered = frame["map_at_r_concatenated"].tolist()
    assert ordered == sorted(ordered, reverse=True)


def test_the_table_is_made_of_the_records(table: Path) -> None:
    frame = pd.read_csv(table / "leaderboard.csv").set_index("method")
    records = [TestRecord.read(path) for path in table.glob("records/ccp-c2/*.json")]
    assert sorted(record.repetition for record in records) == [1, 2]
    scores = [record.scores["separated"]["p_at_1"] for record in records]
    assert frame.loc["ccp-c2", "p_at_1_separated"] == pytest.approx(np.mean(scores), rel=1e-12)


@pytest.mark.parametrize("loss", ["proxyanchor", "ccp-c2"])
def test_test_scores_are_those_of_the_saved_models(finished: Path, table: Path, loss: str) -> None:
    """Embeds the test classes again, model by model, and scores them in float64."""
    record = TestRecord.read(next(table.glob(f"records/{loss}/*-01.json")))
    embeddings, labels = embedded_test(config_of(finished, loss), record)

    def normalized(vectors: torch.Tensor) -> torch.Tensor:
        length = vectors.norm(dim=1, keepdim=True)
        return vectors / (length.clamp_min(1) if loss == "ccp-c2" else length)

    parts = [normalized(part) for part in embeddings]
    single = [plain_scores(part, labels) for part in parts]
    together = plain_scores(normalized(torch.cat(parts, 1)), labels)
    for metric in ("p_at_1", "r_precision", "map_at_r"):
        assert record.scores["concatenated"][metric] == pytest.approx(together[metric], abs=1e-5)
        mean = np.mean([scores[metric] for scores in single])
        assert record.scores["separated"][metric] == pytest.approx(mean, abs=1e-5)


def embedded_test(
    config: RunConfig, record: TestRecord | MetricsRecord
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Raw embeddings of the test classes by each saved model of a run, and their labels."""
    experiment = build_experiment(config)
    source = open_part(experiment, "test")
    images = source.for_evaluation(source.indices)
    embeddings = []
    for fold in range(4):
        model = build_model(experiment, record.params, seed=0).eval()
        folder = unit_of(experiment, record.params, fold, record.repetition).folder
        model.load_state_dict(torch.load(folder / WEIGHTS))
        with torch.no_grad():
            embeddings.append(model(images))
    return embeddings, torch.from_numpy(experiment.listing.labels[source.indices])


def plain_scores(embeddings: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
    """From the definitions, for classes of equal size: all distances, sorted."""
    vectors = embeddings.double()
    distances = torch.cdist(vectors, vectors, compute_mode="donot_use_mm_for_euclid_dist")
    distances.fill_diagonal_(torch.inf)
    others = int((labels == labels[0]).sum()) - 1
    nearest = distances.argsort(dim=1, stable=True)[:, :others]
    hits = (labels[nearest] == labels[:, None]).double()
    precision = hits.cumsum(1) / torch.arange(1, others + 1)
    return {
        "p_at_1": hits[:, 0].mean().item(),
        "r_precision": hits.mean().item(),
        "map_at_r": (precision * hits).mean().item(),
    }


@pytest.mark.parametrize("name", ["ccp-c2", "untrained"])
@pytest.mark.parametrize("embedding", ["concatenated", "separated"])
def test_the_scores_of_the_classes_make_up_the_score(
    table: Path, name: str, embedding: str
) -> None:
    record = TestRecord.read(next(table.glob(f"records/{name}/*.json")))
    assert record.class_queries == [5] * 8  # half of 16 classes
    for metric, values in record.per_class[embedding].items():
        assert len(set(values)) > 1
        mean = np.average(np.array(values, float), weights=record.class_queries)
        assert mean == pytest.approx(record.scores[embedding][metric], abs=1e-6)


def test_pixels_are_reduced_by_the_pca_of_the_trainval_images(finished: Path, table: Path) -> None:
    experiment = build_experiment(config_of(finished, "proxyanchor"))
    parts = {}
    for name in ("trainval", "test"):
        source = open_part(experiment, name)
        pixels = source.for_evaluation(source.indices).flatten(1).double().numpy()
        parts[name] = pixels, experiment.listing.labels[source.indices]
    assert len(parts["trainval"][0]) == 40  # which span 39 directions, fewer than 128
    pca = PCA(39, svd_solver="full").fit(parts["trainval"][0])
    reduced = torch.from_numpy(pca.transform(parts["test"][0])).float()
    labels = torch.from_numpy(parts["test"][1])
    expected = plain_scores(torch.nn.functional.normalize(reduced), labels)
    frame = pd.read_csv(table / "leaderboard.csv").set_index("method")
    assert frame.loc["pixels", "map_at_r_separated"] == pytest.approx(
        expected["map_at_r"], abs=1e-4
    )


def test_records_keep_the_course_of_the_search_and_of_each_training(
    finished: Path, table: Path
) -> None:
    record = TestRecord.read(next(table.glob("records/ccp-c2/*-01.json")))
    folds = [FoldRecord.read(path) for path in finished.glob("runs/*/*/ccp-c2/folds/*/record.json")]
    for facts in record.folds:
        (fold,) = (f for f in folds if f.repetition == 1 and f.fold == facts["fold"])
        kept = zip(*(facts["history"][key] for key in ("steps", "loss", "score")), strict=True)
        assert list(kept) == [pytest.approx(entry, rel=1e-4) for entry in fold.history]
        assert facts["hook"]["events"]["new proxies"]
    search = record.search
    assert search["corner"] == {"batch_share": 1.0, "reference_weight": 1e-5}
    best = search["best_trial"]
    assert set(search["trial_params"]) == set(search["ranges"]) <= set(record.params)
    for name, values in search["trial_params"].items():
        assert len(values) == search["trials"] == len(search["trial_seconds"])
        assert values[best] == pytest.approx(record.params[name], rel=1e-4)
        ends = search["ranges"][name]
        assert all(ends["low"] <= value <= ends["high"] for value in values)


def test_the_names_of_the_test_classes_stand_beside_the_records(table: Path) -> None:
    record = TestRecord.read(next(table.glob("records/ccp-c2/*-01.json")))
    names = read_test_classes(table, record.identity["split"])
    assert names is not None and len(names) == len(set(names)) == len(record.class_queries)
    assert read_test_classes(table, "another split") is None


def test_running_it_again_does_nothing_twice(finished: Path, table: Path) -> None:
    files = [*finished.glob("**/record.json"), *table.glob("**/*.json"), table / LEDGER]
    before = {path: path.stat().st_mtime_ns for path in files}
    assert len(before) > 16
    assert main(eval_command(finished)) == 0
    assert {path: path.stat().st_mtime_ns for path in files} == before


def test_the_search_is_not_among_the_reproductions(finished: Path) -> None:
    folds = [FoldRecord.read(path) for path in finished.glob("runs/*/*/ccp-c2/folds/*/record.json")]
    by_repetition = {r: {f.fold for f in folds if f.repetition == r} for r in (0, 1, 2)}
    assert by_repetition == {0: {0, 1, 2, 3}, 1: {0, 1, 2, 3}, 2: {0, 1, 2, 3}}
    assert len([f for f in folds if f.repetition == 0]) == 8  # two trials


@pytest.fixture
def results(finished: Path, tmp_path: Path) -> Path:
    """A copy of the results, to which more may be added."""
    return Path(shutil.copytree(finished / "results", tmp_path / "results"))


WANTED = ["--metrics", "recall@1,4", "nmi", "covering_radius", "class_distance"]


def test_more_metrics_are_measured_from_the_kept_weights(
    finished: Path, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = results / FOLDER / "folder_pictures-convnet"
    before = {path: path.read_bytes() for path in table.glob("records/*/*.json")}
    openings = len((table / LEDGER).read_text().splitlines())
    assert main(eval_from(finished / "runs", results, *WANTED)) == 0
    assert "R@4 512" in capsys.readouterr().out
    frame = pd.read_csv(table / "leaderboard.csv").set_index("method")
    for row in ("ccp-c2", "proxyanchor", "untrained", "pixels"):
        for embedding in ("concatenated", "separated"):
            assert frame.loc[row, f"recall_at_1_{embedding}"] == pytest.approx(
                frame.loc[row, f"p_at_1_{embedding}"]
            )
            assert (
                frame.loc[row, f"recall_at_4_{embedding}"]
                >= frame.loc[row, f"recall_at_1_{embedding}"]
            )
    assert frame[["nmi_concatenated", "covering_radius_separated"]].notna().all(axis=None)
    # Nothing old was touched; every run has one new record, and one more opening.
    after = {path: path.read_bytes() for path in table.glob("records/*/*.json")}
    assert before.items() <= after.items() and len(after) == 2 * len(before)
    assert len((table / LEDGER).read_text().splitlines()) == openings + len(before)
    assert main(eval_from(finished / "runs", results, *WANTED)) == 0  # nothing is done twice
    assert {path: path.read_bytes() for path in table.glob("records/*/*.json")} == after
    assert len((table / LEDGER).read_text().splitlines()) == openings + len(before)


def test_geometry_on_demand_is_that_of_the_test_embeddings(finished: Path, results: Path) -> None:
    assert (
        main(eval_from(finished / "runs", results, "--loss", "ccp", "--metrics", "class_distance"))
        == 0
    )
    table = results / FOLDER / "folder_pictures-convnet"
    path = next(table.glob("records/ccp-c2/*-01.metrics.class_distance.json"))
    record = MetricsRecord.read(path)
    embeddings, labels = embedded_test(config_of(finished, "ccp-c2"), record)
    means = []
    for vectors in embeddings:
        vectors = vectors / vectors.norm(dim=1, keepdim=True).clamp_min(1)
        apart = labels[:, None] != labels
        means.append(torch.cdist(vectors, vectors)[apart].mean().item())
    assert record.scores["separated"]["class_distance"] == pytest.approx(np.mean(means), rel=1e-4)


def test_one_model_of_the_size_of_four_has_a_row_of_its_own(
    finished: Path, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--loss", "ccp", "--single-512", "--metrics", "recall@1", "--published"]
    command = eval_from(finished / "runs", results, *flags)
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "single: one model of that size" in said
    assert "published: no paper has numbers on folder_pictures" in said
    table = results / FOLDER / "folder_pictures-convnet"
    row = pd.read_csv(table / "leaderboard.csv").set_index("method").loc["ccp-c2 (single 512)"]
    assert row["kind"] == "single" and np.isnan(row["rank"]) and row["reproductions"] == 2
    assert row["dim_concatenated"] == 512 and np.isnan(row["map_at_r_separated"])
    assert row["recall_at_1_concatenated"] == pytest.approx(row["p_at_1_concatenated"])
    records = [TestRecord.read(path) for path in sorted(table.glob("records/ccp-c2/*.single.json"))]
    four = [TestRecord.read(path) for path in sorted(table.glob("records/ccp-c2/*-0?.json"))]
    for record, together in zip(records, four, strict=True):
        # Trained for the mean of the fold models' best steps, in whole validations of 2 steps.
        mean = np.mean([fold["best_step"] for fold in together.folds])
        assert [fold["steps"] for fold in record.folds] == [2 * round(mean / 2)]
        assert record.folds[0]["best_step"] == record.folds[0]["steps"]  # the last weights
        assert record.identity == together.identity and record.params == together.params
        assert "best_score" not in record.folds[0]  # nothing was left to validate on
        assert record.separated == [] and list(record.scores) == ["concatenated"]
    files = len(list(table.glob("records/*/*.json")))
    assert main(command) == 0  # nothing is done twice
    assert len(list(table.glob("records/*/*.json"))) == files


def test_one_model_needs_the_folds_that_say_for_how_long(
    finished: Path, results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = Path(shutil.copytree(finished / "runs", tmp_path / "runs"))
    for folds in runs.glob("*/*/ccp-c2/folds"):
        shutil.rmtree(folds)
    assert main(eval_from(runs, results, "--loss", "ccp", "--single-512")) == 2
    assert "one model is trained for as long as its fold models" in capsys.readouterr().err


def test_the_single_model_trains_on_all_trainval_classes(finished: Path) -> None:
    experiment = build_experiment(config_of(finished, "ccp-c2"))
    folds = [FoldRecord.read(p) for p in finished.glob("runs/*/*/ccp-c2/folds/*/record.json")][:4]
    alone = without_folds(experiment, folds)
    unit = unit_of(alone, folds[0].params, repetition=1)
    trainer = build_single_trainer(unit, torch.device("cpu"), folds)
    assert len(trainer.batches.indices) == len(experiment.split.trainval) == 8
    assert trainer.model.head.weight.shape[0] == 512
    assert alone.split.test == experiment.split.test


def test_the_hook_of_the_single_model_hears_the_scores_of_the_folds(
    finished: Path, tmp_path: Path
) -> None:
    path = next(finished.glob("runs/*/*/ccp-c2/folds/*/record.json"))
    fold = FoldRecord.read(path)
    longer = replace(fold, best_step=4, history=[(2, 0.0, 0.3), (4, 0.0, 0.5)])
    shorter = replace(fold, best_step=2, history=[(2, 0.0, 0.1)])
    folds = [longer, shorter, longer, shorter]
    heard = []

    class Listening(Hook):
        def on_validation_end(self, context: Any, score: float) -> None:
            heard.append((context.step, score))

    experiment = build_experiment(config_of(finished, "ccp-c2"))
    method = replace(experiment.method, build_hook=lambda **params: Listening())
    alone = without_folds(replace(experiment, method=method), folds)
    unit = unit_of(alone, fold.params, repetition=1)
    trainer = build_single_trainer(unit, torch.device("cpu"), folds)
    assert trainer.fit(tmp_path / "checkpoint.pt", seed=0).best_step == 4
    assert heard == [(2, pytest.approx(0.2)), (4, 0.5)]


def test_an_unknown_metric_is_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "--metrics", "recal@1"]) == 2
    assert "no metric on demand named 'recal@1'. Did you mean 'recall@1" in capsys.readouterr().err


def record_of_a_fold_model(runs: Path) -> Path:
    """Of ccp-c2 at reproduction 1; another test may have left its single model."""
    for path in runs.glob("*/*/ccp-c2/folds/*/record.json"):
        fold = FoldRecord.read(path)
        if fold.repetition == 1 and fold.identity["protocol"]["embedding_size"] == 128:
            return path
    raise AssertionError("no fold of reproduction 1")


def test_weights_that_are_gone_are_named_and_the_rest_is_measured(
    runs: Path, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = results / FOLDER / "folder_pictures-convnet"
    openings = len((table / LEDGER).read_text().splitlines())
    record = record_of_a_fold_model(runs)
    record.with_name(WEIGHTS).write_bytes(b"broken")
    assert main(eval_from(runs, results, "--metrics", "nmi")) == 2
    said = capsys.readouterr().err
    assert "evaluated:\n  ccp-c2, reproduction 1: the weights of fold" in said
    assert str(record.parent) in said
    frame = pd.read_csv(table / "leaderboard.csv").set_index("method")
    assert frame["nmi_concatenated"].notna().all()  # of ccp-c2, from reproduction 2
    assert len((table / LEDGER).read_text().splitlines()) == openings + 6  # of seven runs


def test_a_saved_config_repeats_its_run(finished: Path, tmp_path: Path) -> None:
    folder = next(finished.glob("runs/*/*/proxyanchor/folds/*/")).parent
    path = next(p for p in folder.glob("*/record.json") if FoldRecord.read(p).repetition == 0)
    record = FoldRecord.read(path)
    config = RunConfig().updated(load_config(path.with_name("config.yaml")))
    again = build_experiment(config.updated({"runs_dir": str(tmp_path)}))
    assert again.published_params == record.params
    assert unit_of(again, fold=record.fold).folder.name == path.parent.name


def test_records_say_how_they_were_made(table: Path) -> None:
    record = TestRecord.read(next(table.glob("records/proxyanchor/*.json")))
    assert record.provenance["versions"]["torch"] == torch.__version__.split("+")[0]
    assert {"commit", "clean", "command", "time", "python"} <= set(record.provenance)
    assert record.search["trials"] == 2 and len(record.folds) == 4
    assert record.identity["protocol"]["max_steps"] == 4


@pytest.mark.parametrize(("loss", "base"), [("ccp-c2", "c2"), ("proxyanchor", "")])
def test_records_say_what_a_method_adds_something_to(table: Path, loss: str, base: str) -> None:
    record = TestRecord.read(next(table.glob(f"records/{loss}/*.json")))
    assert record.search["base"] == base


def test_the_same_command_gives_bit_identical_scores(
    folder_config: RunConfig, tmp_path: Path
) -> None:
    found = []
    for name in ("one", "other"):
        settings = folder_config.updated({"runs_dir": str(tmp_path / name), "trials": 2})
        search([settings])
        trials = study_of(build_experiment(settings)).completed()
        found.append([(trial.params, trial.user_attrs["folds"]) for trial in trials])
    assert found[0] == found[1]


@pytest.mark.slow
@pytest.mark.usefixtures("quick_workers")
def test_the_number_of_workers_does_not_change_a_score(
    folder_config: RunConfig, tmp_path: Path
) -> None:
    found = []
    for count in (1, 2):
        settings = folder_config.updated(
            {"runs_dir": str(tmp_path / str(count)), "trials": 4, "workers": count}
        )
        search([settings])
        trials = study_of(build_experiment(settings)).completed()
        found.append({str(t.params): t.user_attrs["folds"] for t in trials})
    assert len(found[0]) == 4
    assert found[0] == found[1]


@pytest.mark.slow
@pytest.mark.usefixtures("quick_workers")
def test_two_workers_evaluate_everything_once(finished: Path, tmp_path: Path) -> None:
    command = eval_command(finished)
    command[command.index("--workers") + 1] = "2"
    command[command.index("--results-dir") + 1] = str(tmp_path)
    assert main(command) == 0
    table = tmp_path / FOLDER / "folder_pictures-convnet"
    assert len(list(table.glob("records/*/*.json"))) == 2 + 2 + 2 + 1
    assert len((table / LEDGER).read_text().splitlines()) == 7


@pytest.mark.slow
def test_a_killed_search_is_finished_by_the_same_command(
    tmp_path: Path, image_folder: Path
) -> None:
    command = [
        *("search", "--loss", "triplet", "--device", "cpu", "--runs-dir", str(tmp_path)),
        *("--dataset", f"folder:{image_folder}", "--protocol", FOLDER, "--trunk", "convnet"),
        *("--trials", "11", "--workers", "1"),
    ]
    killed = Command(*command)
    killed.read_until("trial 2/11")
    killed.signal(signal.SIGKILL)
    killed.finish()
    records = {p: p.stat().st_mtime_ns for p in tmp_path.glob("**/record.json")}
    assert 8 <= len(records) < 44
    again = Command(*command)
    printed, said = again.finish()
    assert again.exit_code == 0 and "11 trials, 0 failed" in printed
    assert "trial 1/11" not in said and "trial 2/11" not in said
    assert all(path.stat().st_mtime_ns == time for path, time in records.items())


def test_a_loss_of_ones_own_goes_all_the_way(folder_config: RunConfig, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "from optuna.distributions import FloatDistribution\n"
        "from pytorch_metric_learning.losses import TripletMarginLoss\n"
        "class Mine(TripletMarginLoss): pass\n"
        "SPACE = {'margin': FloatDistribution(0, 1)}\n"
    )
    keys = ("dataset", "protocol", "trunk", "runs_dir", "results_dir", "cache_dir", "workers")
    values: dict[str, Any] = {key: getattr(folder_config, key) for key in keys}
    summary = search_from_python(loss=str(path), trials=2, **values)
    assert summary.trials == 2 and set(summary.best_params) == {"margin"}
    board = evaluate_from_python(str(path), reproductions=1, **values)[0]
    assert summary.method in board.frame["method"].tolist()
    said = verdict("mine", results_dir=folder_config.results_dir, against="none")
    assert said.startswith(f"# {summary.method} against") and "ranks 1 of 1" in said


def test_evaluating_nothing_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", "--runs-dir", str(tmp_path), "--dataset", "glyphs"]) == 2
    assert "search first: harness search --loss NAME --dataset glyphs" in capsys.readouterr().err


def test_a_search_without_a_complete_trial_is_named(config: RunConfig) -> None:
    study_of(build_experiment(config))
    prepared = Path(build_experiment(config).runs)
    (prepared / "config.yaml").write_text(config.to_yaml())
    with pytest.raises(Exception, match=r"/proxyanchor: no trial of proxyanchor completed"):
        evaluate([], {"runs_dir": config.runs_dir})


@pytest.fixture
def runs(finished: Path, tmp_path: Path) -> Path:
    """A copy of the runs, which may be spoiled."""
    return Path(shutil.copytree(finished / "runs", tmp_path / "runs"))


def test_a_search_that_cannot_be_read_is_named_and_the_others_are_evaluated(
    runs: Path, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = next(runs.glob("*/*/ccp-c2/config.yaml"))
    path.write_text("loss: [ccp")
    assert main(eval_from(runs, results)) == 2
    captured = capsys.readouterr()
    assert f"evaluated:\n  {path.parent}: {path} is not valid YAML" in captured.err
    assert "proxyanchor" in captured.out


def test_a_search_on_images_that_are_gone_is_named(
    runs: Path, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = next(runs.glob("*/*/ccp-c2/config.yaml"))
    path.write_text(path.read_text().replace("/pictures", "/moved"))
    assert main(eval_from(runs, results)) == 2
    said = capsys.readouterr().err
    assert f"evaluated:\n  {path.parent}: no folder at" in said and "/moved" in said


def test_a_half_finished_search_is_evaluated_and_marked(table: Path) -> None:
    """Two trials of the fifty that the protocol asks for."""
    row = pd.read_csv(table / "leaderboard.csv").set_index("method").loc["proxyanchor"]
    assert row["trials"] == 2 and row["incomplete"]
    assert " of 50 trials" in (table / "leaderboard.md").read_text()


def test_a_truncated_record_of_a_model_is_set_aside_and_the_model_trained_again(
    runs: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = record_of_a_fold_model(runs)
    before = FoldRecord.read(path)
    path.write_text(path.read_text()[:50])
    assert main(eval_from(runs, tmp_path / "new")) == 0
    assert f"{path} is damaged" in caplog.text and path.with_name("record.damaged.json").exists()
    assert FoldRecord.read(path).history == before.history
    table = tmp_path / "new" / FOLDER / "folder_pictures-convnet"
    frame = pd.read_csv(table / "leaderboard.csv").set_index("method")
    assert frame.loc[["ccp-c2", "proxyanchor"], "reproductions"].tolist() == [2, 2]


def test_a_truncated_record_of_a_test_is_named_by_the_command(
    runs: Path, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = next(results.glob("*/*/records/ccp-c2/*-01.json"))
    path.write_text(path.read_text()[:50])
    assert main(eval_from(runs, results, "--metrics", "nmi")) == 2
    said = capsys.readouterr().err
    assert f"warning: {path}: not a complete JSON file" in said
    assert path.read_text().count("\n") < 10, "it is left as it is"
    frame = pd.read_csv(path.parent.parent.parent / "leaderboard.csv").set_index("method")
    assert frame["nmi_concatenated"].notna().all()


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("identity", {"method": "proxyanchor"}, "lacks field 'identity.protocol'"),
        ("scores", {}, "scores lack concatenated"),
        ("provenance", [], "field 'provenance' takes a mapping, got [] (list)"),
    ],
)
def test_a_record_that_lacks_what_tables_need_is_named(
    copied: Path, name: str, value: Any, reason: str
) -> None:
    path = next(copied.glob("records/proxyanchor/*.json"))
    path.write_text(json.dumps({**json.loads(path.read_text()), name: value}))
    board = leaderboard.build(copied)
    assert board.problems == [f"{path}: not a TestRecord: {reason}"]
    assert board.frame.set_index("method").loc["proxyanchor", "reproductions"] == 1


def test_a_table_without_a_readable_record_is_left_as_it_is(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (table,) = results.glob("*/*/leaderboard.csv")
    before = table.read_text()
    for path in results.glob("*/*/records/*/*.json"):
        path.write_text("")
    assert main(["leaderboard", "--results-dir", str(results)]) == 0
    assert capsys.readouterr().err.count("not a complete JSON file") == 7
    assert table.read_text() == before


@pytest.fixture
def copied(table: Path, tmp_path: Path) -> Path:
    """A table whose records may be spoiled."""
    for path in table.glob("**/*.json*"):
        target = tmp_path / path.relative_to(table)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    return tmp_path


def test_a_truncated_record_is_named_and_the_rest_is_ranked(copied: Path) -> None:
    path = next(copied.glob("records/proxyanchor/*.json"))
    path.write_text(path.read_text()[:100])
    board = leaderboard.build(copied)
    assert len(board.problems) == 1 and str(path) in board.problems[0]
    assert board.frame.set_index("method").loc["proxyanchor", "reproductions"] == 1


def test_a_record_of_another_version_of_the_data_is_left_out(copied: Path) -> None:
    path = next(copied.glob("records/proxyanchor/*.json"))
    values = json.loads(path.read_text())
    values["identity"]["data_fingerprint"] = "another"
    values["provenance"]["time"] = "2020-01-01T00:00:00+00:00"
    path.write_text(json.dumps(values))
    board = leaderboard.build(copied)
    (problem,) = board.problems
    assert problem.startswith(f"{path}: another version of the trainval images (another in it, ")
    assert problem.endswith(" in the newest record); left out")
    assert board.frame.set_index("method").loc["proxyanchor", "reproductions"] == 1


def test_parameters_are_chosen_by_validation_never_by_test(copied: Path) -> None:
    for path in list(copied.glob("records/proxyanchor/*.json")):
        values = json.loads(path.read_text())
        values["params"]["margin"] = 0.49
        values["search"]["validation"] = 0.0  # worse in validation,
        values["scores"]["concatenated"]["map_at_r"] = 0.99  # better on the test classes
        path.with_name(f"other-{path.name}").write_text(json.dumps(values))
    board = leaderboard.build(copied)
    assert board.frame.set_index("method").loc["proxyanchor", "map_at_r_concatenated"] < 0.9


def test_markdown_shows_percent_with_intervals(table: Path) -> None:
    text = (table / "leaderboard.md").read_text()
    frame = pd.read_csv(table / "leaderboard.csv").set_index("method")
    row = frame.loc["proxyanchor"]
    mean, half_width = row["map_at_r_concatenated"], row["map_at_r_concatenated_ci95"]
    assert f"{100 * mean:.2f} ± {100 * half_width:.2f}" in text
    assert "MAP@R 512" in text and "MAP@R 128" in text


def test_training_stands_beside_what_it_started_from(
    config: RunConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    """PCA of the features before training, done again with numpy's own decomposition."""
    where = ["--protocol", config.protocol, "--device", "cpu", "--runs-dir", config.runs_dir]
    command = ["train", "--loss", "proxyanchor", *where, "--folds", "1", "--naive"]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "fold 1:" in said and "fold 2:" not in said
    experiment = build_experiment(config)
    trunk = build_trunk(experiment, experiment.seed("init", fold=0, repetition=0)).eval()
    classes, source = experiment.split.folds[0], open_part(experiment, "trainval")
    train, val = (
        experiment.of_classes(source.indices, some) for some in (classes.train, classes.val)
    )
    with torch.no_grad():
        seen, unseen = (trunk(source.for_evaluation(i)).double() for i in (train, val))
    directions = torch.linalg.svd(seen - seen.mean(0), full_matrices=False).Vh
    reduced = torch.nn.functional.normalize((unseen - seen.mean(0)) @ directions.T)
    labels = torch.from_numpy(experiment.listing.labels[val])
    expected = plain_scores(reduced, labels)["map_at_r"]
    printed = re.search(r"before training, PCA to 128: ([0-9.]+)", said)
    assert printed is not None and float(printed[1]) == pytest.approx(100 * expected, abs=2e-2)
