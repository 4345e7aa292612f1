"""Miners that PML does not have as the papers define them, and a loss together with its miner."""

from __future__ import annotations

import torch
from pytorch_metric_learning.distances import LpDistance
from pytorch_metric_learning.miners import BaseMiner
from torch import Tensor, nn

# Nearer negatives are drawn as if they were this far: their weights would explode.
LEAST_DISTANCE = 0.5


class MinedLoss(nn.Module):
    """A loss over the pairs or triplets that a miner picks from the batch."""

    def __init__(self, loss: nn.Module, miner: nn.Module) -> None:
        super().__init__()
        self.loss = loss
        self.miner = miner

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return self.loss(embeddings, labels, self.miner(embeddings, labels))


def distance_log_weights(distances: Tensor, dim: int) -> Tensor:
    """-log of the density of distances between random points of the unit sphere, up to a constant.

    (Wu et al., ICCV 2017, section 4.) Antipodes would weigh infinitely much: they weigh what the
    nearest number to their distance does.
    """
    d = distances.clamp(min=LEAST_DISTANCE)
    rest = (1 - d.square() / 4).clamp(min=torch.finfo(d.dtype).eps)
    return (2 - dim) * d.log() - (dim - 3) / 2 * rest.log()


class TripletPerAnchorMiner(BaseMiner):
    """One triplet for each anchor that has a positive and a negative, drawn at random."""

    def __init__(self) -> None:
        super().__init__(distance=LpDistance())

    def mine(
        self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor, ref_labels: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        del ref_labels
        distances = self.distance(embeddings, ref_emb)
        same = labels.unsqueeze(1) == labels
        negative = ~same
        positive = same.fill_diagonal_(False)
        anchors = torch.where(positive.any(dim=1) & negative.any(dim=1))[0]
        if len(anchors) == 0:
            return anchors, anchors, anchors
        likely_positive, likely_negative = self.weigh(
            distances[anchors], positive[anchors], negative[anchors], embeddings.shape[1]
        )
        return (
            anchors,
            torch.multinomial(likely_positive, 1).squeeze(1),
            torch.multinomial(likely_negative, 1).squeeze(1),
        )

    def weigh(
        self, distances: Tensor, positive: Tensor, negative: Tensor, dim: int
    ) -> tuple[Tensor, Tensor]:
        """How likely each row's anchor draws each column as positive and as negative.

        Args:
            positive: (anchors, batch) whether it is one; negative likewise.
            dim: of the embeddings.
        """
        raise NotImplementedError


class DistanceWeightedMiner(TripletPerAnchorMiner):
    """Any positive; negatives as likely at one distance as at another.

    PML's leaves out negatives farther than 1.4, and compares weights across anchors, so that in
    many dimensions some anchors are left without any.
    """

    def weigh(
        self, distances: Tensor, positive: Tensor, negative: Tensor, dim: int
    ) -> tuple[Tensor, Tensor]:
        log_weights = distance_log_weights(distances, dim).masked_fill(~negative, -torch.inf)
        return positive.to(distances), log_weights.softmax(dim=1)


class RothSemihardMiner(TripletPerAnchorMiner):
    """Positives farther than the nearest negative, negatives nearer than the farthest positive.

    Where there is none, any. As in K. Roth's Deep-Metric-Learning-Baselines.
    """

    def weigh(
        self, distances: Tensor, positive: Tensor, negative: Tensor, dim: int
    ) -> tuple[Tensor, Tensor]:
        del dim
        nearest_negative = distances.masked_fill(~negative, torch.inf).amin(dim=1, keepdim=True)
        farthest_positive = distances.masked_fill(~positive, -torch.inf).amax(dim=1, keepdim=True)
        hard_positive = positive & (distances > nearest_negative)
        hard_negative = negative & (distances < farthest_positive)
        return (
            torch.where(hard_positive.any(dim=1, keepdim=True), hard_positive, positive).float(),
            torch.where(hard_negative.any(dim=1, keepdim=True), hard_negative, negative).float(),
        )
