"""Retrieval metrics, from exact neighbours, and NMI."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from sklearn.metrics import normalized_mutual_info_score
from torch import Tensor

from harness.metrics.names import METRICS, precision_rank, recall_rank
from harness.metrics.neighbours import check_points, nearest

KMEANS_SEED = 0
FAISS_MEMORY = 2**28  # bytes of a card that faiss may work in; its default is six times as much


@dataclass(frozen=True)
class Scores:
    """Metric means over the queries that count, and per-query values (NaN where dropped)."""

    values: dict[str, float]
    queries: int
    queries_dropped: int
    per_query: dict[str, np.ndarray] = field(default_factory=dict, repr=False, compare=False)


def evaluate(
    embeddings: Tensor,
    labels: Tensor,
    references: Tensor | None = None,
    reference_labels: Tensor | None = None,
    metrics: Sequence[str] = METRICS,
) -> Scores:
    """Score every query by where the references with its label stand among its neighbours.

    R is the number of references with the query's label, without the query itself. Queries with
    R = 0 are dropped from all metrics but nmi; a metric is NaN if none remain.

    Args:
        embeddings: (n, dimensions) of the queries; distances are Euclidean, nothing is normalised.
        labels: (n,) integers.
        references: (m, dimensions), or None to search the queries, each excluded by index.
        reference_labels: (m,) integers, given if and only if references are.
        metrics: any of p_at_1, r_precision, map_at_r, recall_at_<K>, p_at_<K>, nmi.
    """
    retrieved = [name for name in metrics if name != "nmi"]
    limits = [_rank_limit(name) for name in retrieved]
    check_points(embeddings, references)
    _check_labels(embeddings, labels, references, reference_labels)
    pool = labels if reference_labels is None else reference_labels
    itself = int(references is None)  # a query does not find itself
    relevant = _count_in(pool, labels) - itself
    nothing = torch.full_like(relevant, torch.nan, dtype=torch.float64)
    scores = {name: nothing.clone() for name in retrieved}
    if retrieved and relevant.any():
        depths = _depths(relevant, limits).clamp(1, len(pool) - itself)
        order = labels.argsort(stable=True)  # the nearest are likely of the same class
        for rows, neighbours in nearest(embeddings, references, depths, order):
            hits = pool[neighbours] == labels[rows, None]
            for name, limit in zip(retrieved, limits, strict=True):
                scores[name][rows] = _score(name, limit, hits, relevant[rows])
    per_query = {
        name: values.masked_fill(relevant == 0, torch.nan).cpu().numpy()
        for name, values in scores.items()
    }
    kept = (relevant > 0).cpu().numpy()
    values = {name: _mean(found[kept]) for name, found in per_query.items()}
    if "nmi" in metrics:
        values["nmi"] = _nmi(embeddings, labels)
    return Scores(values, len(labels), int((~kept).sum()), per_query)


def _rank_limit(metric: str) -> int | None:
    """The rank up to which a metric looks, or None if that is each query's R."""
    if metric in ("r_precision", "map_at_r"):
        return None
    limit = recall_rank(metric) or precision_rank(metric)
    if limit is None:
        raise ValueError(
            f"a metric must be one of {', '.join(METRICS)}, nmi, recall_at_<K> and p_at_<K>, "
            f"got {metric!r}"
        )
    return limit


def _check_labels(
    embeddings: Tensor, labels: Tensor, references: Tensor | None, reference_labels: Tensor | None
) -> None:
    if (references is None) != (reference_labels is None):
        given = "references" if reference_labels is None else "reference_labels"
        raise ValueError(f"references and reference_labels go together, got only {given}")
    _check_integers("labels", labels, embeddings)
    if references is not None and reference_labels is not None:
        _check_integers("reference_labels", reference_labels, references)


def _check_integers(name: str, labels: Tensor, embeddings: Tensor) -> None:
    if labels.shape != embeddings.shape[:1]:
        raise ValueError(
            f"{name} must be one per embedding, "
            f"got shape {tuple(labels.shape)} for {len(embeddings)} embeddings"
        )
    if labels.is_floating_point() or labels.is_complex():
        raise ValueError(f"{name} must be integers, got {labels.dtype}")


def _count_in(pool: Tensor, labels: Tensor) -> Tensor:
    """(n,) how often the pool has each label."""
    ascending = pool.sort().values
    after = torch.searchsorted(ascending, labels, right=True)
    return after - torch.searchsorted(ascending, labels)


def _depths(relevant: Tensor, limits: Sequence[int | None]) -> Tensor:
    """(n,) how many neighbours each query needs for metrics of the given limits."""
    fixed = max((limit for limit in limits if limit is not None), default=0)
    return relevant.clamp_min(fixed) if None in limits else torch.full_like(relevant, fixed)


def _score(metric: str, limit: int | None, hits: Tensor, relevant: Tensor) -> Tensor:
    """(rows,) float64 values of one metric from (rows, k) hits in order of rank."""
    if limit is not None:
        first = hits[:, :limit]
        # With fewer than K references, the missing neighbours count as wrong.
        return first.any(1).double() if recall_rank(metric) else first.sum(1).double() / limit
    ranks = torch.arange(1, hits.shape[1] + 1, device=hits.device)
    hits = hits & (ranks <= relevant[:, None])
    if metric == "r_precision":
        return hits.sum(1) / relevant.double()
    precisions = hits.cumsum(1, dtype=torch.int32) / ranks.double()
    # The number of columns, that of the rows which come together, shows in the last bit of the sum.
    return (precisions * hits).sum(1) / relevant


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else math.nan


def faiss_card(device: torch.device) -> int | None:
    """The card on which faiss clusters points of a device; None if it does so on the CPU."""
    import faiss  # only NMI needs it

    count_cards = getattr(faiss, "get_num_gpus", int)  # builds for the CPU may lack it
    return (device.index or 0) if device.type == "cuda" and count_cards() > 0 else None


def _nmi(embeddings: Tensor, labels: Tensor) -> float:
    """Normalised mutual information of the labels and as many k-means clusters.

    The clusters are the same every time on one machine. Those of a card may differ in a few points
    from those of a CPU, since a card rounds distances differently.
    """
    import faiss

    faiss.omp_set_num_threads(torch.get_num_threads())
    points = embeddings.detach().float().cpu().numpy()
    truth = labels.cpu().numpy()
    # faiss warns below 39 points per cluster, the normal case here, and would train on a sample
    # above 256: every point is to be used.
    kmeans = faiss.Kmeans(
        points.shape[1],
        len(np.unique(truth)),
        niter=20,
        seed=KMEANS_SEED,
        min_points_per_centroid=1,
        max_points_per_centroid=len(points),
    )
    card = faiss_card(embeddings.device)
    if card is not None:
        # Not by gpu=True, which takes every card, those of other workers too.
        resources = faiss.StandardGpuResources()
        resources.setTempMemory(FAISS_MEMORY)
        kmeans.index = faiss.index_cpu_to_gpu(resources, card, kmeans.index)
    kmeans.train(points)
    clusters = kmeans.index.search(points, 1)[1][:, 0]
    return float(normalized_mutual_info_score(truth, clusters))
