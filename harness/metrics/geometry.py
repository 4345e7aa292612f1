"""How tightly classes are packed and how far apart they lie (CCP supplement, figure 2)."""

from __future__ import annotations

import torch
from torch import Tensor


def covering_radius(embeddings: Tensor, labels: Tensor) -> float:
    """Mean over classes of how well few samples of a class cover the rest.

    For k = 1..n of the n samples of a class, k centres are chosen greedily: first the sample
    whose farthest companion is nearest, then always the sample farthest from the centres. The
    radius is the largest distance of a sample to its nearest centre, averaged over k.

    Args:
        embeddings: (n, dim), normalised.
        labels: (n,).
    """
    radii = [_class_radius(embeddings[labels == label]) for label in labels.unique()]
    return float(torch.stack(radii).mean())


def _class_radius(members: Tensor) -> Tensor:
    distances = _distances(members, members)
    nearest = distances[distances.amax(dim=1).argmin()]
    radii = []
    for _ in range(len(members)):
        radius, farthest = nearest.max(dim=0)
        radii.append(radius)
        nearest = torch.minimum(nearest, distances[farthest])
    return torch.stack(radii).mean()


def class_distance(embeddings: Tensor, labels: Tensor) -> float:
    """Mean distance over all pairs of samples of different classes."""
    total = torch.zeros((), dtype=torch.float64, device=embeddings.device)
    pairs = 0
    for label in labels.unique():  # a class at a time: memory stays within n x class size
        own = labels == label
        total += _distances(embeddings[own], embeddings[~own]).sum(dtype=torch.float64)
        pairs += int(own.sum()) * int((~own).sum())
    return float(total / pairs)


def _distances(one: Tensor, other: Tensor) -> Tensor:
    # From differences: a sample is exactly 0 from itself.
    return torch.cdist(one, other, compute_mode="donot_use_mm_for_euclid_dist")
