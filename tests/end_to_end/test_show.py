"""What a search tells of itself: the summary, `harness show` and the dashboard."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from conftest import start
from made_records import make_record, put
from optuna.distributions import FloatDistribution
from optuna.trial import TrialState, create_trial
from test_imports import modules_after

from harness.cli import main
from harness.cli.show import print_summary
from harness.config import RunConfig
from harness.errors import HarnessError
from harness.searching.storage import open_storage
from harness.searching.summary import summarize

SPACE = {"margin": FloatDistribution(0.0, 1.0), "scale": FloatDistribution(0.0, 1.0)}


def add(study: optuna.Study, index: int, margin: float, scale: float, **more: Any) -> None:
    """A trial whose score is 0.5 less its margin's distance from 1; scale hardly matters."""
    score = 0.5 - abs(1.0 - margin) + 0.001 * scale
    facts = {"index": index, "folds": [score - 0.1, score, score, score + 0.1], "seconds": 10.0}
    state = more.pop("state", TrialState.COMPLETE)
    study.add_trial(
        create_trial(
            params={"margin": margin, "scale": scale},
            distributions=dict(SPACE),
            value=None if state == TrialState.FAIL else score,
            state=state,
            user_attrs={**facts, **more},
        )
    )


def fill(study: optuna.Study) -> None:
    """Twelve complete trials, one pruned, one failed, one abandoned, one of them repeated."""
    protocol = {"metric": "map_at_r"}
    identity = {"method": "mine", "protocol": protocol, "fixed_params": {"power": 2}}
    study.set_user_attr("identity", identity)
    rng = np.random.default_rng(0)
    add(study, 0, 0.2, 0.5)
    add(study, 1, 0.2, 0.5)
    for index in range(2, 11):
        add(study, index, *rng.uniform(0.0, 0.6, 2))
    add(study, 11, 0.999, 0.5, seconds=30.0)
    add(study, 12, 0.1, 0.1, state=TrialState.PRUNED)
    add(study, 13, 0.3, 0.3, state=TrialState.FAIL, reason="the loss became nan")
    add(study, 14, 0.4, 0.4, state=TrialState.FAIL)  # its worker died: it will be run again


@pytest.fixture
def study() -> optuna.Study:
    filled = optuna.create_study(direction="maximize")
    fill(filled)
    return filled


def test_the_summary_counts_every_kind_of_trial(study: optuna.Study) -> None:
    found = summarize(study)
    assert (found.trials, found.failed, found.pruned, found.repeated) == (14, 1, 1, 1)
    assert found.reasons == ("the loss became nan",)


def test_the_summary_knows_the_best_trial(study: optuna.Study) -> None:
    found = summarize(study)
    assert found.best_trial == 11
    assert found.best_params == {"power": 2, "margin": 0.999, "scale": 0.5}
    assert found.on_bound == {"margin": "high"}
    # Deviations -0.1, 0, 0, 0.1: a variance of 0.02 / 3.
    assert found.fold_spread == pytest.approx((0.02 / 3) ** 0.5)


