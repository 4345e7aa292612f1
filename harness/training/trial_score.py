"""The score of a trial: of its single models, or of several on classes they did not train on."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from filelock import FileLock

from harness.metrics import retrieval
from harness.records.layout import EMBEDDINGS, LOCK
from harness.records.provenance import provenance
from harness.records.records import FoldRecord, TrialRecord
from harness.system.device import cpu_threads
from harness.system.trouble import naming_trouble
from harness.training.embed import concatenate
from harness.training.kept_embeddings import find_trial, read_embeddings, scored_indices
from harness.training.trainer import TrainingFailed
from harness.training.unit import Unit


def score_trial(units: Sequence[Unit], folds: Sequence[FoldRecord]) -> tuple[float, ...]:
    """The scores that a trial's score is the mean of.

    Where models are scored together, the scores are written before the embeddings that they come
    from are removed. A trial that is interrupted in between is not trained again.

    Args:
        units: all models of the trial, trained.
        folds: their records.
    """
    first = units[0]
    if not first.cut.scored:
        return tuple(fold.best_score for fold in folds)
    with naming_trouble(), FileLock(first.folder / LOCK):
        record = find_trial(first)
        if record is None:
            record = TrialRecord(
                identity=first.identity,
                params=dict(first.params),
                partition=first.partition or 0,
                scores=_scores_together(units),
                folds=[fold.best_score for fold in folds],
                seconds=sum(fold.seconds for fold in folds),
                provenance=provenance(first.experiment.weights_sha256),
            )
            record.write(first.trial_path)
        for unit in units:
            (unit.folder / EMBEDDINGS).unlink(missing_ok=True)
    return tuple(record.scores)


def _scores_together(units: Sequence[Unit]) -> list[float]:
    """One score for each group of classes: of the models' embeddings, concatenated."""
    experiment = units[0].experiment
    metric, normalizer = experiment.protocol.metric, experiment.method.normalizer
    device = experiment.device
    labels = [experiment.listing.labels[scored_indices(unit)] for unit in units]
    embeddings = [read_embeddings(unit) for unit in units]
    scores = []
    with cpu_threads(experiment.protocol.threads):
        for group in units[0].cut.scored:
            rows = {model: np.isin(labels[model], group.classes) for model in group.models}
            parts = [embeddings[model][torch.from_numpy(row)] for model, row in rows.items()]
            together = concatenate([part.to(device) for part in parts], normalizer)
            # The same images for each of the models, in the same order.
            images = torch.from_numpy(labels[group.models[0]][rows[group.models[0]]]).to(device)
            scores.append(retrieval.evaluate(together, images, metrics=(metric,)).values[metric])
    if any(map(math.isnan, scores)):
        raise TrainingFailed(
            "the score of a trial is not a number: in some classes that it is scored on, no image "
            "has another one of its class to be found"
        )
    return scores
