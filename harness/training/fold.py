"""Train one unit to its record: under a lock, from its checkpoint, with its failures told apart."""

from __future__ import annotations

import gc
import logging
import math
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import torch
from filelock import FileLock, Timeout

from harness.errors import HarnessError, OutOfMemory
from harness.losses.method import adjusted_by
from harness.model.memory import advice
from harness.plain_text import writable
from harness.records.layout import (
    CHECKPOINT,
    CONFIG,
    EMBEDDINGS,
    FAILURE,
    FOLD_RECORD,
    LAST_WEIGHTS,
    LOCK,
    PROXIES,
    RETRIED,
    WEIGHTS,
)
from harness.records.provenance import provenance
from harness.records.records import Compute, FoldRecord, RecordError
from harness.system.cards import describe
from harness.system.device import cpu_threads, device_name
from harness.system.files import (
    is_disk_trouble,
    make_folder,
    remove_leftovers,
    set_aside,
    write_text,
)
from harness.system.precision import own_defaults, training_precision
from harness.system.progress import Listener, Validated
from harness.system.repeating import repeating
from harness.system.trouble import trouble_in
from harness.training.environment_check import find_fault
from harness.training.kept_embeddings import awaits_score, read_embeddings, write_embeddings
from harness.training.saved import load_weights, save
from harness.training.trainer import DamagedCheckpoint, Progress, Trainer, TrainingFailed
from harness.training.unit import Unit

logger = logging.getLogger(__name__)

# Seconds before another attempt where memory was short: on a shared device it may come free.
PAUSES = (2, 20)

# Called after every validation with the number of the fold, from 0.
OnValidation = Callable[[int, Progress], None]
BuildTrainer = Callable[[Unit, torch.device], Trainer]


def tell_validations(
    listener: Listener, method: str, unit: int = 1, scored: bool = True, run: str = ""
) -> OnValidation:
    """A callback that turns every validation into an event.

    Args:
        method: whose models are trained, as a table calls it.
        unit: number of the trial, the reproduction or the point.
        scored: whether the scores mean something: without validation classes they are steps.
        run: name of what is trained, as events have it.
    """

    def tell(fold: int, progress: Progress) -> None:
        step, loss, score = (progress.history or [(0, math.nan, math.nan)])[-1]
        is_new = step == progress.step  # an epoch may end without a validation
        listener(
            Validated(
                method=method,
                run=run,
                unit=unit,
                fold=fold + 1,
                step=progress.step,
                max_steps=progress.max_steps,
                best=progress.best_score if scored else math.nan,
                current=score if scored and is_new else math.nan,
                loss=loss if is_new else math.nan,
            )
        )

    return tell


def ignore_validation(fold: int, progress: Progress) -> None:
    """A callback that does nothing."""


def run_fold(
    unit: Unit,
    on_validation: OnValidation = ignore_validation,
    keep_weights: bool = False,
    wait: bool = True,
    build_trainer: BuildTrainer = Unit.build_trainer,
) -> FoldRecord:
    """Train one model, or read back its record if that was done before.

    Raises TrainingFailed for a failure of the method, after the machine passed its tests;
    EnvironmentFault if it did not; MachineError for other trouble of the machine; and OSError for
    what every other run would meet as well, such as a full disk.

    Args:
        keep_weights: leave the best weights beside the record.
        wait: for a process that is at the same fold; else raise filelock.Timeout.
    """
    for pause in (*PAUSES, None):
        try:
            return _finished(unit, on_validation, keep_weights, wait, build_trainer)
        except Timeout:
            raise
        except _CallbackFailed as failed:
            raise failed.error from None
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # whatever code of others raises
            failure = _failure(unit, error)
            if not isinstance(failure, OutOfMemory):
                raise failure from error
        # Out here nothing holds on to the attempt. A run that goes on from its checkpoint has the
        # same bits, so that another one costs time and changes no score.
        gc.collect()
        torch.cuda.empty_cache()
        if pause is None:
            short = OutOfMemory(f"{failure}; what would help: {advice(unit.experiment)}")
            raise find_fault(unit, failure) or short
        logger.warning("%s; trying again in %d s", failure, pause)
        time.sleep(pause)
    raise AssertionError("the last attempt returns or raises")


def _finished(
    unit: Unit,
    on_validation: OnValidation,
    keep_weights: bool,
    wait: bool,
    build_trainer: BuildTrainer,
) -> FoldRecord:
    folder = unit.folder
    make_folder(folder)
    with FileLock(folder / LOCK, timeout=-1 if wait else 0):
        remove_leftovers(folder)
        found = _find(unit, keep_weights)
        if found is not None:
            return found
        write_text(folder / CONFIG, unit.config.to_yaml())
        return _train(unit, on_validation, keep_weights, build_trainer)


