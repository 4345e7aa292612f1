"""What the CCP paper trains with: its own losses, and those that it compares them with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CCP_PROTOCOL: Mapping[str, Any] = {
    "optimizer": "adam",
    "lr": 1e-5,
    "weight_decay": 1e-4,
    "pooling": "avg",
    "batch_size": 32,
    "samples_per_class": 4,
    "embedding_size": 128,
    "freeze_batchnorm": True,
    "clip_norm": 10.0,
    "clip_value": 10.0,
}

# Four folds, one model, and the ablations.
CCP_PROTOCOLS = ("mlrc-ccp", "classic-ccp", "ablation-ccp")
