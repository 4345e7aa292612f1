"""What is the machine's fault is charged to no method: tried again, told as what it is, mended."""

from __future__ import annotations

import errno
import itertools
import logging
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import study_of, unit_of
from worker_jobs import lose_the_device

from harness.cli import main
from harness.config import RunConfig
from harness.data import sources
from harness.data.batches import TrainBatches
from harness.data.image_cache import open_store
from harness.datasets import folder
from harness.errors import DeviceLost, HarnessError, MachineError, OutOfMemory
from harness.experiment import Experiment, build_experiment
from harness.records.layout import CHECKPOINT, FAILURE, FOLD_RECORD, WEIGHTS
from harness.searching.loop import search
from harness.searching.trials import index_of
from harness.system import workers
from harness.system.progress import Event, TrialEnded, TrialReturned, Validated
from harness.system.trouble import trouble_in
from harness.system.worker_process import Turn
from harness.training.fold import run_fold
from harness.training.trainer import Trainer

CPU = torch.device("cpu")
BROKEN = RuntimeError("CUDA error: an illegal memory access was encountered\nCompile with ...")

TROUBLE = [
    (OSError(errno.EIO, "Input/output error", "/data/a.jpg"), "/data/a.jpg: Input/output error"),
    (FileNotFoundError(2, "No such file or directory", "b"), "b: No such file or directory"),
    (OSError("cannot identify image file 'a.jpg'"), "OSError: cannot identify image file 'a.jpg'"),
    (RuntimeError("DataLoader worker (pid(s) 7) exited unexpectedly"), "RuntimeError: DataLoader"),
    (RuntimeError("unable to open shared memory object </torch_1>"), "RuntimeError: unable to op"),
    (EOFError(), "EOFError: EOFError"),
    (BrokenPipeError(errno.EPIPE, "Broken pipe"), "BrokenPipeError: Broken pipe"),
    (OSError(errno.ENOSPC, "No space left on device"), "the disk: No space left on device"),
    (MachineError("cannot decode image 'x'"), "cannot decode image 'x'"),
    (BROKEN, "the device failed: CUDA error: an illegal memory access was encountered"),
    (torch.OutOfMemoryError("CUDA out of memory."), "out of memory: CUDA out of memory."),
]
OWN = [
    *(ValueError("margin"), ZeroDivisionError("mine"), HarnessError("no such loss")),
    *(RuntimeError("mat1 and mat2 shapes cannot be multiplied"), KeyError("EIO"), SystemExit(0)),
]


@pytest.mark.parametrize(("error", "words"), TROUBLE, ids=lambda value: str(value)[:30])
def test_trouble_of_the_machine_is_told_in_words(error: Exception, words: str) -> None:
    trouble = trouble_in(error)
    assert trouble is not None and str(trouble).startswith(words)
    assert "\n" not in str(trouble)


@pytest.mark.parametrize("error", OWN, ids=lambda error: type(error).__name__)
def test_what_is_of_a_methods_own_making_is_not_the_machines(error: BaseException) -> None:
    assert trouble_in(error) is None


def fail_at(monkeypatch: pytest.MonkeyPatch, batches: set[int], error: BaseException) -> list[int]:
    """Let some of all the batches that are drawn fail; counts them."""
    drawn: list[int] = []
    draw = TrainBatches.__getitem__

    def failing(self: TrainBatches, step: int) -> Any:
        drawn.append(step)
        if len(drawn) in batches:
            raise error
        return draw(self, step)

    monkeypatch.setattr(TrainBatches, "__getitem__", failing)
    return drawn


def scores_of(config: RunConfig) -> list[tuple[int, Any, Any]]:
    return [(index_of(t), t.params, t.values) for t in study_of(build_experiment(config)).counted()]


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.training.fold.time.sleep", lambda seconds: None)


