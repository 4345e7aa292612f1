"""Known answers go through search, evaluation and judgement, and the result says what came out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.calibration.calibrate import Plan, calibrate, describe
from harness.cli import main
from harness.config import RunConfig
from harness.errors import HarnessError


@pytest.fixture
def plan(folder_config: RunConfig, tmp_path: Path) -> Plan:
    budget = {"loss": "triplet", "trials": 1, "searches": 2, "reproductions": 2, "workers": 1}
    return Plan(folder_config.updated(budget), copies=2, folder=tmp_path / "calibration")


@pytest.mark.slow
def test_copies_are_searched_with_seeds_of_their_own_and_finished_work_is_kept(plan: Plan) -> None:
    found = calibrate(plan)
    assert (found.searches, found.trials, found.reproductions) == (2, 1, 2)
    assert found.copy_pairs == 1 and found.weakened_pairs == 2
    # With the same seeds they would be the same to the last bit.
    assert len(set(found.copy_scores)) == 2
    written = json.loads((plan.folder / "calibration.json").read_text())
    assert written["copy_scores"] == list(found.copy_scores)
    records = {path: path.stat().st_mtime_ns for path in plan.folder.rglob("records/*/*.json")}
    assert len(records) >= 8
    assert calibrate(plan) == found
    assert records == {path: path.stat().st_mtime_ns for path in records}
    text = "\n".join(describe(found))
    assert "of 1 pairs were called different" in text and "Better than no training?" not in text
    assert "better than no training?" in text


def test_one_copy_is_refused_before_any_work(plan: Plan) -> None:
    with pytest.raises(HarnessError, match="at least 2 copies"):
        calibrate(Plan(plan.config, 1, plan.folder))
    assert not plan.folder.exists()


def test_a_loss_file_that_fails_is_named_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("raise ValueError('no')")
    assert main(["calibrate", "--loss", "mine.py", "--quick"]) == 2
    assert "mine.py does not import: ValueError: no" in capsys.readouterr().err
    assert not list(tmp_path.rglob("runs"))
