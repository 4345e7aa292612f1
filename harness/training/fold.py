"""Train one unit to its record: under a lock, from its checkpoint, with its failures told apart."""

from __future__ import annotations

import gc
import logging
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch
from filelock import FileLock

from harness.errors import HarnessError
from harness.results.layout import (
    CHECKPOINT,
    CONFIG,
    FAILURE,
    FOLD_RECORD,
    LAST_WEIGHTS,
    LOCK,
    RETRIED,
    WEIGHTS,
)
from harness.results.provenance import provenance
from harness.results.records import Compute, FoldRecord
from harness.system.cards import describe
from harness.system.device import choose_device, cpu_threads, device_name, is_out_of_memory
from harness.system.files import is_disk_trouble, make_folder, replacing, sweep, write_text
from harness.system.precision import training_precision
from harness.system.repeating import repeating
from harness.training.trainer import Progress, Trainer, TrainingFailed
from harness.training.unit import Unit
from losses.method import adjusted_by

logger = logging.getLogger(__name__)

# Called after every validation with the number of the fold, from 0.
FoldReport = Callable[[int, Progress], None]
BuildTrainer = Callable[[Unit, torch.device], Trainer]


def no_report(fold: int, progress: Progress) -> None:
    """The report of who does not listen."""


def run_fold(
    unit: Unit,
    report: FoldReport = no_report,
    keep_weights: bool = False,
    wait: bool = True,
    build_trainer: BuildTrainer = Unit.build_trainer,
) -> FoldRecord:
    """Train one model, or read back its record if that was done before.

    Args:
        keep_weights: leave the best weights beside the record.
        wait: for a process that is at the same fold; else raise filelock.Timeout.
    """
    folder = unit.folder
    make_folder(folder)
    with FileLock(folder / LOCK, timeout=-1 if wait else 0):
        sweep(folder)
        found = unit.find_record()
        if found is not None and (not keep_weights or (folder / WEIGHTS).exists()):
            return found
        write_text(folder / CONFIG, unit.config.to_yaml())
        try:
            return _train(unit, report, keep_weights, build_trainer)
        except Exception as error:
            if not is_out_of_memory(error):
                raise _failed(folder, error) from error
            write_text(folder / RETRIED, traceback.format_exc())
        # Out here nothing holds on to the first attempt. A run that goes on from its checkpoint has
        # the same bits, so that a second attempt costs time and changes no score.
        gc.collect()
        torch.cuda.empty_cache()
        try:
            return _train(unit, report, keep_weights, build_trainer)
        except Exception as error:
            raise _failed(folder, error) from error


def _train(
    unit: Unit, report: FoldReport, keep_weights: bool, build_trainer: BuildTrainer
) -> FoldRecord:
    device = choose_device(unit.experiment.config.device)
    protocol = unit.experiment.protocol
    with (
        cpu_threads(protocol.threads),
        training_precision(protocol.precision, device) as tf32,
        repeating(device) as unordered,
    ):
        trainer = build_trainer(unit, device)
        fit = trainer.fit(
            checkpoint=unit.folder / CHECKPOINT,
            seed=unit.seed("loss"),
            report=lambda progress: report(unit.fold, progress),
        )
    if keep_weights:
        kept = {LAST_WEIGHTS: trainer.last_weights, WEIGHTS: trainer.best_weights}
        for name, weights in kept.items():
            if weights:
                with replacing(unit.folder / name) as file:
                    torch.save(weights, file)
    record = FoldRecord(
        identity=unit.identity,
        params=dict(unit.params),
        fold=unit.fold,
        repetition=unit.repetition,
        device=device_name(device),
        provenance=provenance(),
        adjusted=adjusted_by(trainer.loss),
        compute=Compute(
            precision=protocol.precision,
            tf32=tf32,
            deterministic=not unordered,
            unordered=sorted(unordered),
            **describe(device),  # type: ignore[typeddict-item]
        ),
        **asdict(fit),
    )
    record.write(unit.folder / FOLD_RECORD)
    (unit.folder / CHECKPOINT).unlink(missing_ok=True)
    logger.debug("%s fold %d: %.4f", unit.experiment.name, unit.fold, record.best_score)
    return record


def _failed(folder: Path, error: Exception) -> Exception:
    """What a run is told to have failed with; a full disk is no fault of its."""
    if is_disk_trouble(error):
        return error
    write_text(folder / FAILURE, "".join(traceback.format_exception(error)))
    if isinstance(error, TrainingFailed):
        return error
    if isinstance(error, HarnessError):  # in words already
        return TrainingFailed(str(error))
    return TrainingFailed(f"{type(error).__name__}: {error}")
