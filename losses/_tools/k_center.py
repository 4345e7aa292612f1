"""Greedy k-center: points that cover what given centres do not."""

from __future__ import annotations

from functools import partial

import torch
from pytorch_metric_learning.utils import common_functions as c_f
from torch import Tensor


@torch.no_grad()
def farthest_points(pool: Tensor, centres: Tensor) -> Tensor:
    """Greedy k-center in every class at once: the pool's points farthest from the centres.

    As many points are picked as there are centres. Each pick is the point with the largest
    Euclidean distance to its nearest centre or earlier pick, the first such point on ties;
    points repeat once every distance is 0.

    Args:
        pool: (classes, b, dim).
        centres: (classes, k, dim).

    Returns:
        (classes, k, dim) points of the pool.
    """
    if pool.ndim != 3 or centres.ndim != 3 or pool.shape[::2] != centres.shape[::2]:
        raise ValueError(
            "pool and centres must have shapes (classes, b, dim) and (classes, k, dim), "
            f"got {tuple(pool.shape)} and {tuple(centres.shape)}"
        )
    points = pool.to(torch.promote_types(pool.dtype, torch.float32))
    # Differences, not inner products: images drawn twice must be exactly 0 apart. It is also
    # the faster way for these many small matrices.
    distances_to = partial(torch.cdist, points, compute_mode="donot_use_mm_for_euclid_dist")
    nearest = distances_to(centres.to(points)).amin(dim=2)
    classes = c_f.torch_arange_from_size(points)
    picks: list[Tensor] = []
    while len(picks) < centres.shape[1]:
        if picks:
            last = points[classes, picks[-1]].unsqueeze(1)
            nearest = torch.minimum(nearest, distances_to(last).squeeze(2))
        picks.append(nearest.argmax(dim=1))
    return pool[classes.unsqueeze(1), torch.stack(picks, dim=1)]
