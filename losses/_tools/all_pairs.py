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
from pytorch_metric_learning.utils import common_functions as c_f
from torch import Tensor

from losses._tools.as_it_comes import as_it_comes
from losses._tools.first_gradient import first_gradient_only
from losses._tools.normalize import unit_normalize


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
            return self.with_references(embeddings, labels, 0, (0, 1))
        ref_emb, ref_labels = c_f.set_ref_emb(embeddings, labels, ref_emb, ref_labels)
        return self.against(embeddings, labels, ref_emb, ref_labels)

    def against(
        self,
        embeddings: Tensor,
        labels: Tensor,
        ref_emb: Tensor,
        ref_labels: Tensor,
        left_out: Tensor | None = None,
    ) -> Tensor:
        """The loss against references, for each anchor without the one in `left_out`."""
        vectors, all_labels = torch.cat([ref_emb, embeddings]), torch.cat([ref_labels, labels])
        return self.with_references(vectors, all_labels, len(ref_emb), (1, 0), left_out)

    def with_references(
        self,
        vectors: Tensor,
        labels: Tensor,
        num_references: int,
        weights: tuple[float, float],
        left_out: Tensor | None = None,
    ) -> Tensor:
        """The weighted losses against references and within the batch, added up in one go.

        Args:
            vectors: the references, then the batch; labels likewise.
            left_out: (batch,) a reference that each vector of the batch is not compared with.
        """
        margins = (self.pos_margin, self.neg_margin)
        vectors = self._normalized(vectors)
        return _Contrastive.apply(vectors, labels, num_references, margins, weights, left_out)

    def _normalized(self, vectors: Tensor) -> Tensor:
        distance = self.distance
        as_torch_does = type(distance).normalize is BaseDistance.normalize
        if distance.normalize_embeddings and as_torch_does:
            return unit_normalize(vectors)
        return distance.maybe_normalize(vectors)

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


class _Contrastive(torch.autograd.Function):
    """The weighted losses of a batch, the last rows, against references, the first, and in itself.

    Each is the mean violation of positive pairs plus that of negative pairs, zeros not counted.
    Masks are of floats throughout: arithmetic on them is several times as fast as on booleans.
    """

    @staticmethod
    def forward(
        ctx: Any,
        vectors: Tensor,
        labels: Tensor,
        num_references: int,
        margins: tuple[float, float],
        weights: tuple[float, float],
        left_out: Tensor | None,
    ) -> Tensor:
        pos_margin, neg_margin = margins
        same = (labels[num_references:].unsqueeze(1) == labels).to(vectors.dtype)
        sign = same * 2 - 1
        roots, apart = _distances(vectors, num_references)
        offsets = neg_margin - same * (pos_margin + neg_margin)
        violations = torch.addcmul(offsets, sign, roots * apart).relu_()
        violations[:, num_references:].fill_diagonal_(0)
        if left_out is not None:
            violations.scatter_(1, left_out.unsqueeze(1), 0)
        violated = violations.sign()
        pair_weights = _pair_weights(violated, same, num_references, weights)
        loss = torch.vdot(violations.flatten(), pair_weights.flatten())
        # The gradient by each distance, divided by the distance: what backward multiplies
        # differences of vectors with. Where two vectors coincide there is no direction.
        slopes = pair_weights.mul_(violated).mul_(sign).mul_(apart).div_(roots)
        ctx.save_for_backward(vectors, slopes)
        ctx.num_references = num_references
        return loss

    @staticmethod
    @first_gradient_only
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        vectors, slopes = ctx.saved_tensors
        slopes = slopes * gradient
        batch = vectors[ctx.num_references :]
        result = (vectors * slopes.sum(0).unsqueeze(1)).addmm_(slopes.T, batch, alpha=-1)
        of_batch = result[ctx.num_references :]
        of_batch.addmm_(slopes, vectors, alpha=-1).addcmul_(batch, slopes.sum(1, keepdim=True))
        return result, None, None, None, None, None


def _pair_weights(
    violated: Tensor, same: Tensor, num_references: int, weights: tuple[float, float]
) -> Tensor:
    """What each pair's violation counts for: its part's weight by the violations of its kind."""
    positive = violated * same
    counts = torch.stack([positive, violated - positive]).sum(dim=1)
    sizes = (num_references, same.shape[1] - num_references)
    parts = []
    for count, alike, weight in zip(
        counts.split(sizes, 1), same.split(sizes, 1), weights, strict=True
    ):
        if alike.shape[1] > 0:
            of_positive, of_negative = (weight / count.sum(1).clamp_min_(1)).unbind()
            parts.append((alike * (of_positive - of_negative)).add_(of_negative))
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def _distances(vectors: Tensor, num_references: int) -> tuple[Tensor, Tensor]:
    """(batch, all) distances, and 1 where they are large enough to be told from 0, else 0."""
    squares = torch.linalg.vecdot(vectors, vectors)
    batch, batch_squares = vectors[num_references:], squares[num_references:]
    squared = torch.addmm(squares, batch, vectors.T, alpha=-2).add_(batch_squares.unsqueeze(1))
    precision = torch.finfo(vectors.dtype)
    unsure = squares.amax().mul_(8 * precision.eps).add_(precision.tiny)
    apart = (squared - unsure).sign_().relu_()
    return squared.clamp_min_(unsure).sqrt_(), apart
