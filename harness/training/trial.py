"""One set of parameters -> every fold -> mean validation score."""

from __future__ import annotations

import gc
import logging
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import torch
from filelock import FileLock
from torch import nn

from harness.data.batches import TrainBatches
from harness.data.loading import Loader, image_loader, open_loader
from harness.errors import HarnessError
from harness.experiment import Experiment
from harness.metrics import retrieval
from harness.metrics.geometry import class_distance, covering_radius
from harness.model.build import build_model
from harness.model.network import Model
from harness.registry import Hook, builder_params
from harness.results.records import FoldRecord, provenance
from harness.system.device import choose_device, device_name
from harness.system.files import is_disk_trouble, make_folder, replacing, sweep, write_text
from harness.training.embed import embed_with
from harness.training.trainer import Progress, Trainer, TrainingFailed

logger = logging.getLogger(__name__)

RECORD = "record.json"
WEIGHTS = "model.pt"
FAILURE = "failure.txt"
RETRIED = "retried.txt"

FoldReport = Callable[[int, Progress], None]


def silent(fold: int, progress: Progress) -> None:
    """The report of who does not listen."""


def run_trial(
    experiment: Experiment,
    params: Mapping[str, Any],
    report: FoldReport = silent,
    enough: Callable[[list[FoldRecord]], bool] = lambda folds: False,
    keep_weights: bool = False,
) -> list[FoldRecord]:
    """Train every fold at repetition 0; finished folds are read back, not repeated.

    Args:
        enough: asked after every fold whether to leave out the others.
    """
    folds: list[FoldRecord] = []
    for fold in range(len(experiment.split.folds)):
        folds.append(run_fold(experiment, params, fold, 0, report, keep_weights))
        if enough(folds):
            break
    return folds


def mean_score(folds: list[FoldRecord]) -> float:
    return float(np.mean([fold.best_score for fold in folds]))


def find_fold(
    experiment: Experiment, params: Mapping[str, Any], fold: int, repetition: int
) -> FoldRecord | None:
    """The record of a finished fold."""
    path = experiment.run_dir(params, fold, repetition) / RECORD
    return FoldRecord.read(path) if path.exists() else None


def run_fold(
    experiment: Experiment,
    params: Mapping[str, Any],
    fold: int,
    repetition: int,
    report: FoldReport = silent,
    keep_weights: bool = False,
    wait: bool = True,
    adapt: Callable[[Trainer], None] = lambda trainer: None,
) -> FoldRecord:
    """Train one model, or read back its record if that was done before.

    Args:
        keep_weights: leave the best weights beside the record.
        wait: for a process that is at the same fold; else raise filelock.Timeout.
        adapt: what to change in the trainer before it starts.
    """
    folder = experiment.run_dir(params, fold, repetition)
    make_folder(folder)
    with FileLock(folder / "lock", timeout=-1 if wait else 0):
        sweep(folder)
        found = find_fold(experiment, params, fold, repetition)
        if found is not None and (not keep_weights or (folder / WEIGHTS).exists()):
            return found
        write_text(folder / "config.yaml", _fed_back(experiment, params).to_yaml())
        arguments = (experiment, params, fold, repetition, report, keep_weights, folder, adapt)
        try:
            return _train_fold(*arguments)
        except Exception as error:
            if not _out_of_memory(error):
                raise _failed(folder, error) from error
            write_text(folder / RETRIED, traceback.format_exc())
        # Out here nothing holds on to the first attempt. A run that goes on from its checkpoint has
        # the same bits, so that a second attempt costs time and changes no score.
        gc.collect()
        torch.cuda.empty_cache()
        try:
            return _train_fold(*arguments)
        except Exception as error:
            raise _failed(folder, error) from error


def _out_of_memory(error: Exception) -> bool:
    known = isinstance(error, torch.OutOfMemoryError | MemoryError)
    said = str(error).lower()
    return known or "out of memory" in said or "can't allocate memory" in said


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


def _fed_back(experiment: Experiment, params: Mapping[str, Any]) -> Any:
    """The config that repeats this run when it is given back."""
    return experiment.config.updated({"protocol": experiment.protocol.name, "params": dict(params)})


