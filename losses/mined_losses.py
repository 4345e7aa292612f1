"""Triplet and margin losses with the miners that papers compare with, which DRML builds on.

Parameters are those of K. Roth's Deep-Metric-Learning-Baselines, from which papers take both;
bounds are the reality check's for the losses without a miner.
"""

from __future__ import annotations

from pytorch_metric_learning import losses as pml
from pytorch_metric_learning.distances import LpDistance
from pytorch_metric_learning.miners import TripletMarginMiner
from pytorch_metric_learning.reducers import MeanReducer

from harness.losses._tools.checks import check_choice
from harness.losses._tools.mining import DistanceWeightedMiner, MinedLoss, RothSemihardMiner
from harness.losses.baselines import baseline, margin_loss, uniform


def build_semihard(margin: float = 0.2, variant: str = "pml") -> MinedLoss:
    """The triplet loss on semi-hard triplets.

    Args:
        variant: "pml", all triplets whose negative is farther than the positive, but by less
            than the margin; or "roth", one of each anchor, on squared distances.
    """
    check_choice("variant", variant, ("pml", "roth"))
    if variant == "roth":
        loss = pml.TripletMarginLoss(
            margin=margin, distance=LpDistance(power=2), reducer=MeanReducer()
        )
        return MinedLoss(loss, RothSemihardMiner())
    miner = TripletMarginMiner(margin, type_of_triplets="semihard")
    return MinedLoss(pml.TripletMarginLoss(margin=margin), miner)


def build_margin_dw(
    num_classes: int, embedding_size: int, margin: float = 0.2, beta: float = 1.2
) -> MinedLoss:
    """The margin loss with a learned boundary per class, on distance-weighted triplets."""
    del embedding_size
    loss = pml.MarginLoss(margin=margin, beta=beta, learn_beta=True, num_classes=num_classes)
    return MinedLoss(loss, DistanceWeightedMiner())


METHODS = (
    baseline(
        "triplet-semihard",
        "Schroff, Kalenichenko, Philbin, CVPR 2015",
        build_semihard,
        # A margin that is not positive leaves nothing semi-hard.
        {"margin": uniform(0, 2)},
        {"cub": {"margin": 0.2}},
        further={"variant": str},
    ),
    margin_loss(
        "margin-dw",
        build_margin_dw,
        paper="Wu et al., ICCV 2017, with the paper's miner",
        margin=(0.2,),
        beta=(1.2,),
        loss_lr=(5e-4,),
    ),
)

BY_NAME = {method.name: method for method in METHODS}
