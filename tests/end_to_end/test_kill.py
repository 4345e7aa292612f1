"""Nothing is lost: a search killed at seeded moments ends with the scores of one left alone."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from conftest import FOLDER, study_of, write_images
from processes import FORKS

from harness.config import RunConfig
from harness.experiment import build_experiment
from harness.records.layout import EMBEDDINGS
from harness.records.records import FoldRecord
from harness.searching.loop import search
from harness.searching.trials import index_of
from harness.system import files
from harness.system.files import UNFINISHED, replacing
from harness.training import saved, trainer

KILLS = 12  # each moment twice
ROUNDS = int(os.environ.get("HARNESS_KILL_ROUNDS", "1"))  # of so many kills; more in `make faults`
SEEDS = range(5, 5 + ROUNDS)
STEPS = FOLDER.replace("max_steps=4", "max_steps=12")  # six checkpoints in a fold
PAIRS = STEPS.replace("mlrc+", "mlrc-pairs+") + "+finalists=2+rotations=1"

# One with a hook, a head of its own and state in all of them; one with a memory.
LOSSES = ("ccp-c2", "c2-xbm")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_inside_a_checkpoint(countdown: Callable[[], bool]) -> None:
    """The file is half written when the process ends."""

    @contextmanager
    def torn(path: Path) -> Iterator[Any]:
        with replacing(path) as file:
            if countdown():
                file.write(b"half a checkpoint")
                file.flush()
                die()
            yield file

    saved.replacing = torn


def die_around(name: str, after: bool, countdown: Callable[[], bool]) -> None:
    """Before or after a call of the system, as a rename."""
    call = getattr(os, name)

    def last(*arguments: Any, **more: Any) -> Any:
        deadly = countdown()
        if deadly and not after:
            die()
        result = call(*arguments, **more)
        if deadly:
            die()
        return result

    setattr(files.os, name, last)


def run_until(configs: list[RunConfig], moment: str, count: int) -> None:
    """Search, and die at the given occurrence of a moment."""
    trainer.CHECKPOINT_SHARE = 1000.0  # at every validation
    left = iter(range(count - 1, -1, -1))

    def countdown() -> bool:
        return next(left, -1) == 0

    if moment == "inside a checkpoint":
        die_inside_a_checkpoint(countdown)
    elif moment:
        when, name = moment.split()
        die_around(name, when == "after", countdown)
    search(configs)


MOMENTS = (
    *("inside a checkpoint", "before replace", "after replace"),
    *("before fsync", "after fsync", "at any time"),
)


def searches(root: Path, runs: str, protocol: str) -> list[RunConfig]:
    config = RunConfig(
        dataset=f"folder:{root / 'pictures'}",
        protocol=protocol,
        trunk="convnet",
        trials=2,
        workers=1,
        device="cpu",
        runs_dir=str(root / runs),
    )
    return [config.updated({"loss": loss}) for loss in LOSSES]


def scores(root: Path, runs: str, protocol: str) -> dict[str, Any]:
    """Everything that a search measured, by fold and by trial, without times."""
    found: dict[str, Any] = {}
    for config in searches(root, runs, protocol):
        study = study_of(build_experiment(config))
        for trial in study.counted():
            found[f"{config.loss} {index_of(trial)}"] = (trial.params, trial.values)
        for finalist in study.finalists():
            found[f"{config.loss} finalist {index_of(finalist.trial)}"] = finalist.scores
        for path in study.folder.glob("folds/*/record.json"):
            record = FoldRecord.read(path)
            found[f"{config.loss} {path.parent.name}"] = (
                *(record.params, record.fold, record.best_score, record.best_step),
                *(record.steps, record.history, record.hook),
            )
    return found


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("protocol", "models", "finalists"), [(STEPS, 8, 0), (PAIRS, 16, 2)], ids=["folds", "pairs"]
)
def test_a_search_killed_again_and_again_ends_with_the_same_bits(
    tmp_path: Path, seed: int, protocol: str, models: int, finalists: int
) -> None:
    """Models and finalists are those of one search."""
    write_images(tmp_path / "pictures")
    search(searches(tmp_path, "whole", protocol))
    rng = random.Random(seed)
    moments = [MOMENTS[number % len(MOMENTS)] for number in range(KILLS)]
    rng.shuffle(moments)
    kept: dict[Path, int] = {}
    for moment in moments:
        timed = moment == "at any time"
        count = rng.randint(1, 9 if "fsync" in moment else 6)
        arguments = (searches(tmp_path, "cut", protocol), "" if timed else moment, count)
        process = FORKS.Process(target=run_until, args=arguments)
        process.start()
        process.join(rng.uniform(0.05, 0.15) if timed else None)
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL, (moment, count)
        # No finished fold is ever repeated.
        assert all(path.stat().st_mtime_ns == time for path, time in kept.items())
        kept = {p: p.stat().st_mtime_ns for p in tmp_path.glob("cut/**/record.json")}
    assert len(kept) < 2 * models
    assert kept or seed != SEEDS[0]  # some others kill it before the first fold has ended
    search(searches(tmp_path, "cut", protocol))
    expected = scores(tmp_path, "whole", protocol)
    assert len(expected) == 2 * (2 + models + finalists)
    assert scores(tmp_path, "cut", protocol) == expected
    assert not list(tmp_path.glob(f"cut/**/{EMBEDDINGS}"))
    assert not list(tmp_path.glob(f"cut/**/folds/*/.*{UNFINISHED}"))


def test_a_file_is_on_disk_before_it_takes_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Write, fsync, rename, fsync of the folder: the order that survives a power cut."""
    calls: list[str] = []
    fsync, rename = os.fsync, os.replace

    def noted_fsync(handle: int) -> None:
        kind = "folder" if os.path.isdir(f"/proc/self/fd/{handle}") else "file"
        size = os.fstat(handle).st_size if kind == "file" else 0
        calls.append(f"fsync {kind} of {size}" if kind == "file" else "fsync folder")
        fsync(handle)

    def noted_rename(*names: Any) -> None:
        calls.append("rename")
        rename(*names)

    monkeypatch.setattr(files.os, "fsync", noted_fsync)
    monkeypatch.setattr(files.os, "replace", noted_rename)
    with replacing(tmp_path / "new" / "folder" / "file") as file:
        file.write(b"12345")
    made = ["fsync folder"] * 2  # two new folders, each named in the one above it
    assert calls == [*made, "fsync file of 5", "rename", "fsync folder"]
    assert (tmp_path / "new" / "folder" / "file").read_bytes() == b"12345"
