"""A loss of your own: one pytorch-metric-learning class, and the space to search.

harness search --loss examples/own_loss.py --trials 10
"""

from __future__ import annotations

from typing import Any

from optuna.distributions import FloatDistribution
from pytorch_metric_learning.losses import ContrastiveLoss
from torch import Tensor
from torch.nn.functional import softplus


class SoftContrastiveLoss(ContrastiveLoss):
    """The contrastive loss with a soft hinge: no pair is ever quite done with.

    Args:
        sharpness: of the hinge; the larger, the nearer to the plain loss.
    """

    def __init__(
        self,
        pos_margin: float = 0.2,
        neg_margin: float = 0.8,
        sharpness: float = 10.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(pos_margin=pos_margin, neg_margin=neg_margin, **kwargs)
        self.sharpness = sharpness

    def pos_calc(self, pos_pair_dist: Tensor, margin: float) -> Tensor:
        return softplus(self.distance.margin(pos_pair_dist, margin), beta=self.sharpness)

    def neg_calc(self, neg_pair_dist: Tensor, margin: float) -> Tensor:
        return softplus(self.distance.margin(margin, neg_pair_dist), beta=self.sharpness)


# Every name is an argument of the class. The first trial is the middle of each range.
SPACE = {
    "pos_margin": FloatDistribution(0, 1),
    "neg_margin": FloatDistribution(0, 1),
    "sharpness": FloatDistribution(1, 100, log=True),
}
