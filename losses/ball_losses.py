"""Pair losses on ball-normalised vectors, alone: what CCP and the cross-batch memory build on."""

from __future__ import annotations

from functools import partial

from pytorch_metric_learning.losses import BaseMetricLossFunction

from losses._tools.ccp_settings import CCP_PROTOCOL, CCP_PROTOCOLS
from losses.ccp import PAIR_LOSSES, build_pair_loss
from losses.method import Method, Preset


def build_loss(
    num_classes: int, embedding_size: int, *, pair_loss: str, **params: float
) -> BaseMetricLossFunction:
    del num_classes, embedding_size
    return build_pair_loss(pair_loss, params)


def _method(pair_loss: str, paper: str) -> Method:
    chosen = PAIR_LOSSES[pair_loss]
    published = chosen.published.items()
    return Method(
        name=chosen.alone,
        paper=paper,
        build_loss=partial(build_loss, pair_loss=pair_loss),
        loss_params=chosen.types,
        space=chosen.space,
        presets={
            "mlrc": {dataset: Preset(params) for dataset, params in published},
            "paper": {
                dataset: Preset(params, CCP_PROTOCOL, under=CCP_PROTOCOLS)
                for dataset, params in published
            },
        },
        normalizer="ball",
    )


METHODS = (
    _method("c1", "Wang et al., Cross-Batch Memory for Embedding Learning, CVPR 2020 (its loss)"),
    _method("c2", "Hadsell, Chopra, LeCun, CVPR 2006, as the CCP paper has it"),
    _method("ms", "Wang et al., CVPR 2019, as the CCP paper has it"),
    _method("triplet", "Weinberger, Saul, JMLR 2009, as the CCP paper has it"),
)
