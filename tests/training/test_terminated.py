"""SIGTERM in the middle of training: nothing is lost, and the result has the same bits."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest
import torch
from conftest import FOLDER, unit_of

from harness.config import RunConfig
from harness.experiment import build_experiment
from harness.records.layout import CHECKPOINT
from harness.records.records import FoldRecord
from harness.system.stopping import Terminated, hearing_sigterm
from harness.training.fold import run_fold
from harness.training.trainer import Trainer

PROTOCOL = re.sub(r"(max_steps|validate_every)=\d", r"\1=6", FOLDER)


@pytest.mark.parametrize("loss", ["c2-xbm", "ccp", "proxyanchor"])
def test_a_fold_that_is_stopped_between_validations_goes_on_with_the_same_bits(
    loss: str, folder_config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Losses with a memory, with a hook and with parameters; stopped after every second step."""
    config = folder_config.updated({"loss": loss, "protocol": PROTOCOL})
    whole, weights = _trained(config.updated({"runs_dir": str(tmp_path / "whole")}))
    train_step = Trainer._train_step
    stops: list[int] = []

    def stopping(trainer: Trainer, *batch: torch.Tensor) -> torch.Tensor:
        if trainer.step % 2 == 0:
            stops.append(trainer.step)
            os.kill(os.getpid(), signal.SIGTERM)
        return train_step(trainer, *batch)

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "_train_step", stopping)
        for step in (1, 3, 5):
            with hearing_sigterm(), pytest.raises(Terminated):
                _trained(config)
            (kept,) = Path(config.runs_dir).glob(f"**/{CHECKPOINT}")
            assert torch.load(kept, weights_only=False)["progress"]["step"] == step
    again, same = _trained(config)
    assert stops == [0, 2, 4]
    assert again.history == whole.history and again.best_score == whole.best_score
    assert weights.keys() == same.keys()
    assert all(torch.equal(weights[name], same[name]) for name in weights)


def _trained(config: RunConfig) -> tuple[FoldRecord, dict[str, torch.Tensor]]:
    unit = unit_of(build_experiment(config))
    record = run_fold(unit, keep_weights=True)
    return record, torch.load(unit.folder / "model.pt", weights_only=False)
