"""A fold that goes on from a checkpoint that somebody damaged: it ends as if nobody had."""

from __future__ import annotations

import io
import shutil

import pytest
import torch
from conftest import FOLDER, unit_of, write_images
from ends import cases
from hypothesis import given
from hypothesis import strategies as st
from mutations import damaged_bytes, damaged_tree

from harness.config import RunConfig
from harness.experiment import build_experiment
from harness.records.layout import CHECKPOINT
from harness.training import trainer
from harness.training.fold import run_fold
from harness.training.saved import load
from harness.training.unit import Unit


@pytest.fixture(scope="module")
def unit(tmp_path_factory: pytest.TempPathFactory) -> Unit:
    root = tmp_path_factory.mktemp("fuzz")
    write_images(root / "pictures")
    config = RunConfig(
        loss="proxyanchor",
        dataset=f"folder:{root / 'pictures'}",
        protocol=FOLDER,
        trunk="convnet",
        device="cpu",
        runs_dir=str(root / "runs"),
        cache_dir=str(root / "cache"),
    )
    return unit_of(build_experiment(config))


@pytest.fixture(scope="module")
def checkpoint(unit: Unit) -> bytes:
    """As it stands after the first of two validations."""

    def stop(fold: int, progress: object) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(trainer, "CHECKPOINT_SHARE", 1000.0)
        with pytest.raises(KeyboardInterrupt):
            run_fold(unit, stop)
    return (unit.folder / CHECKPOINT).read_bytes()


@pytest.fixture(scope="module")
def whole(unit: Unit, checkpoint: bytes) -> list[tuple[int, float, float]]:
    """The history of the fold that nobody interrupted."""
    return _resumed(unit, None)


def _resumed(unit: Unit, checkpoint: bytes | None) -> list[tuple[int, float, float]]:
    shutil.rmtree(unit.folder)
    unit.folder.mkdir()
    if checkpoint is not None:
        (unit.folder / CHECKPOINT).write_bytes(checkpoint)
    return run_fold(unit).history


@cases(0.006)
@given(data=st.data())
def test_a_fold_ends_with_the_same_bits_whatever_became_of_its_checkpoint(
    data: st.DataObject, unit: Unit, checkpoint: bytes, whole: list[tuple[int, float, float]]
) -> None:
    damaged = data.draw(damaged_bytes(checkpoint))
    assert _resumed(unit, damaged) == whole
    aside = unit.folder / "checkpoint.damaged.pt"
    assert not (unit.folder / CHECKPOINT).exists()
    assert not aside.exists() or aside.read_bytes() == damaged


def test_best_weights_that_are_not_those_of_the_model_are_noticed_at_once(
    unit: Unit, checkpoint: bytes, whole: list[tuple[int, float, float]]
) -> None:
    """Not when the fold has ended, as a failure of its method."""
    intact = unit.folder.parent / "intact.pt"
    intact.write_bytes(checkpoint)
    state = load(intact, torch.device("cpu"))
    state["progress"]["best_score"] = 2.0  # never beaten
    state["best_weights"].popitem()
    buffer = io.BytesIO()
    torch.save(state, buffer)
    assert _resumed(unit, buffer.getvalue()) == whole


@cases(0.012)
@given(data=st.data())
def test_a_fold_does_not_fail_of_what_its_checkpoint_holds(
    data: st.DataObject, unit: Unit, checkpoint: bytes
) -> None:
    intact = unit.folder.parent / "intact.pt"
    intact.write_bytes(checkpoint)
    state = data.draw(damaged_tree(load(intact, torch.device("cpu"))))
    buffer = io.BytesIO()
    torch.save(state, buffer)
    assert _resumed(unit, buffer.getvalue())
