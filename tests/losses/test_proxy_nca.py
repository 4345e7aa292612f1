"""ProxyNCA with its gradient written out: PML's, where that does not underflow."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pytorch_metric_learning import losses as pml
from pytorch_metric_learning.distances import CosineSimilarity, LpDistance
from pytorch_metric_learning.reducers import SumReducer
from torch import Tensor

from harness.losses._tools.proxy_nca import ProxyNCALoss

CLASSES, DIM = 5, 6
LABELS = torch.tensor([0, 0, 4, 2])


def both_losses(**kwargs: Any) -> tuple[pml.ProxyNCALoss, ProxyNCALoss]:
    losses = (pml.ProxyNCALoss, ProxyNCALoss)
    theirs, ours = (loss(CLASSES, DIM, **kwargs).double() for loss in losses)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def value_and_gradients(loss: pml.ProxyNCALoss, *more: Any) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(1)
    embeddings = torch.randn(len(LABELS), DIM, generator=generator).to(loss.proxies)
    # One lies as far from its proxy as can be.
    embeddings[0] = -loss.proxies[0].detach()
    embeddings.requires_grad_()
    value = loss(embeddings, LABELS, *more)
    return value.detach(), *torch.autograd.grad(value, (embeddings, loss.proxies))


@pytest.mark.parametrize("scale", [0.01, 10.0, 100.0])
def test_value_and_gradients_are_those_of_pml(scale: float) -> None:
    theirs, ours = both_losses(softmax_scale=scale)
    torch.testing.assert_close(value_and_gradients(ours), value_and_gradients(theirs))


def test_in_single_precision_it_is_what_pml_gives_in_double() -> None:
    theirs, ours = both_losses(softmax_scale=100.0)
    expected = value_and_gradients(theirs)
    found = value_and_gradients(ours.float())
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "kwargs",
    [
        *({"distance": distance} for distance in (CosineSimilarity(), LpDistance(power=1))),
        {"distance": LpDistance(power=2, normalize_embeddings=False)},
        {"reducer": SumReducer()},
        {"collect_stats": True},
    ],
    ids=lambda kwargs: next(iter(kwargs)),
)
def test_with_anything_else_it_is_pmls_own(kwargs: dict[str, Any]) -> None:
    theirs, ours = both_losses(softmax_scale=3, **kwargs)
    torch.testing.assert_close(value_and_gradients(ours), value_and_gradients(theirs))


def test_a_miner_weighs_samples_as_in_pml() -> None:
    triplets = (torch.tensor([0, 0]), torch.tensor([1, 1]), torch.tensor([2, 3]))
    theirs, ours = both_losses(softmax_scale=3)
    torch.testing.assert_close(
        value_and_gradients(ours, triplets), value_and_gradients(theirs, triplets)
    )
