"""A second model that repeats, on all trainval classes, what validation taught of the first.

It starts from the same weights and seeds, trains as many epochs as the first took to its best, and
lowers its rates at the epochs at which the first began at lower ones. Its last weights count.

A hook that acts on validation scores, as CCP's does, is told those of the first model after as many
epochs.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from harness.experiment import Experiment
from harness.records.records import FoldRecord
from harness.training.single_model import ToldScores
from harness.training.trainer import Trainer
from harness.training.unit import Unit


def replayed(experiment: Experiment, first: FoldRecord) -> Experiment:
    """The experiment of the second model, from the record of the first."""
    protocol = experiment.protocol
    epochs = 1 + [step for step, _, _ in first.history].index(first.best_step)
    drops = [drop + protocol.replay_lag for drop in first.drops]
    drops = [drop for drop in drops if drop < epochs]
    return replace(
        experiment,
        protocol=replace(
            protocol,
            folds="none",
            select="last",
            epochs=epochs,
            schedule="multistep" if drops else "constant",
            lr_epochs=tuple(drops) or None,
        ),
        split=experiment.split.undivided(),
    )


def build_second_trainer(unit: Unit, device: torch.device, first: FoldRecord) -> Trainer:
    """A trainer whose hook hears of the first model."""

    def score(trainer: Trainer) -> float:
        return first.history[trainer.plan.epochs_at(trainer.step) - 1][2]

    return unit.build_trainer(device, wrap_hook=lambda hook: ToldScores(hook, score))
