"""No file that we read can run code: a hostile pickle is refused by name, wherever it lies."""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import unit_of

from harness.config import RunConfig
from harness.data import sources
from harness.experiment import Experiment, build_experiment
from harness.records.layout import CHECKPOINT, WEIGHTS
from harness.training.fold import run_fold
from harness.training.saved import load, save
from harness.trunks import weights

CPU = torch.device("cpu")


class Hostile:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


def test_the_pickle_of_these_tests_does_run_code(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Hostile(tmp_path / "ran")))
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize("old", [False, True], ids=["zip", "before torch 1.6"])
def test_a_hostile_file_is_refused_by_name(tmp_path: Path, old: bool) -> None:
    path = tmp_path / "state.pt"
    state = {"model": {"weight": torch.ones(2)}, "hook": Hostile(tmp_path / "ran")}
    torch.save(state, path, _use_new_zipfile_serialization=not old)
    said = "not a whole file of torch" if old else "more than tensors and plain values, as posix.m"
    with pytest.raises(ValueError, match=said):
        load(path, CPU)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("file", [CHECKPOINT, WEIGHTS])
def test_a_hostile_file_in_a_run_folder_is_set_aside(
    make_experiment: Callable[..., Experiment], tmp_path: Path, file: str
) -> None:
    unit = unit_of(make_experiment())
    unit.folder.mkdir(parents=True)
    if file == WEIGHTS:
        run_fold(unit, keep_weights=True)
    torch.save({"model": Hostile(tmp_path / "ran")}, unit.folder / file)
    run_fold(unit, keep_weights=True)
    unit.load_model(CPU)
    assert not (tmp_path / "ran").exists()
    stem = file.partition(".")[0]
    assert (unit.folder / f"{stem}.damaged.pt").exists()


def test_hostile_weights_of_a_trunk_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    torch.save({"layer": Hostile(tmp_path / "ran")}, path)
    with pytest.raises(ValueError, match=r"weights\.pt is no readable file of PyTorch weights"):
        weights.read(path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("file", ["features.npy", "indices.npy"])
def test_a_hostile_array_in_the_cache_is_never_unpickled(
    folder_config: RunConfig, tmp_path: Path, file: str
) -> None:
    experiment = build_experiment(folder_config)
    before = sources.open_features_of(experiment, "trainval")
    values = before.values.copy()
    (path,) = (tmp_path / "cache").glob(f"*/features-*/{file}")
    np.save(path, np.array([Hostile(tmp_path / "ran")], dtype=object), allow_pickle=True)
    after = sources.open_features_of(experiment, "trainval")
    assert np.array_equal(after.values, values)
    assert not (tmp_path / "ran").exists()


def test_no_other_place_reads_pickles() -> None:
    """Whoever needs one comes by here."""
    root = Path(__file__).parents[2]
    unsafe = ("weights_only=False", "allow_pickle=True", "pickle.load", "yaml.load(", "joblib")
    found = [
        f"{path.name}: {text}"
        for package in ("harness", "losses", "protocols", "benchmarks", "examples")
        for path in (root / package).rglob("*.py")
        for text in unsafe
        if text in path.read_text()
    ]
    # Messages between our own processes, which are in no file.
    assert found == ["worker_process.py: pickle.load"]
    readers = {
        path.name
        for package in ("harness", "losses", "protocols")
        for path in (root / package).rglob("*.py")
        if re.search(r"(?<!safetensors\.)torch\.load\(", path.read_text())
    }
    assert readers == {"saved.py", "weights.py"}


def test_what_a_run_keeps_is_read_back_as_it_was(tmp_path: Path) -> None:
    state = {
        "tensor": torch.arange(3),
        "generator": np.random.get_state(legacy=False),
        "score": np.float64(0.5),
        "history": [(3, 0.1, float("-inf"))],
        "nothing": None,
    }
    save(state, tmp_path / "state.pt")
    found = load(tmp_path / "state.pt", CPU)
    assert torch.equal(found["tensor"], state["tensor"])  # type: ignore[arg-type]
    np.random.set_state(found["generator"])
    assert (found["score"], found["history"], found["nothing"]) == (0.5, state["history"], None)


def test_a_state_that_could_not_be_read_back_is_refused_when_it_is_written(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"state\.hook\.path is a PosixPath"):
        save({"hook": {"path": Path("here")}}, tmp_path / "state.pt")
    assert not list(tmp_path.iterdir())


def test_a_checkpoint_of_an_earlier_version_is_gone_on_from(
    make_experiment: Callable[..., Experiment], tmp_path: Path
) -> None:
    """As torch.save wrote it, with the state of numpy's generator as an array."""
    whole = run_fold(unit_of(make_experiment(loss="ccp", runs_dir=str(tmp_path / "whole"))))
    unit = unit_of(make_experiment(loss="ccp"))

    def stop(fold: int, progress: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_fold(unit, stop)
    path = unit.folder / CHECKPOINT
    state = torch.load(path, weights_only=False)
    assert isinstance(state["numpy_rng"]["state"]["key"], np.ndarray)
    torch.save(state, path)
    steps: list[int] = []
    record = run_fold(unit, lambda fold, progress: steps.append(progress.step))
    assert record.history == whole.history
    assert steps == [6]  # and not the three steps before its checkpoint again
