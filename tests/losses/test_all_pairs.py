"""The contrastive loss over all pairs: PML's, in value and gradient, whatever it is used with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from pytorch_metric_learning.distances import CosineSimilarity, LpDistance, SNRDistance
from pytorch_metric_learning.losses import ContrastiveLoss
from pytorch_metric_learning.reducers import MeanReducer
from pytorch_metric_learning.regularizers import LpRegularizer
from torch import Tensor

from harness.losses._tools.all_pairs import AllPairsContrastiveLoss
from harness.losses._tools.ball import BallLpDistance

MARGINS = (0.4, 0.9)

Loss = Callable[[ContrastiveLoss, Tensor, Tensor], Tensor]


def vectors(count: int, seed: int) -> Tensor:
    return torch.randn(count, 6, generator=torch.Generator().manual_seed(seed)).double() / 2


def case() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return vectors(12, 0), torch.arange(12) % 4, vectors(20, 1), torch.arange(20) % 5


def both_losses(**kwargs: Any) -> tuple[ContrastiveLoss, AllPairsContrastiveLoss]:
    return ContrastiveLoss(*MARGINS, **kwargs), AllPairsContrastiveLoss(*MARGINS, **kwargs)


def value_and_gradients(loss: Loss, function: ContrastiveLoss) -> tuple[Tensor, ...]:
    embeddings, _, references, _ = case()
    inputs = embeddings.requires_grad_(), references.requires_grad_()
    value = loss(function, *inputs)
    return value.detach(), *torch.autograd.grad(value, inputs, allow_unused=True)


def within_batch(function: ContrastiveLoss, embeddings: Tensor, references: Tensor) -> Tensor:
    return function(embeddings, case()[1])


def against_references(function: ContrastiveLoss, embeddings: Tensor, references: Tensor) -> Tensor:
    _, labels, _, reference_labels = case()
    if isinstance(function, AllPairsContrastiveLoss):
        return function.with_references(embeddings, labels, references, reference_labels)
    return function(embeddings, labels, None, references, reference_labels)


@pytest.mark.parametrize("loss", [within_batch, against_references])
@pytest.mark.parametrize(
    "distance", [LpDistance(), LpDistance(normalize_embeddings=False), BallLpDistance()]
)
def test_value_and_gradients_are_those_of_pml(loss: Loss, distance: LpDistance) -> None:
    pml, ours = both_losses(distance=distance)
    assert ours.as_it_comes()
    expected = value_and_gradients(loss, pml)
    torch.testing.assert_close(value_and_gradients(loss, ours), expected)


@pytest.mark.parametrize("weight", [0.0, 0.1, 3.0])
def test_both_terms_in_one_go_are_their_sum(weight: float) -> None:
    pml, ours = both_losses(distance=LpDistance(normalize_embeddings=False))

    def apart(function: ContrastiveLoss, *inputs: Tensor) -> Tensor:
        return against_references(function, *inputs) + weight * within_batch(function, *inputs)

    def in_one_go(function: Any, embeddings: Tensor, references: Tensor) -> Tensor:
        _, labels, _, reference_labels = case()
        return function.with_references(
            embeddings, labels, references, reference_labels, (1, weight)
        )

    torch.testing.assert_close(
        value_and_gradients(in_one_go, ours), value_and_gradients(apart, pml)
    )


@pytest.mark.parametrize("margins", [(5.0, 0.9), (0.4, -1.0), (5.0, -1.0)])
def test_kinds_without_a_violation_add_nothing(margins: tuple[float, float]) -> None:
    for loss in (within_batch, against_references):
        pml, ours = ContrastiveLoss(*margins), AllPairsContrastiveLoss(*margins)
        value, *gradients = value_and_gradients(loss, ours)
        torch.testing.assert_close(value, value_and_gradients(loss, pml)[0])
        assert all(gradient is None or gradient.isfinite().all() for gradient in gradients)


def test_vectors_that_coincide_have_no_direction_and_spoil_nothing() -> None:
    embeddings = vectors(4, 0).float()
    references = torch.cat([embeddings[:2], embeddings[:1] + 1e-6, vectors(3, 1).float()])
    labels, reference_labels = torch.tensor([0, 1, 0, 1]), torch.tensor([0, 0, 0, 1, 0, 1])
    for distance in (LpDistance(normalize_embeddings=False), BallLpDistance()):
        anchors = embeddings.clone().requires_grad_()
        loss = AllPairsContrastiveLoss(0.0, 0.9, distance=distance)
        loss.with_references(anchors, labels, references, reference_labels).backward()
        assert anchors.grad is not None
        assert anchors.grad.abs().max() < 3


@pytest.mark.parametrize(
    "kwargs",
    [
        {"distance": CosineSimilarity()},
        {"distance": SNRDistance()},
        {"distance": LpDistance(p=1)},
        {"distance": LpDistance(power=2)},
        {"reducer": MeanReducer()},
        {"embedding_regularizer": LpRegularizer()},
        {"collect_stats": True},
    ],
    ids=lambda kwargs: next(iter(kwargs)),
)
def test_with_anything_else_it_is_pmls_own(kwargs: dict[str, Any]) -> None:
    pml, ours = both_losses(**kwargs)
    assert not ours.as_it_comes()
    torch.testing.assert_close(
        value_and_gradients(within_batch, ours), value_and_gradients(within_batch, pml)
    )


def test_a_miners_pairs_are_the_only_ones() -> None:
    embeddings, labels, _, _ = case()
    pairs = (torch.tensor([0, 1]), torch.tensor([4, 5]), torch.tensor([0, 2]), torch.tensor([1, 3]))
    pml, ours = both_losses()
    assert ours(embeddings, labels, pairs) == pml(embeddings, labels, pairs)


def test_every_tensor_is_made_on_the_device_of_the_inputs() -> None:
    embeddings, labels, references, reference_labels = case()
    _, ours = both_losses()
    expected = ours.with_references(embeddings, labels, references, reference_labels)
    with torch.device("meta"):  # where a tensor made without device= cannot mix with real ones
        found = ours.with_references(embeddings, labels, references, reference_labels)
        assert found == expected
