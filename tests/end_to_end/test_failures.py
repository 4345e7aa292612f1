"""Failures are data: a trial that fails says why; what is no trial's fault stops the search."""

from __future__ import annotations

import errno
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import FOLDER, study_of, unit_of
from processes import Command

from harness.cli import main
from harness.config import RunConfig
from harness.errors import HarnessError, OutOfMemory
from harness.experiment import Experiment, build_experiment
from harness.losses.method import Hook
from harness.records.layout import FAILURE, RETRIED
from harness.records.records import FoldRecord
from harness.searching.loop import search
from harness.system import files
from harness.system.files import naming_disk_trouble, write_text
from harness.training.fold import run_fold
from harness.training.trainer import Trainer, TrainingFailed
from harness.training.unit import Unit

LOSS = """
import torch
from optuna.distributions import FloatDistribution
from pytorch_metric_learning.losses import TripletMarginLoss

class Mine(TripletMarginLoss):
    steps = 0

    def compute_loss(self, embeddings, labels, *more):
        self.steps += 1
        if self.steps == 1:  # which a check before the search tries
            return super().compute_loss(embeddings, labels, *more)
        {body}

SPACE = {{"margin": FloatDistribution(0, 1)}}
"""


BROKEN = """def __init__(self, margin):
        raise ZeroDivisionError("mine")

"""


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("raise ZeroDivisionError('mine')", "ZeroDivisionError: mine"),
        (
            "return {'loss': {'losses': embeddings.sum() * float('nan'), 'indices': None, "
            "'reduction_type': 'already_reduced'}}",
            "the loss became nan between steps 0 and 3",
        ),
    ],
)
def test_a_loss_that_fails_fails_its_trials_with_reason_and_traceback(
    config: RunConfig, tmp_path: Path, body: str, reason: str
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(LOSS.format(body=body))
    wanted = config.updated({"loss": str(path), "trials": 2})
    with pytest.raises(HarnessError, match=f"no trial of mine@.* completed: {re.escape(reason)}"):
        search([wanted])
    experiment = build_experiment(wanted)
    study = study_of(experiment)
    assert [t.user_attrs["reason"] for t in study.counted()] == [reason, reason]
    noted = (unit_of(experiment).folder / FAILURE).read_text()
    assert noted.startswith("Traceback") and reason.split(": ")[-1] in noted


@pytest.mark.parametrize("command", ["search", "train", "submit"])
@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("params.margin=abc", "margin must be a number, got 'abc'"),
        ("params.margin=nan", "margin must be"),
        ("params.proxies_per_class=2.5", "proxies_per_class must be a whole number, got 2.5"),
        ("params.pool_ratio=-3.0", "ccp-triplet cannot be built with"),
    ],
)
def test_a_bad_value_is_one_message_before_any_work(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    command: str,
    assignment: str,
    message: str,
) -> None:
    runs = tmp_path / "runs"
    given = [command, "--loss", "ccp-triplet", "--set", assignment, "--runs-dir", str(runs)]
    assert main(given) == 2
    said = capsys.readouterr().err
    assert said.count("error: ") == 1 and message in said and "Traceback" not in said
    assert not runs.exists(), "no trial was spent"


@pytest.mark.parametrize("command", ["search", "train"])
def test_a_loss_that_cannot_be_built_is_one_message_before_any_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    path = tmp_path / "mine.py"
    text = LOSS.format(body="pass")
    path.write_text(text.replace("def compute_loss", BROKEN + "    def compute_loss"))
    runs = tmp_path / "runs"
    assert main([command, "--loss", str(path), "--runs-dir", str(runs)]) == 2
    said = capsys.readouterr().err
    assert said.count("cannot be built with margin=0.5\n  ZeroDivisionError: mine\n") == 1
    assert "Traceback" not in said and not runs.exists()


OUT_OF_MEMORY = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
    MemoryError(),
    RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
]


class Failing(Hook):
    """Raises at its fourth step, and so often."""

    def __init__(self, error: Exception, times: int) -> None:
        self.error, self.times, self.steps = error, times, 0

    def after_backward(self, context: Any) -> None:
        self.steps += 1
        if 4 <= self.steps < 4 + self.times:
            raise self.error


def run_with(unit: Unit, hook: Hook) -> FoldRecord:
    def build(unit: Unit, device: torch.device) -> Trainer:
        return unit.build_trainer(device, wrap_hook=lambda own: hook)

    return run_fold(unit, build_trainer=build)


@pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=lambda error: type(error).__name__)
def test_a_run_out_of_memory_goes_on_from_its_checkpoint_after_a_pause_that_grows(
    make_experiment: Callable[..., Experiment],
    tmp_path: Path,
    error: Exception,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("harness.training.fold.time.sleep", pauses.append)
    untroubled = make_experiment(runs_dir=str(tmp_path / "untroubled"))
    expected = run_fold(unit_of(untroubled))
    unit, hook = unit_of(make_experiment()), Failing(error, times=2)
    record = run_with(unit, hook)
    assert hook.steps == 3 + 1 + 1 + 3  # the checkpoint of step 3 was used
    assert pauses == [2, 20]
    assert record.history == expected.history
    assert type(error).__name__ in (unit.folder / RETRIED).read_text()


def test_memory_that_stays_short_is_told_as_what_it_is(
    make_experiment: Callable[..., Experiment], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.training.fold.time.sleep", lambda seconds: None)
    unit = unit_of(make_experiment())
    with pytest.raises(OutOfMemory, match=r"out of memory: CUDA out of memory. Tried .* help: "):
        run_with(unit, Failing(OUT_OF_MEMORY[0], times=3))
    assert "OutOfMemoryError" in (unit.folder / RETRIED).read_text()
    assert not (unit.folder / FAILURE).exists()


def test_another_error_is_not_tried_again(make_experiment: Callable[..., Experiment]) -> None:
    hook = Failing(RuntimeError("shapes cannot be multiplied"), times=1)
    with pytest.raises(TrainingFailed, match="shapes cannot be multiplied"):
        run_with(unit_of(make_experiment()), hook)
    assert hook.steps == 4


def test_a_full_disk_stops_the_search_and_is_no_failure_of_a_trial(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = torch.save

    def full(state: Any, file: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    wanted = config.updated({"trials": 1})
    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(
        HarnessError, match=r"No space left on device\n.*repeat the command to go on"
    ):
        search([wanted])
    assert study_of(build_experiment(wanted)).counted() == []
    monkeypatch.setattr(torch, "save", save)
    summary = search([wanted])[0]
    assert (summary.trials, summary.failed) == (1, 0)


@pytest.mark.parametrize(
    ("number", "trouble"),
    [(errno.EDQUOT, True), (errno.EROFS, True), (errno.EACCES, True), (errno.EIO, False)],
)
def test_what_meets_every_trial(number: int, trouble: bool) -> None:
    error = OSError(number, os.strerror(number), "somewhere")
    assert files.is_disk_trouble(error) == trouble
    said = f"cannot use somewhere: {os.strerror(number)}\n.*repeat the command to go on"
    with pytest.raises(HarnessError, match=said), files.naming_disk_trouble():
        raise error


def test_a_disk_that_fills_while_a_file_is_written_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "record.json"
    write_text(path, "old")

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(HarnessError, match=f"cannot use {path}: No space"), naming_disk_trouble():
        write_text(path, "new")
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["record.json"]


def test_too_little_room_is_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(files.shutil, "disk_usage", lambda path: SimpleNamespace(free=5_000_000))
    runs = tmp_path / "runs"
    assert main(["search", "--loss", "ms", "--runs-dir", str(runs)]) == 2
    assert "only 5 MB are free" in capsys.readouterr().err
    assert not runs.exists()


@pytest.mark.parametrize("place", ["/proc/runs", "FILE/runs"])
def test_a_folder_that_cannot_be_written_is_refused(
    tmp_path: Path, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    runs = place.replace("FILE", str(tmp_path / "file"))
    assert main(["search", "--loss", "ms", "--runs-dir", runs]) == 2
    said = capsys.readouterr().err
    assert f"cannot write to {runs}" in said and "Traceback" not in said


@pytest.mark.slow
def test_the_trial_of_a_killed_worker_is_done_by_the_other(
    tmp_path: Path, image_folder: Path
) -> None:
    process = Command(
        *("search", "--loss", "triplet", "--device", "cpu", "--runs-dir", str(tmp_path / "runs")),
        *("--dataset", f"folder:{image_folder}", "--protocol", FOLDER, "--trunk", "convnet"),
        *("--trials", "6", "--workers", "2"),
        forks_workers=True,
    )
    process.read_until("trial 1/6")
    holders = list(tmp_path.glob("runs/*/*/*/workers/*.lock"))
    os.kill(int(holders[0].name.split("-")[-2]), signal.SIGKILL)
    out, err = process.finish()
    assert process.exit_code == 0, err
    assert "6 trials, 0 failed" in out
    assert "a worker of triplet ended with exit code -9" in err and "the others did its part" in err
