"""The protocols of papers since 2022: a vision transformer with embeddings of 384 dimensions.

`vit` compares methods as `mlrc-pairs` does; `classic-vit` tests one model as these papers do. The
values come from two papers and their public code:

HIER: Kim, Jeong, Kwak, CVPR 2023, arXiv 2212.14258; github.com/tjddus9597/HIER-CVPR23, files
    scripts/DINO/hier_*.sh, hier/train.py, hier/utils.py and hier/models/model.py.
Hyp-ViT: Ermolov et al., CVPR 2022, arXiv 2203.10833; github.com/htdt/hyp_metric, file train.py.

Three things differ from their code. Images are resized bilinearly, theirs bicubically. Their
patch embedding does not train. They compute in float16 with eps 1e-4; in float32 their eps is 1e-8.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from harness.protocols.classic import (
    CLASSIC,
    FEW,
    GARMENTS,
    MANY,
    PRODUCTS,
    SMALL,
    on_each,
)
from harness.protocols.mlrc import GLYPHS, MLRC, selected_by_pairs

# How the network is built, how it sees images, and how it learns.
SHARED: dict[str, Any] = {
    # HIER: --model dino_vits16; Hyp-ViT: model dino_vits16.
    "trunk": "timm:vit_small_patch16_224.dino",
    # HIER, README: --emb {128 384 512}.
    "embedding_size": 384,
    # HIER, --use_lastnorm True: LayerNorm without parameters before a linear layer with a bias.
    "norm": "layer",
    "head_bias": True,
    # HIER: --resize_size 256, --crop_size 224 at test.
    "resize": 256,
    "crop": 224,
    # HIER, utils.py, and Hyp-ViT: RandomResizedCrop(224, scale=(0.2, 1.0)), horizontal flips.
    "crop_scale": (0.2, 1.0),
    "crop_ratio": (3 / 4, 4 / 3),  # torchvision's default
    "crop_from": "original",
    # HIER: --batch_size 90 on each of two GPUs, which their rates are scaled to.
    "batch_size": 180,
    # HIER: --optimizer adamw; Hyp-ViT: AdamW.
    "optimizer": "adamw",
    # HIER: --lr 5e-6. Hyp-ViT trains at 1e-5.
    "lr": 5e-6,
    # HIER, utils.py: proxies learn at 1e4 times the rate.
    "loss_lr": 5e-2,
    # HIER: --weight_decay 1e-2. It is also AdamW's default in torch, which Hyp-ViT uses.
    "weight_decay": 1e-2,
    # HIER, utils.py: gradients of model and losses are clipped at 10.
    "clip_value": 10.0,
    # HIER: --warmup_epochs 1, in which all but the pretrained weights train.
    "warmup_epochs": 1,
    # HIER: --epochs 100; no --lr_decay.
    "epochs": 100,
}

# HIER, hier_SOP.sh and hier_Inshop.sh: --epochs 150 --warmup_epochs 5 --weight_decay 1e-4, and
# --fc_lr_scale 1e2 for the head.
LARGE: dict[str, Any] = {
    **{"epochs": 150, "warmup_epochs": 5, "weight_decay": 1e-4},
    **{"lr": 5e-4, "trunk_lr": 5e-6},
}
# HIER, hier_SOP.sh: --eval_freq 5. The patience is ours, for the papers do not stop early.
FOR_MANY = {**LARGE, "validate_epochs": tuple(range(5, 151, 5)), "patience": 3}

VIT = replace(
    selected_by_pairs(MLRC),
    **SHARED,
    name="vit",
    summary="as papers since 2022 train ViT-S/16 (DINO): four models of 384-d, selected by pairs",
    test_metrics=FEW,
    patience=10,  # ours
    datasets={
        **{name: FOR_MANY for name in MANY},
        "sop": {**FOR_MANY, "test_metrics": PRODUCTS},
        "inshop": {**FOR_MANY, "test_metrics": GARMENTS},
        "glyphs": {
            **{**SMALL, "weight_decay": 1e-4, "warmup_epochs": 0, "clip_value": None},
            **{"epochs": None, "norm": "none", "batch_size": 32},
            **{name: GLYPHS[name] for name in ("validate_every", "max_steps", "patience")},
        },
    },
)

CLASSIC_VIT = replace(
    CLASSIC,
    **SHARED,
    name="classic-vit",
    summary="as the HIER paper tests: ViT-S/16 (DINO), 384-d; the best epoch on the test classes",
    batches="drawn",
    # HIER: --IPC 2, two images of each class in a batch.
    samples_per_class=2,
    datasets=on_each(
        glyphs={"weight_decay": 1e-4, "warmup_epochs": 0},
        **{
            **{name: LARGE for name in MANY},
            # HIER, train.py: evaluated from the 41st epoch on; on SOP every fifth.
            "sop": {**LARGE, "validate_epochs": tuple(range(41, 151, 5))},
            "inshop": {**LARGE, "validate_epochs": tuple(range(41, 151))},
        },
    ),
)

PROTOCOLS = (VIT, CLASSIC_VIT)
