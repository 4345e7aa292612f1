"""Repeated searches: their seeds, folders and names, and that every command finds them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import study_of

import harness
from harness.cli import main
from harness.config import RunConfig
from harness.errors import HarnessError
from harness.evaluation.kept_models import find_kept
from harness.evaluation.reproductions import evaluate
from harness.experiment import build_experiment
from harness.records.layout import CONFIG, find_records
from harness.records.records import TestRecord, read_record
from harness.searching.found import find_searches
from harness.searching.loop import search
from harness.searching.repeated import repeated


def folders(config: RunConfig) -> list[str]:
    return [found.name for found in find_searches([], {"runs_dir": config.runs_dir})]


def test_search_k_has_the_kth_seed_and_a_folder_of_its_own(
    config: RunConfig, objective: SimpleNamespace
) -> None:
    summaries = search([config.updated({"searches": 3, "seed": 4, "trials": 3})])
    assert [summary.seed for summary in summaries] == [4, 5, 6]
    first = build_experiment(config.updated({"seed": 4}))
    assert folders(config) == [first.name, f"{first.name}/seed-5", f"{first.name}/seed-6"]
    assert objective.calls[0] == objective.calls[3]  # the published one comes first
    assert objective.calls[1] != objective.calls[4]  # Sobol points are of the seed
    for found, seed in zip(
        find_searches([], {"runs_dir": config.runs_dir}), (4, 5, 6), strict=True
    ):
        assert found.config.seed == seed
        with found.study() as study:
            assert study.user_attrs["identity"]["seed"] == seed
            assert study.study_name == found.name


def test_the_first_search_is_the_same_as_without_repeats_and_more_can_be_added(
    config: RunConfig, objective: SimpleNamespace, tmp_path: Path
) -> None:
    search([config.updated({"trials": 2})])
    before = Path(build_experiment(config).runs, CONFIG).read_text()
    search([config.updated({"trials": 2, "searches": 2})])
    assert len(objective.calls) == 4
    assert Path(build_experiment(config).runs, CONFIG).read_text() == before
    search([config.updated({"trials": 2, "searches": 3})])
    assert len(objective.calls) == 6
    # --seed 1 in another run folder is the same as the second of the searches.
    elsewhere = config.updated({"trials": 2, "seed": 1, "runs_dir": str(tmp_path / "elsewhere")})
    search([elsewhere])
    assert objective.calls[6:8] == objective.calls[2:4]


def test_a_repeated_search_goes_on_from_its_own_config(
    config: RunConfig, objective: SimpleNamespace
) -> None:
    search([config.updated({"trials": 2, "searches": 2})])
    file = build_experiment(config).runs / "seed-1" / CONFIG
    assert main(["search", "--config", str(file), "--trials", "3"]) == 0
    assert len(objective.calls) == 5
    assert len(study_of(build_experiment(config.updated({"trials": 3}))).counted()) == 2


def test_workers_and_python_take_searches(config: RunConfig, objective: SimpleNamespace) -> None:
    settings = {
        key: value for key, value in vars(config.updated({"trials": 2})).items() if key != "loss"
    }
    both = harness.search(["proxyanchor"], **{**settings, "searches": 2})  # type: ignore[misc]
    assert [summary.seed for summary in both] == [0, 1]
    first = harness.search("proxyanchor", **{**settings, "searches": 2})  # type: ignore[misc]
    assert first.seed == 0


def test_a_method_with_nothing_to_search_is_searched_once(config: RunConfig) -> None:
    space = build_experiment(config).space
    params = {name: build_experiment(config).published_params[name] for name in space}
    asked = config.updated({"searches": 3, "params": params})
    (only,) = repeated([asked])
    assert (only.seed, only.repeat, only.searches) == (0, 0, 1)


@pytest.mark.parametrize("value", [0, -1])
def test_fewer_than_one_search_is_refused(
    config: RunConfig, value: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(HarnessError, match="searches"):
        config.updated({"searches": value})
    assert main(["search", "--loss", "proxyanchor", "--searches", str(value)]) == 2
    assert "--searches" in capsys.readouterr().err
    assert main(["search", "--loss", "proxyanchor", "--set", f"searches={value}"]) == 2
    assert "searches" in capsys.readouterr().err


@pytest.fixture
def searched(folder_config: RunConfig) -> RunConfig:
    config = folder_config.updated({"trials": 1, "searches": 2})
    search([config])
    return config


def test_eval_shares_the_reproductions_among_the_searches(
    searched: RunConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    values = {"runs_dir": searched.runs_dir, "results_dir": searched.results_dir, "workers": 1}
    done = evaluate([], {**values, "reproductions": 3})
    records = [read_record(path) for path in find_records(done.tables[0])]
    trained = [r for r in records if isinstance(r, TestRecord) and r.kind == "reproduction"]
    runs = Counter((r.identity["seed"], r.repetition) for r in trained)
    assert runs == {(0, 1): 1, (0, 2): 1, (1, 1): 1, (1, 2): 1}
    assert {r.search["asked"]["reproductions"] for r in trained} == {5}  # of 10
    naive = [r for r in records if isinstance(r, TestRecord) and r.kind == "naive"]
    assert {r.identity["seed"] for r in naive} == {0}
    assert len({r.identity["split"] for r in trained}) == 1
    # The models of a repeated search are found again.
    (last,) = [r for r in trained if (r.identity["seed"], r.repetition) == (1, 2)]
    assert "seed-1" in str(find_kept(last, values).units[0].folder)
    before = len(records)
    evaluate([], {**values, "reproductions": 3, "seed": 1})
    assert len(find_records(done.tables[0])) == before
    assert main(["leaderboard", "--results-dir", searched.results_dir]) == 0
    assert "proxyanchor" in capsys.readouterr().out


def test_show_and_retry_find_repeated_searches(
    searched: RunConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", "proxyanchor", "--runs-dir", searched.runs_dir]) == 0
    printed = capsys.readouterr().out
    assert "proxyanchor: 1 trials" in printed and "proxyanchor (seed 1): 1 trials" in printed
    assert main(["retry", "proxyanchor", "--runs-dir", searched.runs_dir]) == 0
    assert "seed-1: 0 failed trials" in capsys.readouterr().out
    folder = build_experiment(searched).runs / "seed-1"
    assert main(["show", str(folder)]) == 0
    assert "proxyanchor: 1" not in capsys.readouterr().out


def test_dashboard_asks_which_of_several_searches(
    searched: RunConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("optuna_dashboard")
    assert main(["dashboard", "proxyanchor", "--runs-dir", searched.runs_dir]) == 2
    assert "seed-1" in capsys.readouterr().err
