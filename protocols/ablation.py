"""The CCP paper's ablations: one model, two thirds of the classes train it, the last validates."""

from __future__ import annotations

from dataclasses import replace

from harness.protocols.mlrc import MLRC_CCP

ABLATION_CCP = replace(
    MLRC_CCP,
    name="ablation-ccp",
    summary="as the CCP paper ablates: one model, validated on a third of the training classes",
    split="official",
    folds="thirds",
)

PROTOCOLS = (ABLATION_CCP,)
