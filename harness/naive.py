"""Rows that every method is read against: PCA of a network's features, and of raw pixels.

The reality check reduces the pooled output of the pretrained network. PCA is fitted on the
trainval images here, so that a naive row has seen no more of the test classes than a trained one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from sklearn.decomposition import PCA
from torch import Tensor

from harness.device import choose_device
from harness.embed import embed
from harness.experiment import Experiment, digest_of
from harness.heads import NORMALIZERS
from harness.on_demand import add_metrics
from harness.records import TestRecord, note_test_opening, provenance
from harness.scoring import TestEmbeddings, score
from harness.trial import build_model, cpu_threads

# Pixels are reduced only where an image has no more of them than this: beyond, PCA takes longer
# than training.
MAX_PIXELS = 4096


def evaluate_naive(
    experiment: Experiment, listener: Callable[[str], None], metrics: Sequence[str] = ()
) -> None:
    """Write the naive records of an experiment's table that are not there yet."""
    trunk = experiment.trunk
    if trunk.pretrained:
        _evaluate(experiment, "pretrained", 0, listener, metrics)
    else:
        for repetition in range(1, experiment.reproductions + 1):
            _evaluate(experiment, "untrained", repetition, listener, metrics)
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
    device, crop = choose_device(experiment.config.device), experiment.protocol.crop
    encode = _encoder(experiment, name, repetition, device)
    seen = experiment.indices_of(experiment.split.trainval)
    indices = experiment.indices_of(experiment.split.test)
    store = experiment.open_part("test")
    train = embed(encode, experiment.trainval, seen, crop, device).cpu()
    test = embed(encode, store, indices, crop, device).cpu()

    def reduced(size: int) -> Tensor:
        # n images span n - 1 directions around their mean.
        size = min(size, len(train) - 1, train.shape[1])
        pca = PCA(size, svd_solver="covariance_eigh").fit(train.numpy())
        return NORMALIZERS["l2"](torch.from_numpy(pca.transform(test.numpy())).float())

    size = experiment.protocol.embedding_size
    return TestEmbeddings(
        kinds={
            "concatenated": [reduced(len(experiment.split.folds) * size)],
            "separated": [reduced(size)],
        },
        labels=experiment.listing.labels[indices],
        fingerprint=store.fingerprint,
    )


def _encoder(
    experiment: Experiment, name: str, repetition: int, device: torch.device
) -> Callable[[Tensor], Tensor]:
    """What turns images into the features that PCA reduces."""
    if name == "pixels":
        return lambda images: images.flatten(1).float()
    seed = experiment.seed("init", fold=0, repetition=repetition)
    model = build_model(experiment, experiment.published_params, seed).to(device).eval()
    return model.features
