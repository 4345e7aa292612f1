"""One model with as many dimensions as four fold models together, for a fair look at ensembles.

It trains at the best parameters on all trainval classes, so none is left to stop it by. It stops
after as many steps as the fold models of the same reproduction took to their best checkpoints, on
average, and keeps its last weights. A hook that acts on validation scores, as CCP's does, is told
those that the fold models had at the same step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from harness.experiment import Experiment
from harness.losses.method import Hook
from harness.records.records import FoldRecord
from harness.training.trainer import Trainer
from harness.training.unit import Unit
from harness.training.wrapped_hook import WrappedHook

SINGLE = "single"


def without_folds(experiment: Experiment, folds: Sequence[FoldRecord]) -> Experiment:
    """The experiment with one model instead of those of the folds."""
    protocol = experiment.protocol
    best = [fold.best_step for fold in folds]
    every = folds[0].history[0][0] if protocol.epochs else protocol.validate_every
    validations = max(1, round(np.mean(best) / every))
    return replace(
        experiment,
        protocol=replace(
            protocol,
            embedding_size=protocol.embedding_size * len(folds),
            epochs=None,
            validate_every=every,
            max_steps=min(validations * every, max(best)),
        ),
        split=experiment.split.undivided(),
    )


def build_single_trainer(unit: Unit, device: torch.device, folds: Sequence[FoldRecord]) -> Trainer:
    """A trainer whose last step is its best one, and whose hook hears of the fold models."""
    histories = [{step: score for step, _, score in fold.history} for fold in folds]

    def mean_score(trainer: Trainer) -> float:
        """Of the fold models at the same step."""
        scores = [history[trainer.step] for history in histories if trainer.step in history]
        return float(np.mean(scores))

    return unit.build_trainer(
        device,
        validate=lambda model, step: float(step),
        wrap_hook=lambda hook: ToldScores(hook, mean_score),
    )


class ToldScores(WrappedHook):
    """A hook that is told the scores of other models, for its own has no validation classes."""

    def __init__(self, hook: Hook, score_of: Callable[[Any], float]) -> None:
        super().__init__(hook)
        self.score_of = score_of

    def on_validation_end(self, context: Any, score: float) -> None:
        del score
        super().on_validation_end(context, self.score_of(context))
