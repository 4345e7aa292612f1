"""Neighbours and metrics by their definitions, in loops, and points to try them on."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

METRICS = ("p_at_1", "r_precision", "map_at_r", "recall_at_2", "recall_at_5")


def random_points(size: int, dimensions: int, seed: int = 0) -> Tensor:
    return torch.randn(size, dimensions, generator=torch.Generator().manual_seed(seed))


def clustered(
    size: int, dimensions: int, classes: int, spread: float = 1.5, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Unit vectors around class centres, in random order, and their labels."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (size,), generator=generator)
    points = torch.randn(classes, dimensions, generator=generator)[labels]
    points = points + spread * torch.randn(size, dimensions, generator=generator)
    return torch.nn.functional.normalize(points), labels


def near_duplicates() -> Tensor:
    """Two far clusters of points closer together than a float32 matrix product can tell."""
    centres = random_points(2, 16, seed=1) * 10
    return centres[torch.arange(300) % 2] + random_points(300, 16) * 1e-4


def plain_nearest(queries: Tensor, references: Tensor | None, k: int) -> list[list[int]]:
    """The neighbours by the definition: every distance on its own, ties by index."""
    pool = queries if references is None else references
    found = []
    for i, query in enumerate(queries.numpy()):
        squares = (pool.numpy() - query) ** 2
        squared = squares.sum(1, dtype=np.float64).astype(np.float32)
        others = [j for j in range(len(pool)) if references is not None or j != i]
        found.append(sorted(others, key=lambda j: (squared[j], j))[:k])
    return found


def plain_scores(
    embeddings: Tensor,
    labels: Tensor,
    references: Tensor | None = None,
    reference_labels: Tensor | None = None,
) -> dict[str, float]:
    """The metrics by their definitions, in loops."""
    pool = labels if reference_labels is None else reference_labels
    rows: dict[str, list[float]] = {name: [] for name in METRICS}
    for i, neighbours in enumerate(plain_nearest(embeddings, references, len(pool))):
        hits = [int(pool[j] == labels[i]) for j in neighbours]
        relevant = sum(hits)
        if relevant == 0:
            continue
        rows["p_at_1"].append(hits[0])
        rows["r_precision"].append(sum(hits[:relevant]) / relevant)
        precisions = [hits[j] * sum(hits[: j + 1]) / (j + 1) for j in range(relevant)]
        rows["map_at_r"].append(sum(precisions) / relevant)
        rows["recall_at_2"].append(float(any(hits[:2])))
        rows["recall_at_5"].append(float(any(hits[:5])))
    return {name: float(np.mean(values)) if values else np.nan for name, values in rows.items()}
