"""Proxy Anchor with its gradient written out: PML's, in value and gradient."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pytorch_metric_learning import losses as pml
from pytorch_metric_learning.distances import CosineSimilarity, LpDistance
from pytorch_metric_learning.reducers import MeanReducer
from pytorch_metric_learning.regularizers import LpRegularizer
from torch import Tensor

from harness.losses._tools.checks import values_are_checked
from harness.losses._tools.cosine import cosine_loss
from harness.losses._tools.proxy_anchor import ProxyAnchorLoss, anchor_formula

CLASSES, DIM = 9, 6
# A class with several samples, one with one, and some with none.
LABELS = torch.tensor([0, 0, 0, 4, 7, 7, 2])


def embeddings(dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(len(LABELS), DIM, generator=generator).to(dtype).requires_grad_()


def both_losses(**kwargs: Any) -> tuple[pml.ProxyAnchorLoss, ProxyAnchorLoss]:
    theirs = pml.ProxyAnchorLoss(CLASSES, DIM, **kwargs)
    ours = ProxyAnchorLoss(CLASSES, DIM, **kwargs)
    generator = torch.Generator().manual_seed(2)
    proxies = torch.randn(CLASSES, DIM, generator=generator)
    for loss in (theirs, ours):
        loss.proxies.data.copy_(proxies)
        loss.to(torch.float64)
    return theirs, ours


def value_and_gradients(loss: Any, labels: Tensor = LABELS, *more: Any) -> tuple[Tensor, ...]:
    inputs = (embeddings(loss.proxies.dtype), loss.proxies)
    value = loss(inputs[0][: len(labels)], labels, *more)
    return value.detach(), *torch.autograd.grad(value, inputs)


@pytest.mark.parametrize(("alpha", "margin"), [(32.0, 0.1), (128.0, 1.0), (1.0, -0.2)])
@pytest.mark.parametrize(
    "labels", [LABELS, LABELS[:6], LABELS[:1], LABELS[:3]], ids=["four", "three", "one", "alike"]
)
def test_value_and_gradients_are_those_of_pml(alpha: float, margin: float, labels: Tensor) -> None:
    theirs, ours = both_losses(alpha=alpha, margin=margin)
    assert ours.has_short_form(embeddings())
    expected = value_and_gradients(theirs, labels)
    torch.testing.assert_close(value_and_gradients(ours, labels), expected)
    for loss in (theirs, ours):
        loss.to(torch.float32)
    close = value_and_gradients(ours, labels), value_and_gradients(theirs, labels)
    torch.testing.assert_close(*close, rtol=1e-5, atol=1e-5)


def test_the_gradient_is_that_of_finite_differences() -> None:
    _, ours = both_losses()
    formula = anchor_formula(LABELS, scale=4.0, margin=0.1)
    proxies = ours.proxies.detach().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda *both: cosine_loss(*both, formula), (embeddings(), proxies)
    )


@pytest.mark.parametrize(
    "kwargs",
    [
        {"distance": LpDistance()},
        {"distance": CosineSimilarity(power=2)},
        {"reducer": MeanReducer()},
        {"embedding_regularizer": LpRegularizer()},
        {"weight_regularizer": LpRegularizer()},
        {"collect_stats": True},
    ],
    ids=lambda kwargs: next(iter(kwargs)),
)
def test_with_anything_else_it_is_pmls_own(kwargs: dict[str, Any]) -> None:
    theirs, ours = both_losses(**kwargs)
    assert not ours.has_short_form(embeddings())
    torch.testing.assert_close(value_and_gradients(ours), value_and_gradients(theirs))


def test_a_miner_weighs_as_in_pml() -> None:
    triplets = (torch.tensor([0, 0]), torch.tensor([1, 2]), torch.tensor([3, 4]))
    theirs, ours = both_losses()
    torch.testing.assert_close(
        value_and_gradients(ours, LABELS, triplets), value_and_gradients(theirs, LABELS, triplets)
    )


def test_labels_out_of_range_are_refused_unless_they_were_checked_before() -> None:
    _, ours = both_losses()
    with pytest.raises(ValueError, match=r"labels must lie in 0..8, got 0..9"):
        ours(embeddings(), LABELS + torch.tensor([0, 0, 0, 0, 2, 2, 0]))
    with values_are_checked():
        assert ours(embeddings(), LABELS).isfinite()
        assert ours(torch.full_like(embeddings(), torch.nan), LABELS).isnan()


def test_it_has_no_second_gradient_and_says_so() -> None:
    _, ours = both_losses()
    inputs = embeddings()
    with pytest.raises(RuntimeError, match="cannot be differentiated again"):
        torch.autograd.grad(ours(inputs, LABELS), inputs, create_graph=True)
