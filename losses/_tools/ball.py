"""CCP's normaliser: vectors outside the unit ball are projected onto it, the rest kept."""

from __future__ import annotations

from typing import Any

import torch
from pytorch_metric_learning.distances import DotProductSimilarity, LpDistance
from torch import Tensor, nn


def ball_normalize(vectors: Tensor, dim: int = -1) -> Tensor:
    """v where its Euclidean norm along `dim` is at most 1, else v divided by that norm."""
    return _Ball.apply(vectors, dim)


class _Ball(torch.autograd.Function):
    """With its gradient written out, which takes a third of the operations."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor, dim: int) -> Tensor:
        norms = torch.linalg.vector_norm(vectors, dim=dim, keepdim=True)
        scale = norms.clamp_min(1).reciprocal_()
        projected = vectors * scale
        ctx.save_for_backward(projected, scale)
        ctx.dim = dim
        return projected

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        projected, scale = ctx.saved_tensors
        # On the sphere only what is perpendicular to the vector moves it.
        radial = torch.linalg.vecdot(gradient, projected, dim=ctx.dim).unsqueeze(ctx.dim)
        radial *= scale < 1
        return torch.addcmul(gradient, projected, radial, value=-1).mul_(scale), None


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
