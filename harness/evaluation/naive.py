"""Rows that every method is read against: PCA of a network's features, and of raw pixels.

The reality check reduces the pooled output of the pretrained network. PCA is fitted on the
trainval images here, so that a naive row has seen no more of the test classes than a trained one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from sklearn.decomposition import PCA
from torch import Tensor

from harness.data.batches import Blocks
from harness.data.features import Features
from harness.data.loading import image_loader
from harness.data.sources import open_features_of, open_images
from harness.evaluation.extra_metrics import add_metrics
from harness.evaluation.scoring import TestEmbeddings, score, see_test
from harness.experiment import Experiment, digest_of
from harness.metrics import retrieval
from harness.model.build import build_trunk
from harness.model.network import NORMALIZERS
from harness.results.records import TestRecord, note_test_opening, provenance
from harness.system.device import choose_device
from harness.system.progress import ignore
from harness.training.embed import embed
from harness.training.trial import cpu_threads

# Pixels are reduced only where an image has no more of them than this: beyond, PCA takes longer
# than training.
MAX_PIXELS = 4096


def evaluate_naive(
    experiment: Experiment, listener: Callable[[str], None], metrics: Sequence[str] = ()
) -> None:
    """Write the naive records of an experiment's table that are not there yet."""
    name = "pretrained" if experiment.pretrained else "untrained"
    for repetition in [0] if _fixed(experiment) else range(1, experiment.reproductions + 1):
        _evaluate(experiment, name, repetition, listener, metrics)
    if experiment.listing.channels * experiment.protocol.crop**2 <= MAX_PIXELS:
        _evaluate(experiment, "pixels", 0, listener, metrics)


def _evaluate(
    experiment: Experiment,
    name: str,
    repetition: int,
    listener: Callable[[str], None],
    metrics: Sequence[str],
) -> None:
    identity = {**experiment.identity(), "method": name}
    digest = digest_of({"identity": identity, "params": {}})
    path = experiment.results / "records" / name / f"{digest}-{repetition:02d}.json"

    def embed_test() -> TestEmbeddings:
        note_test_opening(experiment.results, name, digest, repetition)
        return _embed_test(experiment, name, repetition)

    with cpu_threads(experiment.protocol.threads):
        if not path.exists():
            TestRecord(
                kind="naive",
                identity=identity,
                params={},
                repetition=repetition,
                folds=[],
                search={},
                provenance=provenance(),
                **score(embed_test()),
            ).write(path)
            listener(name)
        add_metrics(path, metrics, embed_test, experiment.runs)


def _embed_test(experiment: Experiment, name: str, repetition: int) -> TestEmbeddings:
    """The test classes in as many principal components as trained embeddings have."""
    seen, test = (_features(experiment, name, repetition, part) for part in ("trainval", "test"))

    size = experiment.protocol.embedding_size
    kinds = {
        "concatenated": [_reduced(seen.values, test.values, len(experiment.split.folds) * size)],
        "separated": [_reduced(seen.values, test.values, size)],
    }
    return see_test(experiment, test, kinds)


def validate_naive(experiment: Experiment, fold: int) -> tuple[float, int]:
    """What a fold model starts from: the score, and size, of PCA fitted on its training classes."""
    name = "pretrained" if experiment.pretrained else "untrained"
    features = _features(experiment, name, 0, "trainval")
    classes, metric = experiment.split.folds[fold], experiment.protocol.metric
    train, val = (experiment.indices_of(features, c) for c in (classes.train, classes.val))
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
        return open_features_of(experiment, part, ignore)
    images = open_images(experiment, part, ignore)
    device = choose_device(experiment.config.device)
    encode: Callable[[Tensor], Tensor] = _flat
    if name != "pixels":
        seed = experiment.seed("init", fold=0, repetition=repetition)
        encode = build_trunk(experiment, seed).to(device).eval()
    loader = image_loader(experiment.config, device)
    values = embed(encode, Blocks(images, images.indices), loader).cpu().numpy()
    return Features(images.fingerprint, {i: r for r, i in enumerate(images.indices)}, values)


def _flat(pixels: Tensor) -> Tensor:
    return pixels.flatten(1).float()
