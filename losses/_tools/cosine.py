"""Cosine similarities of a batch to proxies, without a normalised copy of the proxies."""

from __future__ import annotations

from typing import Any

import torch
from pytorch_metric_learning.distances import CosineSimilarity
from pytorch_metric_learning.distances.base_distance import BaseDistance
from torch import Tensor

# As in torch.nn.functional.normalize.
SMALLEST_NORM = 1e-12


class _Cosine(torch.autograd.Function):
    """Divides the products by the proxies' norms instead of the proxies themselves.

    Normalising a large table of proxies and differentiating through it moves it through memory
    a dozen times: 80 ms forward and backward become 57 with 11,318 proxies of
    512 numbers and a batch of 128 on two cores.
    """

    @staticmethod
    def forward(ctx: Any, embeddings: Tensor, proxies: Tensor) -> Tensor:
        inverse = _inverse_norms(embeddings).unsqueeze(1)
        proxy_inverse = _inverse_norms(proxies)
        unit = embeddings * inverse
        cosines = (unit @ proxies.t()).mul_(proxy_inverse)
        ctx.save_for_backward(unit, inverse, proxies, proxy_inverse, cosines)
        return cosines

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        unit, inverse, proxies, proxy_inverse, cosines = ctx.saved_tensors
        scaled = grad * proxy_inverse
        grad_embeddings = grad_proxies = None
        with torch.autocast(grad.device.type, enabled=False):
            if ctx.needs_input_grad[0]:
                grad_unit = scaled @ proxies
                radial = (grad_unit * unit).sum(dim=1, keepdim=True)
                grad_embeddings = grad_unit.addcmul_(unit, radial, value=-1).mul_(inverse)
            if ctx.needs_input_grad[1]:
                radial = torch.einsum("bp,bp->p", scaled, cosines) * proxy_inverse
                grad_proxies = scaled.t() @ unit
                grad_proxies.addcmul_(proxies, radial.unsqueeze(1), value=-1)
        return grad_embeddings, grad_proxies


def _inverse_norms(rows: Tensor) -> Tensor:
    return torch.linalg.vector_norm(rows, dim=1).clamp_min_(SMALLEST_NORM).reciprocal_()


def cosine_similarities(distance: BaseDistance, embeddings: Tensor, proxies: Tensor) -> Tensor:
    """(batch, proxies) what `distance(embeddings, proxies)` gives, for PML's cosine faster.

    A distance that keeps statistics, and one of another class, is called itself.
    """
    if type(distance) is CosineSimilarity and distance.power == 1 and not distance.collect_stats:
        distance.check_shapes(embeddings, proxies)
        return _Cosine.apply(embeddings, proxies)
    return distance(embeddings, proxies)
