"""Vectors divided by their norms, with the gradient written out: a third of the operations."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from harness.losses._tools.first_gradient import first_gradient_only

# As in torch.nn.functional.normalize.
SMALLEST_NORM = 1e-12


def divide_by_norm(vectors: Tensor, least: float, dim: int = -1) -> Tensor:
    """v divided by its Euclidean norm along `dim`, or by `least` if that is more."""
    return _DivideByNorm.apply(vectors, least, dim)


# The same without autograd, for losses whose own gradient is written out.


def divided(vectors: Tensor, least: float = SMALLEST_NORM, dim: int = -1) -> tuple[Tensor, Tensor]:
    """Divided vectors, and what each was multiplied with."""
    norms = torch.linalg.vector_norm(vectors, dim=dim, keepdim=True)
    inverse = norms.clamp_min_(least).reciprocal_()
    return vectors * inverse, inverse


def through_division_(
    gradient: Tensor, short: Tensor, inverse: Tensor, least: float = SMALLEST_NORM, dim: int = -1
) -> Tensor:
    """In place, the gradient by vectors from that by the divided ones, `short`."""
    # On the sphere only what is perpendicular to the vector moves it.
    radial = torch.linalg.vecdot(gradient, short, dim=dim).unsqueeze(dim)
    radial *= inverse < 1 / least
    return gradient.addcmul_(short, radial, value=-1).mul_(inverse)


class _DivideByNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, vectors: Tensor, least: float, dim: int) -> Tensor:
        short, inverse = divided(vectors, least, dim)
        ctx.save_for_backward(short, inverse)
        ctx.rule = least, dim
        return short

    @staticmethod
    @first_gradient_only
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return through_division_(gradient.clone(), *ctx.saved_tensors, *ctx.rule), None, None
