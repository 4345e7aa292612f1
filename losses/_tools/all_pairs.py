"""PML's contrastive loss without its lists of pairs.

PML writes down every pair, picks its distance out of the matrix and drops what is zero; torch takes
the gradient of a distance matrix pair by pair. Against the hundreds of proxies of CCP that is two
thirds of a step when only a head trains.
"""

from __future__ import annotations

from typing import Any

import torch
from pytorch_metric_learning.distances import BaseDistance, LpDistance
from pytorch_metric_learning.losses import ContrastiveLoss
from pytorch_metric_learning.reducers import AvgNonZeroReducer
from torch import Tensor

from harness.losses._tools.ball import BallLpDistance
from harness.losses._tools.first_gradient import first_gradient_only
from harness.losses._tools.normalize import SMALLEST_NORM, divided, through_division_
from harness.losses._tools.short_form import ShortForm, as_it_comes


class AllPairsContrastiveLoss(ShortForm, ContrastiveLoss):
    """PML's ContrastiveLoss, several times as fast where it is used as it comes.

    That is on Euclidean distances of all pairs. With a miner, a reducer, a regulariser, another
    distance or statistics it is PML's own.
    """

    def has_short_form(
        self, embeddings: Tensor, indices_tuple: tuple[Tensor, ...] | None = None
    ) -> bool:
        return self.as_it_comes(indices_tuple)

    def short_form(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return self._loss(embeddings, None, labels, labels, (0, 1))

    def with_references(
        self,
        embeddings: Tensor,
        labels: Tensor,
        ref_emb: Tensor,
        ref_labels: Tensor,
        weights: tuple[float, float] = (1, 0),
        left_out: Tensor | None = None,
    ) -> Tensor:
        """The weighted losses against references and within the batch, added up in one go.

        Args:
            left_out: (batch,) a reference that each vector of the batch is not compared with.
        """
        all_labels = torch.cat([ref_labels, labels])
        return self._loss(embeddings, ref_emb, labels, all_labels, weights, left_out)

    def _loss(
        self,
        embeddings: Tensor,
        references: Tensor | None,
        labels: Tensor,
        all_labels: Tensor,
        weights: tuple[float, float],
        left_out: Tensor | None = None,
    ) -> Tensor:
        distance, least = self.distance, least_norm(self.distance)
        if distance.normalize_embeddings and least is None:  # in a way of its own
            embeddings = distance.normalize(embeddings)
            references = None if references is None else distance.normalize(references)
        same = labels.unsqueeze(1) == all_labels
        margins = (self.pos_margin, self.neg_margin)
        return _Contrastive.apply(embeddings, references, same, margins, weights, least, left_out)

    def as_it_comes(self, indices_tuple: tuple[Tensor, ...] | None = None) -> bool:
        """Whether all is as this class can do it faster."""
        distance = self.distance
        return (
            as_it_comes(self, AvgNonZeroReducer, indices_tuple)
            and isinstance(distance, LpDistance)
            and type(distance).compute_mat is LpDistance.compute_mat
            and (distance.p, distance.power) == (2, 1)
            and not distance.collect_stats
        )


def least_norm(distance: BaseDistance) -> float | None:
    """What a distance divides vectors by at least, which it divides by their norms; if it does."""
    if not distance.normalize_embeddings:
        return None
    known = {BaseDistance.normalize: SMALLEST_NORM, BallLpDistance.normalize: 1.0}
    return known.get(type(distance).normalize)


class _Contrastive(torch.autograd.Function):
    """The weighted losses of a batch against references and in itself.

    Each is the mean violation of positive pairs plus that of negative pairs, zeros not counted.
    Columns are the references, then the batch.
    """

    @staticmethod
    def forward(
        ctx: Any,
        batch: Tensor,
        references: Tensor | None,
        same: Tensor,
        margins: tuple[float, float],
        weights: tuple[float, float],
        least: float | None,
        left_out: Tensor | None,
    ) -> Tensor:
        pos_margin, neg_margin = margins
        num_references = 0 if references is None else len(references)
        vectors = batch if references is None else torch.cat([references, batch])
        vectors, inverse = (vectors, None) if least is None else divided(vectors, least)
        roots, apart = _distances(vectors, num_references)
        distances = roots * apart
        too_far, too_near = (distances - pos_margin).relu_(), distances.sub_(neg_margin)
        violations = torch.where(same, too_far, too_near.clamp_max_(0))
        violations[:, num_references:].fill_diagonal_(0)
        if left_out is not None:
            violations.scatter_(1, left_out.unsqueeze(1), 0)
        signs = violations.sign()
        slopes = _pair_weights(signs, same, num_references, weights).mul_(signs)
        loss = torch.vdot(violations.flatten(), slopes.flatten())
        # The gradient by each distance, divided by the distance: what backward multiplies
        # differences of vectors with. Where two vectors coincide there is no direction.
        slopes.mul_(apart).div_(roots)
        ctx.save_for_backward(vectors, inverse, slopes)
        ctx.num_references, ctx.least = num_references, least
        return loss

    @staticmethod
    @first_gradient_only
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        vectors, inverse, slopes = ctx.saved_tensors
        references, slopes = ctx.num_references, slopes * -gradient
        first = 0 if ctx.needs_input_grad[1] else references  # of the vectors with a gradient
        own, rows = slopes[:, first:], vectors[first:]
        result, lengths = own.T @ vectors[references:], own.sum(0).neg_()
        result[references - first :].addmm_(slopes, vectors)
        lengths[references - first :].sub_(slopes.sum(1))
        result.addcmul_(rows, lengths.unsqueeze(1))
        if inverse is not None:
            through_division_(result, rows, inverse[first:], ctx.least)
        by_references = None if first == references else result[:references]
        return result[references - first :], by_references, None, None, None, None, None


def _pair_weights(
    signs: Tensor, same: Tensor, num_references: int, weights: tuple[float, float]
) -> Tensor:
    """What each pair's violation counts for: its part's weight by the violations of its kind."""
    positive = signs.relu().sum(0)
    counts = torch.stack([positive, positive - signs.sum(0)])
    parts = zip(counts.tensor_split((num_references,), dim=1), weights, strict=True)
    each = [
        (weight / count.sum(1, keepdim=True).clamp_min_(1)).expand_as(count)
        for count, weight in parts
        if count.shape[1] > 0
    ]
    of_positive, of_negative = torch.cat(each, dim=1)
    return torch.where(same, of_positive, of_negative)


def _distances(vectors: Tensor, num_references: int) -> tuple[Tensor, Tensor]:
    """(batch, all) distances, and 1 where they are large enough to be told from 0, else 0."""
    squares = torch.linalg.vecdot(vectors, vectors)
    batch, batch_squares = vectors[num_references:], squares[num_references:]
    squared = torch.addmm(squares, batch, vectors.T, alpha=-2).add_(batch_squares.unsqueeze(1))
    precision = torch.finfo(vectors.dtype)
    unsure = squares.amax().mul_(8 * precision.eps).add_(precision.tiny)
    apart = (squared - unsure).sign_().relu_()
    return squared.clamp_min_(unsure).sqrt_(), apart
