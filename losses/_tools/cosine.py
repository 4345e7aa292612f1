"""Cosine similarities of a batch to proxies, without a normalised copy of the proxies.

And losses of them whose gradient is written out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from pytorch_metric_learning.distances import CosineSimilarity
from pytorch_metric_learning.distances.base_distance import BaseDistance
from torch import Tensor

from harness.losses._tools.first_gradient import first_gradient_only
from harness.losses._tools.normalize import SMALLEST_NORM, divided, through_division_

# Cosines -> a loss, and the derivative of the loss by each of them.
Formula = Callable[[Tensor], tuple[Tensor, Tensor]]


class _Cosine(torch.autograd.Function):
    """Divides the products by the proxies' norms instead of the proxies themselves.

    Normalising a large table of proxies and differentiating through it moves it through memory
    a dozen times: 80 ms forward and backward become 57 with 11,318 proxies of
    512 numbers and a batch of 128 on two cores.
    """

    @staticmethod
    def forward(ctx: Any, embeddings: Tensor, proxies: Tensor) -> Tensor:
        parts = _cosines(embeddings, proxies)
        ctx.save_for_backward(proxies, *parts)
        return parts[-1]

    @staticmethod
    @first_gradient_only
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        with torch.autocast(grad.device.type, enabled=False):
            return _gradients(grad, ctx.needs_input_grad, *ctx.saved_tensors)


class _CosineLoss(torch.autograd.Function):
    """A loss of cosines, whose gradients are taken along with its value.

    On a head alone that is most of a step: torch would record, look up and call every operation
    of the formula a second time.
    """

    @staticmethod
    def forward(ctx: Any, embeddings: Tensor, proxies: Tensor, formula: Formula) -> Tensor:
        parts = _cosines(embeddings, proxies)
        loss, slopes = formula(parts[-1])
        ctx.save_for_backward(*_gradients(slopes, ctx.needs_input_grad, proxies, *parts))
        return loss

    @staticmethod
    @first_gradient_only
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return *(None if one is None else one * grad for one in ctx.saved_tensors), None


def _cosines(embeddings: Tensor, proxies: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Unit embeddings, 1 / norms of embeddings and proxies, and (batch, proxies) cosines."""
    unit, inverse = divided(embeddings)
    norms = torch.linalg.vector_norm(proxies, dim=-1).unsqueeze(-2)
    proxy_inverse = norms.clamp_min_(SMALLEST_NORM).reciprocal_()
    return unit, inverse, proxy_inverse, (unit @ proxies.mT).mul_(proxy_inverse)


def _gradients(
    slopes: Tensor,
    needed: tuple[bool, ...],
    proxies: Tensor,
    unit: Tensor,
    inverse: Tensor,
    proxy_inverse: Tensor,
    cosines: Tensor,
) -> tuple[Tensor | None, Tensor | None]:
    """By embeddings and proxies, from the derivative by each cosine."""
    scaled = slopes * proxy_inverse
    of_embeddings = of_proxies = None
    if needed[0]:
        of_embeddings = through_division_(scaled @ proxies, unit, inverse)
    if needed[1]:
        radial = (scaled * cosines).sum(dim=-2, keepdim=True).mul_(proxy_inverse)
        of_proxies = (scaled.mT @ unit).addcmul_(proxies, radial.mT, value=-1)
    return of_embeddings, of_proxies


def plain_cosine(distance: BaseDistance) -> bool:
    """Whether a distance is PML's cosine as it comes."""
    return type(distance) is CosineSimilarity and distance.power == 1 and not distance.collect_stats


def cosine_similarities(distance: BaseDistance, embeddings: Tensor, proxies: Tensor) -> Tensor:
    """(batch, proxies) what `distance(embeddings, proxies)` gives, for PML's cosine faster.

    A distance that keeps statistics, and one of another class, is called itself.
    """
    if plain_cosine(distance):
        distance.check_shapes(embeddings, proxies)
        return _Cosine.apply(embeddings, proxies)
    return distance(embeddings, proxies)


def cosine_loss(embeddings: Tensor, proxies: Tensor, formula: Formula) -> Tensor:
    """A loss of the (batch, proxies) cosines, at once with its gradients; it has no second ones.

    Groups of embeddings that have proxies of their own may stand in front of both.
    """
    return _CosineLoss.apply(embeddings, proxies, formula)
