"""Embeddings of the test classes -> scores, in the same way for every row of a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from harness.data.batches import Source
from harness.experiment import Benchmark
from harness.metrics import geometry, retrieval
from harness.metrics.names import METRICS
from harness.metrics.per_class import class_means, count_queries
from harness.records.provenance import Provenance, provenance
from harness.system.device import device_name

GEOMETRY = {
    "covering_radius": geometry.covering_radius,
    "class_distance": geometry.class_distance,
}


@dataclass(frozen=True)
class TestEmbeddings:
    """The test images as some models see them.

    Attributes:
        embeddings: "concatenated" -> one embedding of all models side by side; "separated" -> one
            per model, where there are several. Each (n, size), normalised.
        labels: (n,) of the images.
        queries: (n,) which of them search the others (In-Shop); None if each searches all.
        fingerprint: of the images.
        missing_images: how many of the whole data set are not among them, nor were in training.
        indices: (n,) of the images, in the listing.
        weights: SHA-256 of those that the trunk started from; empty if they were random.
    """

    __test__ = False  # pytest: not a test

    embeddings: dict[str, list[Tensor]]
    labels: np.ndarray
    queries: np.ndarray | None
    fingerprint: str
    missing_images: int
    indices: np.ndarray
    weights: str = ""

    @property
    def query_labels(self) -> np.ndarray:
        return self.labels if self.queries is None else self.labels[self.queries]

    def on_host(self) -> TestEmbeddings:
        """The same with embeddings that another process can be sent."""
        host = {name: [one.cpu() for one in ones] for name, ones in self.embeddings.items()}
        return replace(self, embeddings=host)

    def labels_for(self, embedding: Tensor) -> Tensor:
        return torch.from_numpy(self.labels).to(embedding.device)

    def evaluate(self, embedding: Tensor, metrics: Sequence[str]) -> retrieval.Scores:
        """Each image among all others, or queries in their gallery."""
        labels = self.labels_for(embedding)
        if self.queries is None:
            return retrieval.evaluate(embedding, labels, metrics=metrics)
        query = torch.from_numpy(self.queries).to(embedding.device)
        return retrieval.evaluate(
            embedding[query], labels[query], embedding[~query], labels[~query], metrics
        )

    def provenance(self, metrics: Sequence[str]) -> Provenance:
        """How these metrics were measured, with the card that NMI's clusters came from."""
        device = self.embeddings["concatenated"][0].device
        on_card = "nmi" in metrics and retrieval.faiss_card(device) is not None
        return provenance(self.weights, device_name(device) if on_card else None)

    def scores(self, extra_metrics: Sequence[str] = ()) -> dict[str, dict[str, float]]:
        """Embedding -> metric -> mean over models."""
        metrics = tuple(dict.fromkeys((*METRICS, *extra_metrics)))
        return {
            embedding: _mean([self.evaluate(model, metrics).values for model in models])
            for embedding, models in self.embeddings.items()
        }


def describe_test(
    experiment: Benchmark, trainval: Source, test: Source, embeddings: dict[str, list[Tensor]]
) -> TestEmbeddings:
    """Embeddings of all test images, with what is known of these images."""
    listing, indices = experiment.listing, list(test.indices)
    parts = {"trainval": trainval, "test": test}
    absent = sum(experiment.absent(part, len(source.indices)) for part, source in parts.items())
    return TestEmbeddings(
        embeddings=embeddings,
        indices=np.array(indices),
        labels=listing.labels[indices],
        queries=None if listing.queries is None else listing.queries[indices],
        fingerprint=test.fingerprint,
        missing_images=experiment.unlisted + absent,
        weights=experiment.weights_sha256,
    )


def score(test: TestEmbeddings, extra_metrics: Sequence[str] = ()) -> dict[str, Any]:
    """Every field of a TestRecord that comes from embeddings, and how they were measured.

    Args:
        extra_metrics: measured, beside those of every test.
    """
    metrics = tuple(dict.fromkeys((*METRICS, *extra_metrics)))
    scores = {
        embedding: [test.evaluate(model, metrics) for model in models]
        for embedding, models in test.embeddings.items()
    }
    (together,) = scores["concatenated"]
    return {
        "dims": {embedding: models[0].shape[1] for embedding, models in test.embeddings.items()},
        "scores": {
            embedding: _mean([model.values for model in models])
            for embedding, models in scores.items()
        },
        "separated": [model.values for model in scores.get("separated", [])],
        "queries": together.queries,
        "queries_dropped": together.queries_dropped,
        "test_fingerprint": test.fingerprint,
        "missing_images": test.missing_images,
        "per_class": {
            embedding: class_means([model.per_query for model in models], test.query_labels)
            for embedding, models in scores.items()
        },
        "class_queries": count_queries(together.per_query, test.query_labels),
        "provenance": test.provenance(metrics),
    }


def measure(test: TestEmbeddings, metrics: Sequence[str]) -> dict[str, dict[str, float]]:
    """Embedding -> metric -> mean over models, of metrics that not every test measures."""
    retrieved = [metric for metric in metrics if metric not in GEOMETRY]

    def of_model(model: Tensor) -> dict[str, float]:
        labels = test.labels_for(model)
        values = {m: GEOMETRY[m](model, labels) for m in metrics if m in GEOMETRY}
        if retrieved:
            values |= test.evaluate(model, retrieved).values
        return values

    return {
        embedding: _mean([of_model(m) for m in models])
        for embedding, models in test.embeddings.items()
    }


def _mean(models: Sequence[dict[str, float]]) -> dict[str, float]:
    return {metric: float(np.mean([m[metric] for m in models])) for metric in models[0]}
