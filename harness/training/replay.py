"""A second model that repeats, on all trainval classes, what validation taught of the first.

It starts from the same weights and seeds, trains as many epochs as the first took to its best, and
lowers its rates at the epochs at which the first began at lower ones. Its last weights count.
"""

from __future__ import annotations

from dataclasses import replace

from harness.experiment import Experiment
from harness.results.records import FoldRecord


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
