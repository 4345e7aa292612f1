"""CCP's normaliser: vectors outside the unit ball are projected onto it, the rest kept."""

from __future__ import annotations

from pytorch_metric_learning.distances import BaseDistance, DotProductSimilarity, LpDistance
from torch import Tensor, nn

from harness.losses._tools.normalize import divide_by_norm


def ball_normalize(vectors: Tensor, dim: int = -1) -> Tensor:
    """v where its Euclidean norm along `dim` is at most 1, else v divided by that norm."""
    return divide_by_norm(vectors, 1.0, dim)


class BallNormalizer(nn.Module):
    """`ball_normalize` along the last dimension, as a layer."""

    def forward(self, vectors: Tensor) -> Tensor:
        return ball_normalize(vectors)


class BallLpDistance(LpDistance):
    """Distance of ball-normalised vectors; without arguments unsquared Euclidean."""

    def normalize(self, embeddings: Tensor, dim: int = 1) -> Tensor:
        return ball_normalize(embeddings, dim=dim)


class BallDotProductSimilarity(DotProductSimilarity):
    """Dot product of ball-normalised vectors: a cosine only where both lie outside the ball."""

    def normalize(self, embeddings: Tensor, dim: int = 1) -> Tensor:
        return ball_normalize(embeddings, dim=dim)


def ball_normalizes(distance: BaseDistance) -> bool:
    """Whether a distance does so itself with what it is given."""
    kinds = (BallLpDistance, BallDotProductSimilarity)
    return distance.normalize_embeddings and isinstance(distance, kinds)
