"""ProxyNCA++'s own experiment: halves of the training classes choose how long to train.

A first model trains on one half and is validated on the other. A second one trains on both from the
start again, for as many epochs as the first took to its best, and lowers its rates where the first
did. Only that one is tested, once, with its last weights.
"""

from __future__ import annotations

from typing import Any

from harness.protocols.classic import FEW, PRODUCTS, SMALL
from harness.protocols.protocol import EvaluationProtocol

GARMENTS = tuple(f"recall_at_{k}" for k in (1, 10, 20, 30, 40))

_MANY: dict[str, Any] = {"lr": 2.4e-2, "batch_size": 192, "samples_per_class": 3, "epochs": 80}
# Without a first stage: all training classes, constant rates, the last weights.
_CONSTANT: dict[str, Any] = {
    **{"folds": "none", "select": "last", "schedule": "constant"},
    **{"test_metrics": (*GARMENTS, "nmi"), "loss_lr": 2.4e3},
}

TWO_STAGE = EvaluationProtocol(
    name="two_stage",
    summary="as the ProxyNCA++ paper tests: one half of the classes sets the epochs for both",
    split="official",
    folds="halves",
    select="replay",
    embedding_size=2048,
    trunk="resnet50",
    pooling="max",
    norm="layer",
    freeze_batchnorm=False,
    resize=288,
    crop=256,
    crop_scale=(0.08, 1.0),
    crop_ratio=(3 / 4, 4 / 3),
    crop_from="original",
    batches="dealt",
    batch_size=32,
    samples_per_class=4,
    optimizer="adam",
    optimizer_eps=1.0,  # which these rates go with
    lr=4e-3,
    loss_lr=4e2,
    weight_decay=0.0,
    clip_value=10.0,
    clip_loss=False,
    warmup_epochs=5,
    warmup_extra=True,
    warmup_statistics=True,
    schedule="plateau",
    lr_factor=0.1,
    plateau_on="harmonic",
    plateau_patience=4,
    plateau_threshold=1e-4,
    metric="p_at_1",
    test_metrics=(*FEW, "nmi"),
    epochs=40,
    patience=None,
    reproductions=5,
    datasets={
        "sop": {**_MANY, "test_metrics": (*PRODUCTS, "nmi"), "loss_lr": 2.4e2},
        "inshop": {**_MANY, **_CONSTANT},
        "inaturalist": {**_MANY, "loss_lr": 2.4e2},
        "imagenet": {**_MANY, "loss_lr": 2.4e2},
        "glyphs": {**SMALL, "warmup_epochs": 0, "warmup_extra": False},
    },
)

PROTOCOLS = (TWO_STAGE,)
