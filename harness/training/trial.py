"""One set of parameters -> every fold -> mean validation score."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from harness.config import RunConfig
from harness.data.batches import Source
from harness.data.sources import open_part
from harness.errors import HarnessError
from harness.experiment import Experiment, build_experiment, check_validated
from harness.model.build import check_method
from harness.records.layout import FOLD_RECORD
from harness.records.records import FoldRecord
from harness.system.device import choose_device
from harness.system.progress import Listener, ignore
from harness.training.fold import (
    BuildTrainer,
    OnValidation,
    ignore_validation,
    run_fold,
    tell_validations,
)
from harness.training.trainer import TrainingFailed
from harness.training.unit import Unit


def units_of(
    experiment: Experiment,
    trainval: Source,
    params: Mapping[str, Any],
    repetition: int = 0,
) -> list[Unit]:
    """The models of the protocol's own folds, as reproductions train them."""
    folds = range(len(experiment.split.folds))
    return [Unit(experiment, trainval, params, fold, repetition) for fold in folds]


def trial_units(
    experiment: Experiment,
    trainval: Source,
    params: Mapping[str, Any],
    repetition: int = 0,
    of_search: bool = False,
    partition: int = 0,
) -> list[Unit]:
    """The models of a trial, on the classes that the selection scheme gives them.

    Args:
        of_search: whether a search proposed the parameters.
        partition: number of the experiment's partition.
    """
    folds = range(len(experiment.partitions[partition].folds))
    return [
        Unit(experiment, trainval, params, fold, repetition, of_search, partition) for fold in folds
    ]


def fold_records_of(units: Sequence[Unit]) -> list[Path]:
    """Where the records of some models are."""
    return [unit.folder / FOLD_RECORD for unit in units]


def records_of(units: Sequence[Unit]) -> list[Path]:
    """Where the records of the models of a trial are, and that of the trial."""
    return [units[0].trial_path, *fold_records_of(units)]


def run_trial(
    units: Sequence[Unit],
    on_validation: OnValidation = ignore_validation,
    enough: Callable[[list[FoldRecord]], bool] = lambda folds: False,
    keep_weights: bool = False,
    build_trainer: BuildTrainer = Unit.build_trainer,
) -> list[FoldRecord]:
    """Train every fold; finished ones are read back, not repeated.

    Args:
        enough: asked after every fold whether to leave out the others.
    """
    folds: list[FoldRecord] = []
    for unit in units:
        folds.append(run_fold(unit, on_validation, keep_weights, build_trainer=build_trainer))
        if enough(folds):
            break
    return folds


def train(
    config: RunConfig,
    count: int | None = None,
    listener: Listener = ignore,
    keep_weights: bool = False,
    build_trainer: BuildTrainer = Unit.build_trainer,
) -> tuple[list[Unit], list[FoldRecord]]:
    """The published parameters of a config, with those it fixes, on its first folds or all."""
    experiment = build_experiment(config)
    check_validated(experiment)
    check_method(experiment)
    choose_device(config.device)  # refused before images are opened
    trainval = open_part(experiment, "trainval", listener)
    units = trial_units(experiment, trainval, experiment.published_params)[:count]
    listener(experiment.configured(experiment.method.name))
    on_validation = tell_validations(listener, experiment.method.name, run="training")
    try:
        records = run_trial(
            units, on_validation, keep_weights=keep_weights, build_trainer=build_trainer
        )
    except TrainingFailed as failure:
        raise HarnessError(f"training failed: {failure}\n  traceback: {failure.trace}") from None
    return units, records


def mean_score(folds: Sequence[FoldRecord]) -> float:
    return float(np.mean([fold.best_score for fold in folds]))
