"""Pair losses on ball-normalised vectors, alone: what CCP and the cross-batch memory build on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from optuna.distributions import FloatDistribution
from pytorch_metric_learning.distances import BaseDistance
from pytorch_metric_learning.losses import (
    BaseMetricLossFunction,
    MultiSimilarityLoss,
    TripletMarginLoss,
)

from harness.losses._tools.all_pairs import AllPairsContrastiveLoss
from harness.losses._tools.ball import BallDotProductSimilarity, BallLpDistance
from harness.losses._tools.c1 import C1Loss
from harness.losses._tools.ccp_settings import CCP_PROTOCOL, CCP_PROTOCOLS
from harness.losses._tools.checks import check_base_params
from harness.losses.baselines import BY_NAME, by_dataset
from harness.losses.method import Method, ParamTypes, Preset, Space


@dataclass(frozen=True)
class PairLoss:
    """A loss that CCP, or a memory, can be built on.

    Attributes:
        alone: the method that is this loss alone.
        distance: of ball-normalised vectors.
        space: what the loss searches where it is alone.
        published: data set -> the parameters that the CCP paper gives it.
    """

    alone: str
    loss: Callable[..., BaseMetricLossFunction]
    distance: Callable[..., BaseDistance]
    space: Callable[[str, int], Space]
    published: Mapping[str, Mapping[str, float]]

    @property
    def types(self) -> ParamTypes:
        """Of its parameters, all real numbers."""
        return dict.fromkeys(self.published["cub"], float)


def _c1_space(dataset: str, num_classes: int) -> Space:
    del dataset, num_classes
    return {"margin": FloatDistribution(0.0, 1.0)}


# Published are the reality check's optima, rounded; spaces are the reality check's, too, but C1's.
PAIR_LOSSES = {
    "c1": PairLoss(
        alone="c1",
        loss=C1Loss,
        distance=BallDotProductSimilarity,
        space=_c1_space,
        published=by_dataset(margin=(0.5, 0.5, 0.5, 0.5)),
    ),
    "c2": PairLoss(
        alone="c2",
        loss=AllPairsContrastiveLoss,
        distance=BallLpDistance,
        space=BY_NAME["contrastive"].space,
        # The paper changes CUB's pos_margin from -0.2 to 0 and gives SOP's values to In-Shop.
        published=by_dataset(
            pos_margin=(0.0, 0.2652, 0.2858, 0.2858), neg_margin=(0.3841, 0.5409, 0.5130, 0.5130)
        ),
    ),
    "ms": PairLoss(
        alone="ms-ball",
        loss=MultiSimilarityLoss,
        distance=BallDotProductSimilarity,
        space=BY_NAME["ms"].space,
        # In-Shop's are the reality check's optima for SOP, as the paper has it.
        published=by_dataset(
            alpha=(2.0, 14.35, 2.0, 8.49),
            beta=(40.0, 75.83, 40.0, 57.38),
            base=(0.5, 0.66, 0.5, 0.41),
        ),
    ),
    "triplet": PairLoss(
        alone="triplet-ball",
        loss=TripletMarginLoss,
        distance=BallLpDistance,
        space=BY_NAME["triplet"].space,
        published=by_dataset(margin=(0.0961, 0.1190, 0.0451, 0.0451)),
    ),
}


def build_pair_loss(
    name: str,
    params: Mapping[str, float] | None = None,
    distance: BaseDistance | None = None,
) -> BaseMetricLossFunction:
    """A pair loss by name, by default on the ball; parameters not given are those for CUB."""
    if name not in PAIR_LOSSES:
        known = ", ".join(PAIR_LOSSES)
        raise ValueError(f"base must be one of {known} or a PML loss, got {name!r}")
    chosen = PAIR_LOSSES[name]
    defaults = chosen.published["cub"]
    check_base_params(name, params or {}, defaults)
    return chosen.loss(**{**defaults, **(params or {})}, distance=distance or chosen.distance())


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
                dataset: Preset(params, CCP_PROTOCOL, belongs_to=CCP_PROTOCOLS)
                for dataset, params in published
            },
        },
        normalizer="ball",
    )


METHODS = (
    _method("c1", "Wang et al., Cross-Batch Memory for Embedding Learning, CVPR 2020 (its loss)"),
    _method("c2", "Hadsell, Chopra, LeCun, CVPR 2006, as in the CCP paper"),
    _method("ms", "Wang et al., CVPR 2019, as in the CCP paper"),
    _method("triplet", "Weinberger, Saul, JMLR 2009, as in the CCP paper"),
)
