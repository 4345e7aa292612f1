"""Rows that every method is read against: PCA of a network's features, and of raw pixels.

The reality check reduces the pooled output of the pretrained network. PCA is fitted on the
trainval images here, so that a naive row has seen no more of the test classes than a trained one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from filelock import FileLock
from sklearn.decomposition import PCA
from torch import Tensor

from harness.data.batches import Blocks, Source
from harness.data.features import Features
from harness.data.loading import image_loader
from harness.data.sources import open_features_of, open_images
from harness.evaluation.extra_metrics import add_metrics
from harness.evaluation.scoring import TestEmbeddings, describe_test, score
from harness.experiment import Experiment, digest_of
from harness.metrics import retrieval
from harness.model.build import build_trunk
from harness.model.network import NORMALIZERS
from harness.records.layout import record_lock, record_path
from harness.records.ledger import note_test_opening
from harness.records.records import Identity, TestRecord
from harness.system.device import cpu_threads
from harness.system.progress import Listener, Tested
from harness.training.embed import embed

# Pixels are reduced only where an image has no more of them than this: beyond, PCA takes longer
# than training.
MAX_PIXELS = 4096


def evaluate_naive(
    experiment: Experiment, trainval: Source, listener: Listener, metrics: Sequence[str] = ()
) -> None:
    """Write the naive records of an experiment's table that are not there yet."""
    name = "pretrained" if experiment.pretrained else "untrained"
    repetitions = [0] if _fixed(experiment) else range(1, experiment.reproductions + 1)
    identity = experiment.identity_of(name, trainval.fingerprint)
    rows = [_NaiveRow(experiment, identity, repetition) for repetition in repetitions]
    pixels = experiment.listing.channels * experiment.protocol.crop**2
    if experiment.listing.features is None and pixels <= MAX_PIXELS:
        identity = experiment.identity_of("pixels", trainval.fingerprint)
        rows.append(_NaiveRow(experiment, identity, 0))
    for row in rows:
        with cpu_threads(experiment.protocol.threads):
            row.write(listener, metrics)


@dataclass(frozen=True)
class _NaiveRow:
    experiment: Experiment
    identity: Identity
    repetition: int

    @property
    def name(self) -> str:
        return self.identity["method"]

    @property
    def digest(self) -> str:
        return digest_of({"identity": self.identity, "params": {}})

    def write(self, listener: Listener, metrics: Sequence[str]) -> None:
        table = self.experiment.results
        path = record_path(table, self.name, self.digest, self.repetition)
        with FileLock(record_lock(path)):  # of another evaluation, which is done in a moment
            if not path.exists():
                record = TestRecord(
                    kind="naive",
                    identity=self.identity,
                    params={},
                    repetition=self.repetition,
                    folds=[],
                    search={},
                    **score(self.embed_test(), self.experiment.protocol.test_metrics or ()),
                )
                record.write(path)
                listener(self.experiment.configured(self.name))
                run = f"reproduction-{self.repetition}"
                listener(Tested(method=self.name, run=run, scores=record.flat_scores))
        add_metrics(path, metrics, self.embed_test)

    def embed_test(self) -> TestEmbeddings:
        """The test classes in as many principal components as trained embeddings have."""
        experiment, name = self.experiment, self.name
        note_test_opening(experiment.results, name, self.digest, self.repetition)
        seen, test = (
            _features(experiment, name, self.repetition, part) for part in ("trainval", "test")
        )
        size, folds = experiment.protocol.embedding_size, len(experiment.split.folds)
        sizes = {"concatenated": folds * size} | ({"separated": size} if folds > 1 else {})
        named = {name: [_reduced(seen.values, test.values, size)] for name, size in sizes.items()}
        for source in (seen, test):
            source.check_stored()  # no score comes from damaged data
        return describe_test(experiment, seen, test, named)


def validate_naive(experiment: Experiment, fold: int) -> tuple[float, int]:
    """What a fold model starts from: the score, and size, of PCA fitted on its training classes."""
    name = "pretrained" if experiment.pretrained else "untrained"
    features = _features(experiment, name, 0, "trainval")
    classes, metric = experiment.split.folds[fold], experiment.protocol.metric
    train, val = (
        experiment.of_classes(features.indices, some) for some in (classes.train, classes.val)
    )
    seen, unseen = (features.for_evaluation(indices).numpy() for indices in (train, val))
    embeddings = _reduced(seen, unseen, experiment.protocol.embedding_size)
    labels = torch.from_numpy(experiment.listing.labels[val])
    scores = retrieval.evaluate(embeddings, labels, metrics=(metric,))
    return scores.values[metric], embeddings.shape[1]


def _reduced(seen: np.ndarray, unseen: np.ndarray, size: int) -> Tensor:
    """Normalised principal components, fitted on what was seen."""
    # n images span n - 1 directions around their mean.
    size = min(size, len(seen) - 1, seen.shape[1])
    pca = PCA(size, svd_solver="covariance_eigh").fit(seen)
    return NORMALIZERS["l2"](torch.from_numpy(pca.transform(unseen)).float())


def _fixed(experiment: Experiment) -> bool:
    """Whether the trunk is the same in all repetitions."""
    return experiment.pretrained or experiment.protocol.frozen


def _features(experiment: Experiment, name: str, repetition: int, part: str) -> Features:
    """What PCA reduces."""
    if name != "pixels" and _fixed(experiment):
        return open_features_of(experiment, part)
    images = open_images(experiment, part)
    device = experiment.device
    encode: Callable[[Tensor], Tensor] = _flat
    if name != "pixels":
        seed = experiment.seed("init", fold=0, repetition=repetition)
        encode = build_trunk(experiment, seed).to(device).eval()
    loader = image_loader(experiment.config, device)
    values = embed(encode, Blocks(images, images.indices), loader).cpu().numpy()
    images.check_stored(mapped_only=True)
    return Features(images.fingerprint, images.indices, values)


def _flat(pixels: Tensor) -> Tensor:
    return pixels.flatten(1).float()