@pytest.mark.parametrize(("corner", "almost"), [(0.98, "ms"), (0.2, "")])
def test_the_summary_says_whether_the_best_is_almost_the_base(
    study: optuna.Study, corner: float, almost: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The best margin is 0.999, within 5 % of the first corner."""
    identity = {**study.user_attrs["identity"], "base": "ms", "corner": {"margin": corner}}
    study.set_user_attr("identity", identity)
    found = summarize(study)
    assert found.almost_base == almost
    print_summary(found)
    assert ("it trains almost as ms, its base, does" in capsys.readouterr().out) == bool(almost)


def test_the_parameter_that_makes_the_difference_is_the_important_one(study: optuna.Study) -> None:
    found = summarize(study)
    assert sum(found.importance.values()) == pytest.approx(1.0)
    assert found.importance["margin"] > 0.8


def test_few_trials_show_no_importance() -> None:
    few = optuna.create_study(direction="maximize")
    fill(few)
    some = optuna.create_study(direction="maximize")
    some.set_user_attr("identity", few.user_attrs["identity"])
    some.add_trials(few.get_trials()[:9])
    assert summarize(some).importance == {}


def test_the_curve_has_a_step_for_every_new_best(study: optuna.Study) -> None:
    curve = summarize(study).curve
    scores = [t.values[0] for t in study.get_trials() if t.state == TrialState.COMPLETE]
    expected = [(0, scores[0])]
    for index, score in enumerate(scores):
        if score > expected[-1][1]:
            expected.append((index, score))
    assert list(curve) == expected and curve[-1][0] == 11


def test_a_search_without_a_complete_trial_says_why() -> None:
    empty = optuna.create_study(direction="maximize")
    fill(empty)
    failed = optuna.create_study(direction="maximize")
    failed.set_user_attr("identity", empty.user_attrs["identity"])
    failed.add_trial(empty.get_trials()[13])
    with pytest.raises(HarnessError, match="no trial of mine completed: the loss became nan"):
        summarize(failed)


def test_the_summary_reads_well(study: optuna.Study, capsys: pytest.CaptureFixture[str]) -> None:
    print_summary(summarize(study))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "mine: 14 trials, 1 failed, 2 parameters searched, 1 pruned, 1 repeated"
    assert lines[1] == "  best validation map@r 49.95% (trial 12)"
    assert lines[2] == "  folds: 39.95% 49.95% 49.95% 59.95%, standard deviation 8.16%"
    assert lines[3] == "  params: power=2, margin=0.999, scale=0.5"
    assert lines[4].startswith("  note: margin=0.999 lies on the high end of its range")
    assert re.fullmatch(r"  importance: margin \d+%, scale \d+%", lines[5])
    assert re.fullmatch(r"  best so far: [▁-█]{14} .*, 49\.95% \(12\)", lines[6])
    # The twelfth of fourteen was the best by more than a standard error of its folds, 0.04.
    assert lines[7].startswith("  note: it still rose at the end; more trials, or --until-flat")
    assert lines[8] == "  time: 10 s per trial (10 s to 30 s), 3 min in all"
    assert lines[9] == "  failed 1 times: the loss became nan"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a search, as a search leaves it."""
    made = tmp_path / "runs" / "mlrc" / "glyphs-glyphnet" / "proxyanchor"
    storage = open_storage("", made, "mlrc/glyphs-glyphnet/proxyanchor", 30)
    fill(
        optuna.create_study(
            storage=storage.optuna,
            study_name="mlrc/glyphs-glyphnet/proxyanchor",
            direction="maximize",
        )
    )
    (made / "config.yaml").write_text(RunConfig(loss="proxyanchor").to_yaml())
    return made


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["proxyanchor"],
        ["--loss", "proxyanchor", "--dataset", "glyphs", "--protocol", "mlrc"],
        ["--trunk", "glyphnet"],  # the usual one, which the search was not given
        ["FOLDER"],
    ],
)
def test_show_finds_searches_by_name_and_by_folder(
    folder: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    given = [str(folder) if argument == "FOLDER" else argument for argument in arguments]
    assert main(["show", *given, "--runs-dir", str(folder.parents[2])]) == 0
    assert "best validation map@r 49.95% (trial 12)" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [["triplet"], ["--dataset", "cub"], ["--protocol", "mlrc-hpl"], ["--trunk", "convnet"]],
)
def test_show_says_if_there_is_nothing(
    folder: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", *arguments, "--runs-dir", str(folder.parents[2])]) == 2
    assert "no such search here; start it with harness search" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["show", "status"])
def test_showing_does_not_wait_for_torch(folder: Path, name: str) -> None:
    command = f"main([{name!r}, 'proxyanchor', '--runs-dir', {str(folder.parents[2])!r}])"
    (loaded,) = modules_after(f"from harness.cli import main; {command}")
    assert "torch" not in loaded


@pytest.mark.parametrize("place", ["journal", "database"])
@pytest.mark.slow
def test_the_dashboard_answers(folder: Path, place: str, tmp_path: Path) -> None:
    if place == "database":
        url = f"sqlite:///{tmp_path}/study.db"
        fill(
            optuna.create_study(
                storage=open_storage(url, folder, "mlrc/glyphs-glyphnet/proxyanchor", 30).optuna,
                study_name="mlrc/glyphs-glyphnet/proxyanchor",
                direction="maximize",
            )
        )
        (folder / "config.yaml").write_text(RunConfig(loss="proxyanchor", storage=url).to_yaml())
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "harness", "dashboard", str(folder), "--port", str(port)]
    process: Any = start(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert process.stdout.readline().startswith(f"http://127.0.0.1:{port}/ shows ")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/studies") as reply:
            text = reply.read().decode()
        assert "mlrc/glyphs-glyphnet/proxyanchor" in text
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=300)
        assert process.returncode == 130
    finally:
        process.kill()


def test_a_port_in_use_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["dashboard", str(folder), "--port", str(port)]) == 2
    assert f"cannot listen on 127.0.0.1:{port} (" in capsys.readouterr().err
    assert main(["dashboard", str(folder), "--host", "a..b"]) == 2
    assert "cannot listen on a..b:8080 (" in capsys.readouterr().err


def test_a_missing_dashboard_names_the_extra(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "optuna_dashboard", None)
    assert main(["dashboard", str(folder)]) == 2
    assert "pip install 'metric-harness[dashboard]'" in capsys.readouterr().err


def test_where_methods_are_tested_it_shows_whether_validation_foretold_the_test(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "results"
    for place, name in enumerate("vwxyz"):
        record = make_record(name, score=0.1 + 0.1 * place, dataset="glyphs", trunk="glyphnet")
        record.search["validation"] = 0.9 - 0.1 * place  # the other way round
        put(results, record)
    assert main(["show", str(folder), "--results-dir", str(results)]) == 0
    said = capsys.readouterr().out
    assert "Rank correlation of validation and test MAP@R over 5 methods: -1.00 at 512" in said
    assert "a z, b y, c x, d w, e v" in said  # by their test scores, beneath a scatter