def _find(unit: Unit, keep_weights: bool) -> FoldRecord | None:
    """What is there of a finished unit; what is damaged is set aside, for the unit to be redone."""
    try:
        found = unit.find_record()
    except RecordError as error:
        set_aside(unit.folder / FOLD_RECORD, error)
        return None
    if found is None:
        return None
    cpu = torch.device("cpu")
    if keep_weights and not _is_whole(unit.folder / WEIGHTS, lambda path: load_weights(path, cpu)):
        return None
    if awaits_score(unit) and not _is_whole(
        unit.folder / EMBEDDINGS, lambda path: read_embeddings(unit)
    ):
        return None
    return found


def _is_whole(path: Path, read: Callable[[Path], object]) -> bool:
    """Whether a file can be read; a damaged one is set aside."""
    try:
        read(path)
    except FileNotFoundError:
        return False
    except ValueError as error:
        set_aside(path, error)
        return False
    return True


def _train(
    unit: Unit, on_validation: OnValidation, keep_weights: bool, build_trainer: BuildTrainer
) -> FoldRecord:
    validated = False

    def tell(progress: Progress) -> None:
        nonlocal validated
        validated = True
        try:
            on_validation(unit.fold, progress)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # as of a worker whose parent is gone
            raise _CallbackFailed(error) from error

    device, protocol = unit.experiment.device, unit.experiment.protocol
    with (
        own_defaults(),
        cpu_threads(protocol.threads),
        training_precision(protocol.precision, device) as tf32,
        repeating(device) as unordered,
    ):
        trainer = build_trainer(unit, device)
        checkpoint, seed = unit.folder / CHECKPOINT, unit.seed("loss")
        resumed = checkpoint.exists()
        try:
            fit = trainer.fit(checkpoint, seed, tell)
        except Exception as error:
            # What fails right behind a checkpoint may fail of it, as of moments of another shape.
            # If it is the run's own fault, it fails anew: what goes on has the bits of what began.
            of_checkpoint = resumed and not validated and not _is_of_machine(error)
            if not isinstance(error, DamagedCheckpoint) and not of_checkpoint:
                raise
            set_aside(checkpoint, error)
            trainer = build_trainer(unit, device)
            fit = trainer.fit(checkpoint, seed, tell)
        if awaits_score(unit):
            write_embeddings(unit, trainer.model, device)
    if keep_weights:
        kept = {
            LAST_WEIGHTS: trainer.last_weights,
            PROXIES: trainer.best_proxies,
            WEIGHTS: trainer.best_weights,
        }
        for name, weights in kept.items():
            if weights:
                save(weights, unit.folder / name)
    record = FoldRecord(
        identity=unit.identity,
        params=dict(unit.params),
        fold=unit.fold,
        repetition=unit.repetition,
        device=device_name(device),
        provenance=provenance(unit.experiment.weights_sha256),
        of_search=unit.of_search,
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
    unit.trainval.check_stored(mapped_only=True)  # no score comes from damaged data
    record.write(unit.folder / FOLD_RECORD)
    for passing in (CHECKPOINT, FAILURE):
        (unit.folder / passing).unlink(missing_ok=True)
    logger.debug("%s fold %d: %.4f", unit.experiment.name, unit.fold, record.best_score)
    return record


def _is_of_machine(error: Exception) -> bool:
    return is_disk_trouble(error) or trouble_in(error) is not None


class _CallbackFailed(Exception):
    """The callback that is told of validations failed, which is not a failure of the run."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


def _failure(unit: Unit, error: BaseException) -> BaseException:
    """What a run is told to have failed with: a reason of its own, or trouble of the machine."""
    if is_disk_trouble(error):  # it would meet every other run, too
        return error
    folder, trouble = unit.folder, trouble_in(error)
    failure = error if isinstance(error, TrainingFailed) else TrainingFailed(_in_words(error))
    if not isinstance(trouble, OutOfMemory):  # which is tried again first
        trouble = find_fault(unit, trouble or failure) or trouble
    with suppress(OSError):  # the trouble itself may keep it from being written down
        told = "".join(traceback.format_exception(error))
        write_text(folder / (FAILURE if trouble is None else RETRIED), writable(told))
    if trouble is not None:
        return trouble
    failure.trace = str(folder / FAILURE)
    return failure


def _in_words(error: BaseException) -> str:
    if isinstance(error, HarnessError):
        return str(error)
    try:
        said = str(error)
    except Exception:  # code of others, which cannot even say what is wrong
        said = "it has no text"
    return f"{type(error).__name__}: {writable(said)}"
