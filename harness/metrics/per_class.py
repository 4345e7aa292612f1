"""Scores of each test class, from those of its queries: what a bootstrap over classes draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from harness.metrics.names import PER_CLASS

DECIMALS = 6

Values = Mapping[str, np.ndarray]


def count_queries(per_query: Values, labels: np.ndarray) -> list[int]:
    """How many queries of each class count, in the order of the labels."""
    _, classes = np.unique(labels, return_inverse=True)
    counts = ~np.isnan(per_query[PER_CLASS[0]])
    return np.bincount(classes, counts).astype(int).tolist()


def class_means(models: Sequence[Values], labels: np.ndarray) -> dict[str, list[float | None]]:
    """Metric -> mean over the queries of each class, None where none counts.

    Args:
        models: metric -> value of each query, NaN where dropped; averaged over several models.
        labels: of the queries.
    """
    _, classes = np.unique(labels, return_inverse=True)
    return {
        metric: _means(np.mean([model[metric] for model in models], axis=0), classes)
        for metric in PER_CLASS
    }


def _means(values: np.ndarray, classes: np.ndarray) -> list[float | None]:
    counts = ~np.isnan(values)
    size = classes.max() + 1
    totals = np.bincount(classes[counts], values[counts], minlength=size)
    numbers = np.bincount(classes[counts], minlength=size)
    return [
        round(float(total / number), DECIMALS) if number else None
        for total, number in zip(totals, numbers, strict=True)
    ]
