"""What a trial leaves on disk to be scored by: embeddings of its models, then its record."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.model.network import Model
from harness.records.layout import EMBEDDINGS
from harness.records.records import RecordError, TrialRecord
from harness.system.files import set_aside
from harness.training.embed import embed_with
from harness.training.saved import load, save
from harness.training.unit import Unit, evaluation_loader


def awaits_score(unit: Unit) -> bool:
    """Whether the score of a unit's trial is still to be computed from its embeddings."""
    return unit.of_search and bool(unit.scored_classes) and find_trial(unit) is None


def find_trial(unit: Unit) -> TrialRecord | None:
    """The record of a unit's trial, if it was scored; a damaged one is set aside."""
    path = unit.trial_path
    try:
        return TrialRecord.read(path) if path.exists() else None
    except RecordError as error:
        set_aside(path, error)
        return None


def scored_indices(unit: Unit) -> list[int]:
    """Listing indices of the images that a unit's model embeds, in ascending order."""
    return sorted(unit.experiment.of_classes(unit.trainval.indices, unit.scored_classes))


def write_embeddings(unit: Unit, model: Model, device: torch.device) -> None:
    """Write the model's embeddings of the classes that its trial is scored on.

    They are normalised as in the test and written as float32.
    """
    experiment, indices = unit.experiment, scored_indices(unit)
    loader = evaluation_loader(experiment, device)
    normalizer = experiment.method.normalizer
    embeddings = embed_with(model, unit.trainval, indices, loader, normalizer)
    save(embeddings.float().cpu(), unit.folder / EMBEDDINGS)


def read_embeddings(unit: Unit) -> Tensor:
    """(images, size) embeddings, in the order of `scored_indices`.

    Raises FileNotFoundError if there are none, and ValueError if the file is damaged.
    """
    path = unit.folder / EMBEDDINGS
    if not path.exists():
        raise FileNotFoundError(path)
    found = load(path, torch.device("cpu"))
    images = len(scored_indices(unit))
    if not isinstance(found, Tensor) or found.ndim != 2 or len(found) != images:
        raise ValueError(f"not the embeddings of {images} images")
    return found
