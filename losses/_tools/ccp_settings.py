"""What the CCP paper trains with: its own losses, and those that it compares them with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.losses.method import Preset

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

# Data set -> steps of what the paper calls an epoch, which ends with a validation.
CCP_EPOCHS = {"cub": 25, "cars": 25, "sop": 250, "inshop": 250}


def proxies_in_ccp(by_dataset: Mapping[str, Mapping[str, Any]]) -> dict[str, Preset]:
    """Presets of the losses with proxies that the paper compares with.

    They have one image per class, proxies that learn at 100 times the rate of the network, and
    one epoch in which only the head and the proxies train.

    Args:
        by_dataset: data set -> parameters of the loss.
    """
    protocol = {name: v for name, v in CCP_PROTOCOL.items() if name != "samples_per_class"}
    rate = 100 * CCP_PROTOCOL["lr"]
    return {
        dataset: Preset(
            {**params, "loss_lr": rate, "warmup_steps": CCP_EPOCHS[dataset]},
            protocol,
            belongs_to=("mlrc-ccp", "ablation-ccp"),
        )
        for dataset, params in by_dataset.items()
    }
