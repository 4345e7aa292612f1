"""The papers' own experiments: one model, no validation classes, the best result on the test.

Every one of them looks at the test classes to choose what it reports, so its rows are marked as
test-selected, have the last epoch beside them and are never ranked.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from harness.protocols.mlrc import GLYPHS
from harness.protocols.protocol import EvaluationProtocol

# Data sets of many classes with few images each, for which the papers have settings of their own.
MANY = ("sop", "inshop", "inaturalist", "imagenet", "imagenet_closed")

# What is measured beside P@1, RP and MAP@R.
FEW = tuple(f"recall_at_{k}" for k in (1, 2, 4, 8))
PRODUCTS = tuple(f"recall_at_{k}" for k in (1, 10, 100, 1000))
GARMENTS = tuple(f"recall_at_{k}" for k in (1, 10, 20, 30, 40, 50))
MEASURED: dict[str, dict[str, Any]] = {
    "sop": {"test_metrics": (*PRODUCTS, "nmi")},
    "inshop": {"test_metrics": (*GARMENTS, "nmi")},
}

# The embedded data set trains a small network from scratch, at rates that it learns with.
SMALL: dict[str, Any] = {
    **{name: GLYPHS[name] for name in ("trunk", "resize", "crop", "crop_scale", "flip", "lr")},
    **{"crop_from": "resized", "freeze_batchnorm": False, "freeze_affine": False},
    **{"trunk_lr": None, "loss_lr": None, "optimizer": "adam", "optimizer_eps": 1e-8},
}

CLASSIC = EvaluationProtocol(
    name="classic",
    split="official",
    folds="none",
    select="test",
    embedding_size=512,
    metric="p_at_1",
    test_metrics=(*FEW, "nmi"),
    trials=1,  # nothing may be searched
    reproductions=1,
    resize=256,
    crop=224,
    crop_scale=(0.08, 1.0),
    crop_ratio=(3 / 4, 4 / 3),
    crop_from="original",
    batches="shuffled",
    weight_decay=1e-4,
    patience=None,
)


def on_each(
    glyphs: dict[str, Any] | None = None, **fields: dict[str, Any]
) -> dict[str, dict[str, Any]]:
    """Settings of data sets, with what each measures."""
    names = {*MEASURED, *fields}
    both = {name: {**MEASURED.get(name, {}), **fields.get(name, {})} for name in sorted(names)}
    return {**both, "glyphs": {**SMALL, **(glyphs or {})}}


PROXYGML = replace(
    CLASSIC,
    name="classic-proxygml",
    summary="as the ProxyGML paper tests: 512-d, 50 epochs; the best epoch on the test classes",
    trunk="bninception",
    batch_size=32,
    keep_rest=True,
    optimizer="adam",
    optimizer_eps=0.01,
    lr=1e-4,
    loss_lr=0.03,
    # The 20th and the 40th epoch begin at lower rates.
    schedule="multistep",
    lr_epochs=(19, 39),
    epochs=50,
    validate_epochs=(1, 2, *range(35, 51)),
    datasets=on_each(**{name: {"freeze_batchnorm": False, "loss_lr": 0.3} for name in MANY}),
)

# Proxy Anchor's settings where the HPL paper gives none.
HPL = replace(
    CLASSIC,
    name="classic-hpl",
    summary="as the HPL paper tests: ResNet-50, 512-d, 30 epochs; the best epoch on the test",
    trunk="resnet50",
    pooling="avg+max",
    batch_size=128,
    optimizer="adamw",
    lr=1e-4,
    loss_lr=1e-2,
    warmup_epochs=5,
    warmup_statistics=True,
    schedule="step",
    lr_every=5,
    lr_factor=0.5,
    clip_value=10.0,
    epochs=30,
    datasets=on_each(
        glyphs={"warmup_epochs": 0},
        cars={"lr_every": 10},
        **{name: {"freeze_batchnorm": False, "lr_every": 20, "lr_factor": 0.25} for name in MANY},
    ),
    trunks={
        "bninception": {
            "": {"warmup_epochs": 1},
            "cub": {"lr_every": 10},
            "cars": {"lr_every": 20},
            "folder": {"lr_every": 10},
        }
    },
)

DRML = replace(
    CLASSIC,
    name="classic-drml",
    summary="as the DRML paper tests: 512-d, at most 61 epochs; the best epoch on the test classes",
    trunk="bninception",
    pooling="avg+max",
    freeze_affine=True,
    crop_scale=(0.16, 1.0),
    crop_ratio=(0.75, 1.33),
    crop_from="resized",
    batch_size=180,
    optimizer="adamw",
    lr=1e-3,
    trunk_lr=5e-5,
    loss_lr=1e-2,
    warmup_epochs=1,
    schedule="step",
    lr_every=10,
    lr_factor=0.5,
    clip_norm=10.0,
    clip_each=True,
    epochs=61,
    patience=15,
    stop_below=0.6,
    datasets=on_each(glyphs={"warmup_epochs": 0}),
)

# Keras lowers rates at the third validation without gain where its patience is 3, and its cooldown
# of 2 leaves out one validation: in torch's terms 2 and 1. The extra epoch that losses with
# proxies get there freezes nothing and is left out.
_RESNET: dict[str, dict[str, Any]] = {
    "": {"batch_size": 112, "weight_decay": 4e-4},
    **{name: {"patience": 10} for name in MANY},
}
CCP = replace(
    CLASSIC,
    name="classic-ccp",
    summary="as the CCP paper tests one model: 512-d, Adam, rates by plateau; the best on the test",
    reproductions=3,
    trunk="bninception",
    pooling="avg+max",
    head_bias=False,
    freeze_affine=True,
    crop=227,
    crop_scale=(0.16, 1.0),
    crop_ratio=(0.75, 1.33),
    batches="drawn",
    batch_size=128,
    optimizer="adam",
    lr=1e-5,
    loss_lr=1e-3,
    clip_norm=10.0,
    clip_value=10.0,
    schedule="plateau",
    lr_factor=0.5,
    plateau_patience=3,
    plateau_threshold=1e-3,
    plateau_mode="abs",
    plateau_cooldown=1,
    plateau_floor=1e-6,
    validate_every=25,
    patience=15,
    min_gain=1e-5,
    datasets=on_each(
        glyphs={"max_steps": 400},
        cub={"classes_per_batch": 100},
        cars={"classes_per_batch": 96},
        **{
            name: {"lr": 1e-4, "loss_lr": 1e-2, "validate_every": 250, "plateau_patience": 2}
            for name in MANY
        },
    ),
    trunks={"resnet50": _RESNET, "timm:resnetv2_50": _RESNET},
)

PROTOCOLS = (PROXYGML, HPL, DRML, CCP)