def _train_fold(
    experiment: Experiment,
    params: Mapping[str, Any],
    fold: int,
    repetition: int,
    report: FoldReport,
    keep_weights: bool,
    folder: Path,
    adapt: Callable[[Trainer], None],
) -> FoldRecord:
    device = choose_device(experiment.config.device)
    with cpu_threads(experiment.protocol.threads):
        trainer = build_trainer(experiment, params, fold, repetition, device)
        adapt(trainer)
        fit = trainer.fit(
            checkpoint=folder / "checkpoint.pt",
            seed=experiment.seed("loss", fold, repetition),
            report=lambda progress: report(fold, progress),
        )
    if keep_weights:
        with replacing(folder / WEIGHTS) as file:
            torch.save(trainer.best_weights, file)
    record = FoldRecord(
        identity=experiment.identity(),
        params=dict(params),
        fold=fold,
        repetition=repetition,
        device=device_name(device),
        provenance=provenance(),
        **asdict(fit),
    )
    record.write(folder / RECORD)
    (folder / "checkpoint.pt").unlink(missing_ok=True)
    logger.debug("%s fold %d: %.4f", experiment.method.name, fold, record.best_score)
    return record


def evaluation_loader(experiment: Experiment, device: torch.device) -> Loader:
    """Of the images of an experiment, or of its features, which need no preparation."""
    return Loader(device) if experiment.protocol.frozen else image_loader(experiment.config, device)


def build_trainer(
    experiment: Experiment,
    params: Mapping[str, Any],
    fold: int,
    repetition: int,
    device: torch.device,
) -> Trainer:
    """Everything that trains on one fold, from its own seeds."""
    protocol, method = experiment.protocol, experiment.method
    classes = experiment.split.folds[fold]
    given = builder_params(params)
    model = build_model(experiment, params, experiment.seed("init", fold, repetition))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(experiment.seed("loss init", fold, repetition))
        loss = method.build_loss(len(classes.train), protocol.embedding_size, **given)
    attach = getattr(loss, "attach", None)
    if attach is not None:
        attach(model.head)
    source = experiment.trainval
    batches = TrainBatches(
        source=source,
        indices=experiment.by_class(source, classes.train),
        batch_size=protocol.batch_size,
        samples_per_class=protocol.samples_per_class or method.samples_per_class,
        seed=experiment.seed("sampler", fold, repetition),
    )
    val_indices = experiment.indices_of(source, classes.val)
    assert not set(val_indices) & set(np.concatenate(batches.indices).tolist())
    val_labels = torch.from_numpy(experiment.listing.labels[val_indices]).to(device)

    loader = evaluation_loader(experiment, device)

    def validate(model: nn.Module) -> float:
        embeddings = embed_with(model, source, val_indices, loader, method.normalizer)
        scores = retrieval.evaluate(embeddings, val_labels, metrics=(protocol.metric,))
        return scores.values[protocol.metric]

    hook = method.build_hook(**given) if method.build_hook else Hook()
    train_loader = open_loader(experiment.config, device, laborious=not protocol.frozen)
    return Trainer(
        model, loss, hook, batches, validate, protocol, method, dict(params), train_loader
    )


def load_model(
    experiment: Experiment,
    params: Mapping[str, Any],
    fold: int,
    repetition: int,
    device: torch.device,
) -> Model:
    """The best model of a finished fold whose weights were kept."""
    weights = experiment.run_dir(params, fold, repetition) / WEIGHTS
    model = build_model(experiment, params, seed=0).to(device)
    model.load_state_dict(torch.load(weights, map_location=device))
    return model


def training_geometry(
    experiment: Experiment, params: Mapping[str, Any], fold: int
) -> tuple[float, float]:
    """Covering radius and distance of the training classes of a fold, at repetition 0."""
    device = choose_device(experiment.config.device)
    source = experiment.trainval
    indices = experiment.indices_of(source, experiment.split.folds[fold].train)
    labels = torch.from_numpy(experiment.listing.labels[indices]).to(device)
    with cpu_threads(experiment.protocol.threads):
        embeddings = embed_with(
            load_model(experiment, params, fold, 0, device),
            source,
            indices,
            evaluation_loader(experiment, device),
            experiment.method.normalizer,
        )
        return covering_radius(embeddings, labels), class_distance(embeddings, labels)


@contextmanager
def cpu_threads(count: int) -> Iterator[None]:
    """Run with the protocol's number of threads, so that workers never change a score."""
    before = torch.get_num_threads(), faiss.omp_get_max_threads()
    torch.set_num_threads(count)
    faiss.omp_set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        faiss.omp_set_num_threads(before[1])
