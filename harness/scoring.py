"""Test scores of embeddings: every image a query, or queries against a gallery."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from harness import retrieval
from harness.datasets.listing import Listing


def score_test(
    listing: Listing,
    indices: Sequence[int],
    embeddings: Tensor,
    metrics: Sequence[str] = retrieval.DEFAULT_METRICS,
) -> retrieval.Scores:
    """Scores of the (n, dimensions) embeddings of some test images, on their device.

    Where the data set has queries (In-Shop), they search its gallery; else all search each other.
    """
    labels = torch.from_numpy(listing.labels[list(indices)]).to(embeddings.device)
    if listing.queries is None:
        return retrieval.evaluate(embeddings, labels, metrics=metrics)
    query = torch.from_numpy(np.asarray(listing.queries)[list(indices)]).to(embeddings.device)
    return retrieval.evaluate(
        embeddings[query], labels[query], embeddings[~query], labels[~query], metrics
    )