@pytest.mark.parametrize("error", [TROUBLE[0][0], TROUBLE[3][0]], ids=["disk", "loader"])
def test_trouble_spends_no_trial_the_first_time(
    folder_config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """In the third of four folds: the first two are not trained again."""
    untroubled = folder_config.updated({"trials": 2, "runs_dir": str(tmp_path / "untroubled")})
    search([untroubled])
    wanted = folder_config.updated({"trials": 2})
    drawn = fail_at(monkeypatch, {10}, error)
    heard: list[Event] = []
    (summary,) = search([wanted], heard.append)
    assert (summary.trials, summary.failed) == (2, 0)
    assert len(drawn) == 2 * 4 * 4 + 2  # its fold again, from its checkpoint at step 2... or anew
    (returned,) = [event for event in heard if isinstance(event, TrialReturned)]
    assert returned.trial == 1 and str(trouble_in(error)) == returned.reason
    assert scores_of(wanted) == scores_of(untroubled)


def test_the_same_trial_twice_fails_with_its_reason_and_retry_returns_it(
    folder_config: RunConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    untroubled = folder_config.updated({"trials": 2, "runs_dir": str(tmp_path / "untroubled")})
    search([untroubled])
    wanted = folder_config.updated({"trials": 2})
    with monkeypatch.context() as patched:
        fail_at(patched, {1, 2}, TROUBLE[0][0])
        heard: list[Event] = []
        (summary,) = search([wanted], heard.append)
    assert (summary.trials, summary.failed) == (2, 1)
    assert summary.reasons == ("/data/a.jpg: Input/output error",)
    ended = [event for event in heard if isinstance(event, TrialEnded)]
    assert ended[0].reason == "/data/a.jpg: Input/output error, twice"
    assert main(["retry", "proxyanchor", "--runs-dir", wanted.runs_dir]) == 0
    assert "1 failed trials will be run again\n  1 times: /data/a.jpg" in capsys.readouterr().out
    (summary,) = search([wanted])
    assert (summary.trials, summary.failed) == (2, 0)
    assert scores_of(wanted) == scores_of(untroubled)
    assert main(["retry", "proxyanchor", "--runs-dir", wanted.runs_dir]) == 0
    assert ": 0 failed trials will be run again" in capsys.readouterr().out


def test_after_a_retry_trouble_is_again_forgiven_once(
    folder_config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = folder_config.updated({"trials": 2})
    with monkeypatch.context() as patched:
        fail_at(patched, {1, 2}, TROUBLE[0][0])
        search([wanted])
    main(["retry", "--runs-dir", wanted.runs_dir])
    fail_at(monkeypatch, {1}, TROUBLE[0][0])
    (summary,) = search([wanted])
    assert (summary.trials, summary.failed) == (2, 0)


def test_a_failure_of_its_own_can_be_returned_too(
    folder_config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = folder_config.updated({"trials": 2})
    with monkeypatch.context() as patched:
        fail_at(patched, {1}, ZeroDivisionError("mine"))
        assert search([wanted])[0].reasons == ("ZeroDivisionError: mine",)
    assert list(Path(wanted.runs_dir).glob(f"**/{FAILURE}"))
    main(["retry", "--runs-dir", wanted.runs_dir])
    assert search([wanted])[0].failed == 0
    assert not list(Path(wanted.runs_dir).glob(f"**/{FAILURE}"))


def test_trouble_that_stays_ends_the_search_before_it_has_spent_it(
    folder_config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six attempts in a row: three trials, each twice."""
    wanted = folder_config.updated({"trials": 9})
    with monkeypatch.context() as patched:
        fail_at(patched, set(range(100)), TROUBLE[0][0])
        with pytest.raises(
            HarnessError, match=r"again and again: /data/a.jpg: Input/output"
        ) as end:
            search([wanted])
    assert "`harness retry proxyanchor`" in str(end.value)
    assert len(study_of(build_experiment(wanted)).counted()) == 3


def test_memory_that_is_short_is_no_reason_to_end_the_search(
    folder_config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some parameters need more of it than others: four trials fail, each tried six times."""
    fail_at(monkeypatch, set(range(25)), TROUBLE[-1][0])
    (summary,) = search([folder_config.updated({"trials": 5})])
    assert (summary.trials, summary.failed) == (5, 4)
    (reason,) = set(summary.reasons)
    assert reason.startswith("out of memory: CUDA out of memory.; what would help: ")


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), HarnessError),
        (SystemExit(1), SystemExit),
        (GeneratorExit(), GeneratorExit),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_who_listens_badly_fails_no_trial(
    folder_config: RunConfig, error: BaseException, raised: type[BaseException]
) -> None:
    def deaf(event: Event) -> None:
        if isinstance(event, Validated):
            raise error

    wanted = folder_config.updated({"trials": 1})
    with pytest.raises(raised):
        search([wanted], deaf)
    assert study_of(build_experiment(wanted)).counted() == []


def test_a_loss_that_calls_exit_fails_its_trial(
    folder_config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_at(monkeypatch, {1}, SystemExit(0))
    assert search([folder_config.updated({"trials": 2})])[0].reasons == ("SystemExit: 0",)


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (BaseException("its own"), "BaseException: its own"),
        (ValueError("a file \udcff"), "ValueError: a file \\udcff"),
        (Speechless(), "Speechless: it has no text"),
    ],
    ids=["base", "surrogate", "speechless"],
)
def test_whatever_a_loss_raises_fails_its_trial(
    folder_config: RunConfig, monkeypatch: pytest.MonkeyPatch, error: BaseException, reason: str
) -> None:
    fail_at(monkeypatch, {1}, error)
    assert search([folder_config.updated({"trials": 2})])[0].reasons == (reason,)


def test_a_loss_that_changes_torchs_numbers_does_so_for_itself(
    folder_config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = search([folder_config.updated({"trials": 1})])[0].best_score
    torch.set_default_dtype(torch.float64)
    try:
        other = folder_config.updated({"trials": 1, "runs_dir": f"{folder_config.runs_dir}-2"})
        assert search([other])[0].best_score == alone
        assert torch.get_default_dtype() is torch.float32
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_lost_device_ends_the_worker_without_spending_the_trial(
    folder_config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten trials used to fail in seconds; now the worker ends, and what follows it goes on."""
    started: list[int] = []
    monkeypatch.setattr(workers._Crew, "_start", lambda self, slot, *turn: started.append(slot))
    wanted = folder_config.updated({"trials": 2})
    with monkeypatch.context() as patched:
        fail_at(patched, {3}, BROKEN)
        with pytest.raises(HarnessError, match="no trial of proxyanchor completed"):
            search([wanted])
    assert started == [0]  # a new process, which here does nothing
    assert study_of(build_experiment(wanted)).counted() == []
    assert search([wanted])[0].failed == 0


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2])
def test_a_new_process_follows_a_worker_that_lost_its_device(tmp_path: Path, count: int) -> None:
    heard: list[Event] = []
    turns = [Turn("mine", (str(tmp_path), count))]
    workers.run_workers(lose_the_device, turns, CPU, count, 1, heard.append)
    done = sorted((event.worker, event.method) for event in heard)
    assert done == [(number, "at last") for number in range(1, count + 1)]


@pytest.mark.slow
def test_a_device_that_is_lost_again_and_again_is_named(tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match="cpu failed 3 times in a row, each time in a new pr"):
        turns = [Turn("mine", (str(tmp_path), 99))]
        workers.run_workers(lose_the_device, turns, CPU, 2, 1, lambda event: None)
    assert len(list(tmp_path.iterdir())) == 2 * 3


# Files that are damaged.


@pytest.fixture
def warned(caplog: pytest.LogCaptureFixture) -> Callable[[], str]:
    caplog.set_level(logging.WARNING)
    return lambda: "\n".join(record.getMessage() for record in caplog.records)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flip(path: Path) -> None:
    """One bit in the middle."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def overwrite(path: Path) -> None:
    path.write_bytes(b"<html>" * (path.stat().st_size // 6))


DAMAGE = [cut, empty, overwrite, Path.unlink]


@pytest.mark.parametrize(
    ("file", "damage"),
    # One that is overwritten by as many bytes is found only by who reads all of it.
    [
        pair
        for pair in itertools.product(["pixels.u8", "index.npy", "meta.json"], DAMAGE)
        if pair != ("pixels.u8", overwrite)
    ],
)
def test_a_damaged_image_cache_is_built_again(
    image_folder: Path,
    tmp_path: Path,
    warned: Callable[[], str],
    file: str,
    damage: Callable[[Path], None],
) -> None:
    listing = folder.list_images(image_folder)
    before = open_store(listing, range(80), 16, tmp_path / "cache")
    pixels = [before.image(i).copy() for i in range(80)]
    (found,) = (tmp_path / "cache").glob(f"*/{file}")
    damage(found)
    after = open_store(listing, range(80), 16, tmp_path / "cache")
    assert after.fingerprint == before.fingerprint
    assert all(np.array_equal(after.image(i), pixels[i]) for i in range(80))
    assert f"{found.parent} is damaged" in warned()
    assert not list((tmp_path / "cache").glob(".*"))
    unread = replace(listing, read=lambda index: pytest.fail("built once more"))
    open_store(unread, range(80), 16, tmp_path / "cache")


@pytest.mark.parametrize(
    ("file", "damage"),
    # Another letter in a fingerprint is found when it is compared with that of the study.
    [
        pair
        for pair in itertools.product(["features.npy", "indices.npy", "meta.json"], [*DAMAGE, flip])
        if pair != ("meta.json", flip)
    ],
)
def test_damaged_features_are_computed_again(
    folder_config: RunConfig,
    tmp_path: Path,
    warned: Callable[[], str],
    file: str,
    damage: Callable[[Path], None],
) -> None:
    experiment = build_experiment(folder_config)

    def opened() -> Any:
        return sources.open_features_of(experiment, "trainval")

    before = opened()
    values = before.values.copy()
    (found,) = (tmp_path / "cache").glob(f"*/features-*/{file}")
    damage(found)
    after = opened()
    assert (after.fingerprint, after.indices) == (before.fingerprint, before.indices)
    assert np.array_equal(after.values, values)
    assert f"{found.parent} is damaged" in warned()


def test_features_of_before_there_was_a_checksum_are_taken(
    folder_config: RunConfig, tmp_path: Path
) -> None:
    experiment = build_experiment(folder_config)
    before = sources.open_features_of(experiment, "trainval")
    (meta,) = (tmp_path / "cache").glob("*/features-*/meta.json")
    meta.write_text(f'{{"fingerprint": "{before.fingerprint}"}}')
    time = (meta.parent / "features.npy").stat().st_mtime_ns
    after = sources.open_features_of(experiment, "trainval")
    assert after.fingerprint == before.fingerprint
    assert (meta.parent / "features.npy").stat().st_mtime_ns == time


def test_a_search_goes_on_after_its_cache_was_cut_short(
    folder_config: RunConfig, tmp_path: Path
) -> None:
    """It used to fail every trial, which stayed spent when the cache was whole again."""
    wanted = folder_config.updated({"trials": 2})
    search([wanted.updated({"trials": 1})])
    for pixels in (tmp_path / "cache").glob("**/pixels.u8"):
        cut(pixels)
    (summary,) = search([wanted])
    assert (summary.trials, summary.failed) == (2, 0)


def test_an_image_that_is_gone_without_a_cache_is_trouble_and_named(
    folder_config: RunConfig, image_folder: Path
) -> None:
    experiment = build_experiment(folder_config.updated({"cache": "off"}))
    unit = unit_of(experiment)
    shutil.rmtree(image_folder)
    with pytest.raises(MachineError, match=r"cannot read image 'class_\d\d/\d.png': No such file"):
        run_fold(unit)


def interrupt(unit: Any) -> None:
    def stop(fold: int, progress: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_fold(unit, stop)


@pytest.mark.parametrize("damage", [cut, empty, overwrite, flip])
def test_a_damaged_checkpoint_is_set_aside_and_the_fold_started_anew(
    make_experiment: Callable[..., Experiment],
    tmp_path: Path,
    warned: Callable[[], str],
    damage: Callable[[Path], None],
) -> None:
    whole = run_fold(unit_of(make_experiment(runs_dir=str(tmp_path / "whole"))))
    unit = unit_of(make_experiment())
    interrupt(unit)
    checkpoint = unit.folder / CHECKPOINT
    damage(checkpoint)
    damaged = checkpoint.read_bytes()
    assert run_fold(unit).history == whole.history
    assert (unit.folder / "checkpoint.damaged.pt").read_bytes() == damaged
    assert f"{checkpoint} is damaged" in warned() and not checkpoint.exists()


def test_a_checkpoint_of_another_network_is_set_aside(
    make_experiment: Callable[..., Experiment], tmp_path: Path
) -> None:
    unit, other = unit_of(make_experiment()), unit_of(make_experiment(loss="triplet"))
    interrupt(unit)
    interrupt(other)
    shutil.copy(unit.folder / CHECKPOINT, other.folder / CHECKPOINT)
    whole = unit_of(make_experiment(loss="triplet", runs_dir=str(tmp_path / "whole")))
    assert run_fold(other).history == run_fold(whole).history


@pytest.mark.parametrize("file", [FOLD_RECORD, WEIGHTS])
@pytest.mark.parametrize("damage", [cut, empty, overwrite])
def test_what_is_damaged_of_a_finished_fold_is_made_again(
    make_experiment: Callable[..., Experiment], file: str, damage: Callable[[Path], None]
) -> None:
    unit = unit_of(make_experiment())
    before = run_fold(unit, keep_weights=True)
    weights = unit.load_model(torch.device("cpu")).state_dict()
    damage(unit.folder / file)
    assert run_fold(unit, keep_weights=True).history == before.history
    again = unit.load_model(torch.device("cpu")).state_dict()
    assert all(torch.equal(weights[name], again[name]) for name in weights)
    stem, _, ending = file.partition(".")
    assert (unit.folder / f"{stem}.damaged.{ending}").exists()


def test_memory_that_is_short_while_a_checkpoint_is_read_does_not_condemn_it(
    make_experiment: Callable[..., Experiment], monkeypatch: pytest.MonkeyPatch
) -> None:
    unit = unit_of(make_experiment())
    interrupt(unit)

    def short(self: Trainer, state: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "_resume", short)
        with pytest.raises(OutOfMemory):
            run_fold(unit)
    assert (unit.folder / CHECKPOINT).exists()


def test_a_lost_device_is_not_tried_again_by_the_same_process(
    make_experiment: Callable[..., Experiment], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = fail_at(monkeypatch, set(range(1, 9)), BROKEN)
    with pytest.raises(DeviceLost):
        run_fold(unit_of(make_experiment()))
    assert len(drawn) == 1
