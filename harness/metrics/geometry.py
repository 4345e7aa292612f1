"""How tightly classes are packed and how far apart they lie (CCP supplement, figure 2)."""

from __future__ import annotations

import torch
from torch import Tensor

DISTANCES = 2**22  # that are held at once


def covering_radius(embeddings: Tensor, labels: Tensor) -> float:
    """Mean over classes of how well few samples of a class cover the rest.

    For k = 1..n of the n samples of a class, k centres are chosen greedily: first the sample
    whose farthest companion is nearest, then always the sample farthest from the centres. The
    radius is the largest distance of a sample to its nearest centre, averaged over k.

    Args:
        embeddings: (n, dim), normalised.
        labels: (n,).
    """
    points, sizes = _by_class(embeddings, labels)
    return float(torch.stack([_radius(members) for members in points.split(sizes)]).mean())


def _radius(members: Tensor) -> Tensor:
    distances = _distances(members, members)
    to_centres = distances[distances.amax(dim=1).argmin()]
    radii = []
    for _ in range(len(members)):
        radius, farthest = to_centres.max(dim=0)
        radii.append(radius)
        to_centres = torch.minimum(to_centres, distances[farthest])
    return torch.stack(radii).mean()


def class_distance(embeddings: Tensor, labels: Tensor) -> float:
    """Mean distance over all pairs of samples of different classes."""
    total = torch.zeros((), dtype=torch.float64, device=embeddings.device)
    others, sizes = _by_class(embeddings, labels)
    pairs = 0
    for size in sizes:
        members, others = others[:size], others[size:]  # each pair once
        pairs += size * len(others)
        for rows in members.split(max(1, DISTANCES // len(embeddings))):
            total += _distances(rows, others).sum(dtype=torch.float64)
    return float(total / pairs)


def _by_class(embeddings: Tensor, labels: Tensor) -> tuple[Tensor, list[int]]:
    """The samples in the order of their labels, and how many each class has."""
    sizes = labels.unique(return_counts=True)[1].tolist()
    return embeddings[labels.argsort(stable=True)], sizes


def _distances(one: Tensor, other: Tensor) -> Tensor:
    # From differences: a sample is exactly 0 from itself.
    return torch.cdist(one, other, compute_mode="donot_use_mm_for_euclid_dist")
