"""Vectors divided by their norms, with the gradient written out: a third of the operations."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from losses._tools.first_gradient import first_gradient_only

# As in torch.nn.functional.normalize.
SMALLEST_NORM = 1e-12


def unit_normalize(vectors: Tensor, dim: int = -1) -> Tensor:
    """What torch.nn.functional.normalize gives along `dim`."""
    return divide_by_norm(vectors, SMALLEST_NORM, dim)


def divide_by_norm(vectors: Tensor, least: float, dim: int = -1) -> Tensor:
    """v divided by its Euclidean norm along `dim`, or by `least` if that is more."""
    return _DivideByNorm.apply(vectors, least, dim)


def to_unit(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of norm 1, and (n, 1) what each was multiplied with."""
    norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    inverse = norms.clamp_min_(SMALLEST_NORM).reciprocal_()
    return rows * inverse, inverse


def through_unit_(gradient: Tensor, unit: Tensor, inverse: Tensor) -> Tensor:
    """In place, the gradient by rows from that by the unit rows made of them."""
    radial = torch.linalg.vecdot(gradient, unit).unsqueeze(1)
    return gradient.addcmul_(unit, radial, value=-1).mul_(inverse)


class _DivideByNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, vectors: Tensor, least: float, dim: int) -> Tensor:
        norms = torch.linalg.vector_norm(vectors, dim=dim, keepdim=True)
        scale = norms.clamp_min(least).reciprocal_()
        divided = vectors * scale
        ctx.save_for_backward(divided, scale)
        ctx.least, ctx.dim = least, dim
        return divided

    @staticmethod
    @first_gradient_only
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        divided, scale = ctx.saved_tensors
        # On the sphere only what is perpendicular to the vector moves it.
        radial = torch.linalg.vecdot(gradient, divided, dim=ctx.dim).unsqueeze(ctx.dim)
        radial *= scale < 1 / ctx.least
        return torch.addcmul(gradient, divided, radial, value=-1).mul_(scale), None, None
