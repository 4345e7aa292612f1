"""Spherical k-means that is the same every time and leaves training's random stream alone."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

MAX_ITERATIONS = 20
SEED = 0

# Why not faiss: its k-means runs a fixed number of iterations from given centroids and cannot
# tell that assignments have stopped changing, which a warm start does at once; it mends empty
# clusters by splitting large ones at random; and it would take a copy to the CPU every time.


def seed_centroids(points: Tensor, num_clusters: int) -> Tensor:
    """(num_clusters, dim) different rows of `points` by k-means++, always the same ones.

    On the CPU with a generator of its own: the draw is the same on every device and leaves the
    random stream of training alone. It happens once in a training.
    """
    generator = torch.Generator(device="cpu").manual_seed(SEED)
    draws = torch.rand(num_clusters, generator=generator, device="cpu", dtype=torch.float64)
    rows = points.cpu()
    weights = torch.ones(len(rows), dtype=torch.float64, device="cpu")
    taken = torch.zeros(len(rows), dtype=torch.bool, device="cpu")
    chosen: list[int] = []
    for draw in draws:
        if not (weights > 0).any():  # only copies of chosen rows are left
            weights = (~taken).double()
        cumulative = weights.cumsum(dim=0)
        index = int(torch.searchsorted(cumulative, draw * cumulative[-1], right=True))
        index = min(index, int(weights.nonzero()[-1]))
        chosen.append(index)
        taken[index] = True
        squared_distances = (2 - 2 * (rows @ rows[index])).clamp_min(0).double()
        weights = torch.minimum(weights, squared_distances) if chosen[1:] else squared_distances
        weights[taken] = 0
    return points[torch.tensor(chosen, device=points.device)]


def cluster_means(points: Tensor, assignments: Tensor, num_clusters: int) -> Tensor:
    """(num_clusters, dim) unit vectors in the direction of each cluster's mean."""
    sums = torch.zeros(
        num_clusters, points.shape[1], dtype=points.dtype, device=points.device
    ).index_add(0, assignments, points)
    return normalize(sums)


def nearest_centroids(points: Tensor, centroids: Tensor) -> Tensor:
    """(points,) index of the nearest centroid, changed so that no cluster is empty."""
    similarities, assignments = (points @ centroids.t()).max(dim=1)
    sizes = assignments.bincount(minlength=len(centroids))
    for empty in (sizes == 0).nonzero().flatten().tolist():
        # The worst-served point moves, but not out of a cluster that it alone fills.
        alone = sizes[assignments] == 1
        worst = similarities.masked_fill(alone, float("inf")).argmin()
        sizes[assignments[worst]] -= 1
        sizes[empty] += 1
        assignments[worst] = empty
    return assignments


def spherical_kmeans(
    points: Tensor, centroids: Tensor, assignments: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Lloyd's iterations on unit vectors from given centroids, until assignments stay.

    Returns (clusters, dim) unit centroids, the means of what is assigned to them, and
    (points,) assignments. Warm-started with the assignments that go with the centroids it
    stops after one look if nothing has moved to another cluster.
    """
    for _ in range(MAX_ITERATIONS):
        before, assignments = assignments, nearest_centroids(points, centroids)
        centroids = cluster_means(points, assignments, len(centroids))
        if before is not None and torch.equal(before, assignments):
            break
    assert assignments is not None
    return centroids, assignments
