"""PML's contrastive loss without its lists of pairs.

PML writes down every pair, picks its distance out of the matrix and drops what is zero; torch takes
the gradient of a distance matrix pair by pair. Against the hundreds of proxies of CCP that is two
thirds of a step when only a head trains.
"""

from __future__ import annotations

from typing import Any

import torch
from pytorch_metric_learning.distances import LpDistance
from pytorch_metric_learning.losses import ContrastiveLoss
from pytorch_metric_learning.reducers import AvgNonZeroReducer, MultipleReducers
from pytorch_metric_learning.utils import common_functions as c_f
from torch import Tensor


class AllPairsContrastiveLoss(ContrastiveLoss):
    """PML's ContrastiveLoss, several times as fast where it is used as it comes.

    That is on Euclidean distances of all pairs. With a miner, a reducer, a regulariser, another
    distance or statistics it is PML's own.
    """

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor | None = None,
        indices_tuple: tuple[Tensor, ...] | None = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
    ) -> Any:
        if labels is None or not self.as_it_comes(indices_tuple):
            return super().forward(embeddings, labels, indices_tuple, ref_emb, ref_labels)
        c_f.check_shapes(embeddings, labels)
        labels = c_f.to_device(labels, embeddings)
        if ref_emb is None:
            return self._loss(embeddings, labels, embeddings[:0], labels[:0], (0, 1))
        ref_emb, ref_labels = c_f.set_ref_emb(embeddings, labels, ref_emb, ref_labels)
        return self._loss(embeddings, labels, ref_emb, ref_labels, (1, 0))

    def with_references(
        self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor, ref_labels: Tensor, weight: float
    ) -> Tensor:
        """The loss against references plus `weight` times the loss within the batch, in one go."""
        return self._loss(embeddings, labels, ref_emb, ref_labels, (1, weight))

    def _loss(
        self,
        embeddings: Tensor,
        labels: Tensor,
        ref_emb: Tensor,
        ref_labels: Tensor,
        weights: tuple[float, float],
    ) -> Tensor:
        anchors = self.distance.maybe_normalize(embeddings)
        columns, column_labels = self.distance.maybe_normalize(ref_emb), ref_labels
        if weights[1]:
            columns, column_labels = torch.cat([columns, anchors]), torch.cat([ref_labels, labels])
        same = (labels.unsqueeze(1) == column_labels).to(anchors.dtype)
        margins = (self.pos_margin, self.neg_margin)
        return _Contrastive.apply(anchors, columns, same, len(ref_emb), margins, weights)

    def as_it_comes(self, indices_tuple: tuple[Tensor, ...] | None = None) -> bool:
        """Whether all is as this class can do it faster."""
        distance, reducer = self.distance, self.reducer
        return (
            indices_tuple is None
            and isinstance(distance, LpDistance)
            and type(distance).compute_mat is LpDistance.compute_mat
            and (distance.p, distance.power) == (2, 1)
            and isinstance(reducer, MultipleReducers)
            and all(type(one) is AvgNonZeroReducer for one in reducer.reducers.values())
            and self.embedding_regularizer is None
            and not self.collect_stats
        )


class _Contrastive(torch.autograd.Function):
    """The weighted loss against references, the first columns, and within the batch, the others.

    Each is the mean violation of positive pairs plus that of negative pairs, zeros not counted.
    Masks are of floats throughout: arithmetic on them is several times as fast as on booleans.
    """

    @staticmethod
    def forward(
        ctx: Any,
        anchors: Tensor,
        columns: Tensor,
        same: Tensor,
        num_references: int,
        margins: tuple[float, float],
        weights: tuple[float, float],
    ) -> Tensor:
        pos_margin, neg_margin = margins
        distances, apart = _distances(anchors, columns)
        sign = same * 2 - 1
        offsets = neg_margin - same * (pos_margin + neg_margin)
        violations = torch.addcmul(offsets, sign, distances).relu_()
        violations[:, num_references:].fill_diagonal_(0)
        # The gradient by each distance, divided by the distance: what backward multiplies
        # differences of vectors with. Where two vectors coincide there is no direction.
        slopes = violations.sign().mul_(sign)
        loss = anchors.new_zeros(())
        sizes = (num_references, len(columns) - num_references)
        parts = (matrix.split(sizes, dim=1) for matrix in (violations, slopes, same))
        for violated, sloping, alike, weight in zip(*parts, weights, strict=True):
            if weight:
                loss += _mean_and_slopes(violated, sloping, alike, weight)
        ctx.save_for_backward(anchors, columns, slopes.mul_(apart).div_(distances + (1 - apart)))
        return loss

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        anchors, columns, slopes = ctx.saved_tensors
        slopes = slopes * gradient
        of_anchors = torch.addmm(anchors * slopes.sum(1, keepdim=True), slopes, columns, alpha=-1)
        of_columns = torch.addmm(columns * slopes.sum(0).unsqueeze(1), slopes.T, anchors, alpha=-1)
        return of_anchors, of_columns, None, None, None, None


def _mean_and_slopes(violations: Tensor, slopes: Tensor, same: Tensor, weight: float) -> Tensor:
    """One part's loss; scales its slopes, which come in as -1, 0 and 1, to be those of the loss."""
    positive = slopes.relu()  # those of positive pairs are never below zero
    pos_count = positive.sum()
    count = slopes.abs().sum()
    total, pos_total = violations.sum(), (violations * same).sum()
    pos_weight = weight / pos_count.clamp_min(1)
    neg_weight = weight / (count - pos_count).clamp_min(1)
    slopes.mul_(neg_weight).add_(positive * (pos_weight - neg_weight))
    return pos_total * pos_weight + (total - pos_total) * neg_weight


def _distances(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """(n, m) distances, and 1 where they are large enough to be told from 0, else 0."""
    left_squares, right_squares = torch.linalg.vecdot(left, left), torch.linalg.vecdot(right, right)
    squared = torch.addmm(right_squares, left, right.T, alpha=-2).add_(left_squares.unsqueeze(1))
    unsure = 4 * torch.finfo(left.dtype).eps * (left_squares.amax() + right_squares.amax())
    apart = (squared - unsure).relu_().sign_()
    return squared.relu_().sqrt_(), apart
