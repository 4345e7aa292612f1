"""`harness status` about searches: who works on what, and how far they are."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import optuna
import pytest
from made_records import make_record, put
from made_studies import put_study
from optuna.trial import TrialState, create_trial

from harness.cli import main
from harness.config import RunConfig
from harness.searching.journal import Journal
from harness.searching.shared import WANTED

NAME = "mlrc/glyphs-glyphnet/triplet"


def test_a_search_says_who_works_on_what(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = RunConfig(loss="triplet", runs_dir=str(tmp_path / "runs"))
    journal = Journal(put_study(config, NAME, "the loss became nan"))
    study = optuna.load_study(storage=journal.optuna, study_name=NAME)
    study.set_user_attr(WANTED, 50)
    with journal.joined() as worker:
        for index, name in ((3, worker), (4, "node9-123-ab")):
            claim = {"index": index, "worker": name}
            study.add_trial(create_trial(state=TrialState.RUNNING, user_attrs=claim))
        where = ["--runs-dir", config.runs_dir, "--results-dir", str(tmp_path / "results")]
        assert main(["status", *where]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "mlrc/glyphs-glyphnet"
    assert lines[1].startswith(
        "  triplet: 2 of 50 trials, 1 failed, best validation MAP@R 0.2500, about "
    )
    assert lines[2].startswith(f"    trial 4: {socket.gethostname()}, process {os.getpid()}, for ")
    assert "gone" not in lines[2]
    assert lines[3].startswith("    trial 5: node9, process 123, for ")
    assert lines[3].endswith("; this worker is gone, the next one takes it over")
    assert lines[4] == "    trial 2 failed: the loss became nan"
    assert not (journal.folder / "workers" / "node9-123-ab.lock").exists()
    # When the last worker has left, nobody works on it, and nothing says when it will end.
    assert main(["status", *where]) == 0
    assert "no worker is on it" in capsys.readouterr().out


def test_tested_reproductions_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = RunConfig(loss="triplet", runs_dir=str(tmp_path / "runs"))
    put_study(config, "mlrc/cub-bninception/triplet", "no")
    for repetition in (1, 2):
        put(tmp_path / "results", make_record("triplet", repetition, 0.3))
    where = ["--runs-dir", config.runs_dir, "--results-dir", str(tmp_path / "results")]
    assert main(["status", *where]) == 0
    assert "2 reproductions tested" in capsys.readouterr().out


def test_watching_shows_it_again_until_ctrl_c(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = RunConfig(loss="triplet", runs_dir=str(tmp_path))
    put_study(config, NAME, "no")
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", pause)
    assert main(["status", "--watch", "7", "--runs-dir", str(tmp_path)]) == 130
    assert pauses == [7, 7]
    assert capsys.readouterr().out.count("triplet: 2 trials, 1 failed") == 2


def test_a_folder_in_which_nothing_was_started_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", "--runs-dir", str(tmp_path)]) == 2
    assert f"nothing was started in {tmp_path}" in capsys.readouterr().err


@pytest.mark.slow
def test_a_search_keeps_how_many_trials_it_wants(
    folder_config: RunConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    from harness.searching.loop import search

    search([folder_config.updated({"trials": 2, "workers": 1})])
    assert main(["status", "--runs-dir", folder_config.runs_dir]) == 0
    assert ": 2 of 2 trials, 0 failed, best validation" in capsys.readouterr().out
