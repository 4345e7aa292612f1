"""Pair losses on ball-normalised vectors, alone: what CCP and the cross-batch memory build on."""

from __future__ import annotations

from functools import partial

from optuna.distributions import FloatDistribution
from pytorch_metric_learning.losses import BaseMetricLossFunction

from losses._tools.ball import BallDotProductSimilarity, BallLpDistance
from losses.ccp import BASE_PARAMS, CCP_PROTOCOL, base_types, build_base
from losses.method import Method, Preset, Space

DISTANCES = {"c1": BallDotProductSimilarity, "c2": BallLpDistance}

SPACES: dict[str, Space] = {
    "c1": {"margin": FloatDistribution(0.0, 1.0)},
    # The reality check's bounds for its contrastive loss.
    "c2": {"pos_margin": FloatDistribution(-0.2, 2.0), "neg_margin": FloatDistribution(-0.2, 2.0)},
}


def build_loss(
    num_classes: int, embedding_size: int, *, pair_loss: str, **params: float
) -> BaseMetricLossFunction:
    del num_classes, embedding_size
    return build_base(pair_loss, params, DISTANCES[pair_loss]())


def space(dataset: str, num_classes: int, *, pair_loss: str) -> Space:
    del dataset, num_classes
    return SPACES[pair_loss]


def _method(name: str, paper: str, pair_loss: str) -> Method:
    published = BASE_PARAMS[pair_loss].items()
    return Method(
        name=name,
        paper=paper,
        build_loss=partial(build_loss, pair_loss=pair_loss),
        loss_params=base_types(pair_loss),
        space=partial(space, pair_loss=pair_loss),
        presets={
            "mlrc": {dataset: Preset(params) for dataset, params in published},
            "paper": {dataset: Preset(params, CCP_PROTOCOL) for dataset, params in published},
        },
        normalizer="ball",
    )


METHODS = (
    _method(
        "c1",
        "Wang et al., Cross-Batch Memory for Embedding Learning, CVPR 2020 (its contrastive loss)",
        "c1",
    ),
    _method(
        "c2",
        "Hadsell et al., Dimensionality Reduction by Learning an Invariant Mapping, CVPR 2006",
        "c2",
    ),
)
