"""Rows that every method is read against: PCA of a network's features, and of raw pixels.

The reality check reduces the pooled output of the pretrained network. PCA is fitted on the
trainval images here, so that a naive row has seen no more of the test classes than a trained one.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from sklearn.decomposition import PCA
from torch import Tensor

from harness import retrieval
from harness.classwise import class_means, count_queries
from harness.device import choose_device
from harness.embed import embed
from harness.experiment import Experiment, digest_of
from harness.heads import NORMALIZERS
from harness.records import TestRecord, note_test_opening, provenance
from harness.trial import build_model, cpu_threads

# Pixels are reduced only where an image has no more of them than this: beyond, PCA takes longer
# than training.
MAX_PIXELS = 4096


def evaluate_naive(experiment: Experiment, listener: Callable[[str], None]) -> None:
    """Write the naive records of an experiment's table that are not there yet."""
    trunk = experiment.trunk
    if trunk.pretrained:
        _evaluate(experiment, "pretrained", 0, listener)
    else:
        for repetition in range(1, experiment.reproductions + 1):
            _evaluate(experiment, "untrained", repetition, listener)
    if experiment.listing.channels * experiment.protocol.crop**2 <= MAX_PIXELS:
        _evaluate(experiment, "pixels", 0, listener)


def _evaluate(
    experiment: Experiment, name: str, repetition: int, listener: Callable[[str], None]
) -> None:
    identity = {**experiment.identity(), "method": name}
    digest = digest_of({"identity": identity, "params": {}})
    path = experiment.results / "records" / name / f"{digest}-{repetition:02d}.json"
    if path.exists():
        return
    note_test_opening(experiment.results, name, digest, repetition)
    store = experiment.open_part("test")
    device = choose_device(experiment.config.device)
    indices = experiment.indices_of(experiment.split.test)
    classes = experiment.listing.labels[indices]
    labels = torch.from_numpy(classes)
    with cpu_threads(experiment.protocol.threads):
        encode, crop = _encoder(experiment, name, repetition, device), experiment.protocol.crop
        seen = experiment.indices_of(experiment.split.trainval)
        train = embed(encode, experiment.trainval, seen, crop, device).cpu()
        test = embed(encode, store, indices, crop, device).cpu()
        size = experiment.protocol.embedding_size
        num_folds = len(experiment.split.folds)
        scores, dims, per_class = {}, {}, {}
        for kind, wanted in (("concatenated", num_folds * size), ("separated", size)):
            # n images span n - 1 directions around their mean.
            dims[kind] = min(wanted, len(train) - 1, train.shape[1])
            pca = PCA(dims[kind], svd_solver="covariance_eigh").fit(train.numpy())
            reduced = torch.from_numpy(pca.transform(test.numpy())).float()
            result = retrieval.evaluate(NORMALIZERS["l2"](reduced), labels)
            scores[kind] = result.values
            per_class[kind] = class_means([result.per_query], classes)
    TestRecord(
        kind="naive",
        identity=identity,
        params={},
        repetition=repetition,
        dims=dims,
        scores=scores,
        separated=[scores["separated"]],
        queries=result.queries,
        queries_dropped=result.queries_dropped,
        test_fingerprint=store.fingerprint,
        folds=[],
        search={},
        provenance=provenance(),
        per_class=per_class,
        class_queries=count_queries(result.per_query, classes),
    ).write(path)
    listener(name)


def _encoder(
    experiment: Experiment, name: str, repetition: int, device: torch.device
) -> Callable[[Tensor], Tensor]:
    """What turns images into the features that PCA reduces."""
    if name == "pixels":
        return lambda images: images.flatten(1).float()
    seed = experiment.seed("init", fold=0, repetition=repetition)
    model = build_model(experiment, experiment.published_params, seed).to(device).eval()
    return model.features
