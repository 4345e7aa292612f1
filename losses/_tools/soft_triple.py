"""SoftTriple with its gradient written out, and its regulariser without what it does not use."""

from __future__ import annotations

from typing import Any

from pytorch_metric_learning import losses as pml
from pytorch_metric_learning.reducers import MeanReducer
from pytorch_metric_learning.regularizers import SparseCentersRegularizer
from pytorch_metric_learning.utils import common_functions as c_f
from torch import Tensor

from harness.losses._tools.checks import check_labels
from harness.losses._tools.cosine import Formula, cosine_loss, plain_cosine
from harness.losses._tools.loss_dict import elements
from harness.losses._tools.nca import cross_entropy_and_slopes
from harness.losses._tools.normalize import SMALLEST_NORM, divide_by_norm
from harness.losses._tools.short_form import ShortForm, as_it_comes, in_one_precision


def soft_triple_formula(
    labels: Tensor, centers_per_class: int, scale: float, sharpness: float, margin: float
) -> Formula:
    """The mean cross-entropy over scale * (similarity to each class, the own one less a margin).

    The similarity to a class is the mean of those to its centres, weighted by their softmax.
    """

    def formula(cosines: Tensor) -> tuple[Tensor, Tensor]:
        to_centers = cosines.view(len(cosines), -1, centers_per_class)
        # torch's softmax over a few numbers takes several times as long as its operations.
        nearest = to_centers.amax(dim=2, keepdim=True)
        shares = (to_centers - nearest).mul_(sharpness).exp_()
        shares.div_(shares.sum(dim=2, keepdim=True))
        to_classes = (shares * to_centers).sum(dim=2, keepdim=True)
        own = labels.unsqueeze(1)
        logits = to_classes.squeeze(2) * scale
        logits.scatter_add_(1, own, logits.new_full((), -scale * margin).expand(own.shape))
        loss, slopes = cross_entropy_and_slopes(logits, labels)
        by_shares = (to_centers - to_classes).mul_(sharpness).add_(1).mul_(shares)
        return loss, by_shares.mul_(slopes.mul_(scale).unsqueeze(2)).view(cosines.shape)

    return formula


class SoftTripleLoss(ShortForm, pml.SoftTripleLoss):
    """PML's SoftTripleLoss, several times as fast where it is used as it comes.

    That is on cosines of single or double precision, with or without a regulariser of its centres.
    With a miner, another reducer or distance, or statistics it is PML's own.
    """

    def has_short_form(
        self, embeddings: Tensor, indices_tuple: tuple[Tensor, ...] | None = None
    ) -> bool:
        return (
            as_it_comes(self, MeanReducer, indices_tuple, weights_regularized=True)
            and plain_cosine(self.distance)
            and in_one_precision(embeddings, self.fc)
        )

    def short_form(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        centers = self.fc.t().contiguous()  # the gradient of which takes half the time
        self.distance.check_shapes(embeddings, centers)
        check_labels(labels, self.num_classes)
        # PML's gamma is 1 / gamma.
        settings = (self.centers_per_class, self.la, self.gamma, self.margin)
        loss = cosine_loss(embeddings, centers, soft_triple_formula(labels, *settings))
        if self.weight_regularizer is None:
            return loss
        return loss + self.weight_reg_weight * self.weight_regularizer(centers)


class WithinClassCenters(SparseCentersRegularizer):
    """Pulls the centres of each class together.

    PML compares every centre with every other and keeps those of one class: on 75 classes of 10
    that is two thirds of a step when only a head trains, on 11,318 classes 13 GB of masks.
    """

    def set_class_masks(self, num_classes: int, centers_per_class: int) -> None:
        self.num_classes, self.centers_per_class = num_classes, centers_per_class

    def compute_loss(self, weights: Tensor) -> Any:
        if self.collect_stats:  # those of centres of different classes, too
            super().set_class_masks(self.num_classes, self.centers_per_class)
            return super().compute_loss(weights)
        classes, centers = self.num_classes, self.centers_per_class
        unit = divide_by_norm(weights, SMALLEST_NORM).view(classes, centers, -1)
        similarities = (unit @ unit.mT).clamp(max=1)
        distances = (2 + c_f.small_val(weights.dtype) - 2 * similarities).sqrt().triu(diagonal=1)
        divisor = classes * centers * (centers - 1)
        return {"loss": {**elements(distances.flatten()), "divisor": divisor}}
