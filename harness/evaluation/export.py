"""Test embeddings as a file that numpy reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from harness.errors import HarnessError
from harness.evaluation.kept_models import KeptModels
from harness.system.files import replacing


def test_arrays(kept: KeptModels) -> dict[str, np.ndarray]:
    """Open the test classes; what the models make of them, by the names of `harness embed`."""
    test, listing = kept.embed(), kept.experiment.listing
    (together,) = (embedding.cpu().numpy() for embedding in test.embeddings["concatenated"])
    models = test.embeddings.get("separated", test.embeddings["concatenated"])
    labels, counted = np.unique(test.labels, return_inverse=True)
    return {
        "concatenated": together,
        "separated": np.stack([embedding.cpu().numpy() for embedding in models]),
        "labels": counted,
        "class_names": np.array([listing.class_names[label] for label in labels]),
        "files": np.array([listing.names[index] for index in test.indices]),
        **({} if test.queries is None else {"queries": test.queries}),
    }


def write_embeddings(kept: KeptModels, path: Path) -> tuple[int, int]:
    """Open the test classes and write what the models make of them; (images, dimensions)."""
    arrays: dict[str, Any] = {**test_arrays(kept)}
    try:
        with replacing(path) as file:
            np.savez_compressed(file, **arrays)
    except OSError as error:
        raise HarnessError(f"cannot write {path}: {error.strerror}") from None
    images, size = arrays["concatenated"].shape
    return images, size
