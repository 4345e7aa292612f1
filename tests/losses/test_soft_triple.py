"""SoftTriple with its gradient written out: PML's, in value and gradient, and its regulariser."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pytorch_metric_learning import losses as pml
from pytorch_metric_learning.distances import CosineSimilarity
from pytorch_metric_learning.reducers import SumReducer
from pytorch_metric_learning.regularizers import SparseCentersRegularizer
from torch import Tensor

from harness.losses._tools.cosine import cosine_loss
from harness.losses._tools.soft_triple import (
    SoftTripleLoss,
    WithinClassCenters,
    soft_triple_formula,
)
from harness.losses.baselines import build_softtriple

CLASSES, CENTERS, DIM = 5, 3, 6
LABELS = torch.tensor([0, 0, 4, 2])


def random(count: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, DIM, generator=generator).double().requires_grad_()


def both_losses(
    regularized: bool = False, **kwargs: Any
) -> tuple[pml.SoftTripleLoss, SoftTripleLoss]:
    settings = {"centers_per_class": CENTERS, "la": 12.0, "gamma": 0.3, "margin": 0.2, **kwargs}
    theirs, ours = (
        loss(
            CLASSES,
            DIM,
            weight_regularizer=regularizer(CLASSES, CENTERS) if regularized else None,
            weight_reg_weight=0.7,
            **settings,
        ).double()
        for loss, regularizer in (
            (pml.SoftTripleLoss, SparseCentersRegularizer),
            (SoftTripleLoss, WithinClassCenters),
        )
    )
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def value_and_gradients(loss: pml.SoftTripleLoss, *more: Any) -> tuple[Tensor, ...]:
    embeddings = random(len(LABELS), 1)
    value = loss(embeddings, LABELS, *more)
    return value.detach(), *torch.autograd.grad(value, (embeddings, loss.fc))


@pytest.mark.parametrize("regularized", [True, False])
def test_value_and_gradients_are_those_of_pml(regularized: bool) -> None:
    theirs, ours = both_losses(regularized)
    torch.testing.assert_close(value_and_gradients(ours), value_and_gradients(theirs))


def test_the_gradient_is_that_of_finite_differences() -> None:
    formula = soft_triple_formula(LABELS, CENTERS, scale=3.0, sharpness=2.0, margin=0.2)
    assert torch.autograd.gradcheck(
        lambda batch, centers: cosine_loss(batch, centers, formula),
        (random(len(LABELS), 1), random(CLASSES * CENTERS, 2)),
    )


@pytest.mark.parametrize(
    "kwargs",
    [{"distance": CosineSimilarity(power=2)}, {"reducer": SumReducer()}, {"collect_stats": True}],
    ids=lambda kwargs: next(iter(kwargs)),
)
def test_with_anything_else_it_is_pmls_own(kwargs: dict[str, Any]) -> None:
    theirs, ours = both_losses(**kwargs)
    torch.testing.assert_close(value_and_gradients(ours), value_and_gradients(theirs))


def test_a_miner_weighs_samples_as_in_pml() -> None:
    triplets = (torch.tensor([0, 0]), torch.tensor([1, 1]), torch.tensor([2, 3]))
    theirs, ours = both_losses()
    torch.testing.assert_close(
        value_and_gradients(ours, triplets), value_and_gradients(theirs, triplets)
    )


@pytest.mark.parametrize("alike", [0, 1], ids=["all apart", "two alike"])
def test_the_regulariser_is_pmls(alike: int) -> None:
    centers = random(CLASSES * CENTERS, 2)
    with torch.no_grad():
        centers[:alike] = 2 * centers[CENTERS - 1]

    def value_and_gradient(regularizer: SparseCentersRegularizer) -> tuple[Tensor, ...]:
        value = regularizer(centers)
        return value.detach(), *torch.autograd.grad(value, centers)

    expected = value_and_gradient(SparseCentersRegularizer(CLASSES, CENTERS))
    torch.testing.assert_close(value_and_gradient(WithinClassCenters(CLASSES, CENTERS)), expected)


def test_the_regularisers_statistics_are_pmls() -> None:
    centers = random(CLASSES * CENTERS, 2)
    theirs = SparseCentersRegularizer(CLASSES, CENTERS, collect_stats=True)
    ours = WithinClassCenters(CLASSES, CENTERS, collect_stats=True)
    assert ours(centers) == theirs(centers)
    for name in ("same_class_center_sim", "diff_class_center_sim"):
        assert getattr(ours, name) == getattr(theirs, name)


def test_the_classes_of_sop_fit_into_memory() -> None:
    loss = build_softtriple(11_318, 4, la=20, gamma=0.1, margin=0.01, reg_weight=0.2)
    loss(torch.randn(2, 4), torch.tensor([0, 11_317])).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in loss.parameters())
