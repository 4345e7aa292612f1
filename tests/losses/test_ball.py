"""CCP's ball normaliser and the distances built on it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from harness.losses._tools.ball import (
    BallDotProductSimilarity,
    BallLpDistance,
    BallNormalizer,
    ball_normalize,
)


def vectors(seed: int, count: int = 12, dim: int = 3) -> Tensor:
    """Some inside the unit ball, some outside."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, dim, dtype=torch.float64, generator=generator)


def test_a_vector_outside_the_ball_is_projected_and_one_inside_is_kept() -> None:
    projected = ball_normalize(torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]]))
    torch.testing.assert_close(projected, torch.tensor([[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]]))


@given(st.integers(0, 2**31))
@settings(max_examples=50, deadline=None)
def test_the_projection_is_idempotent_and_1_lipschitz(seed: int) -> None:
    left, right = 2 * vectors(seed), 2 * vectors(seed + 1)
    projected_left, projected_right = ball_normalize(left), ball_normalize(right)
    torch.testing.assert_close(ball_normalize(projected_left), projected_left)
    before = (left - right).norm(dim=1)
    assert ((projected_left - projected_right).norm(dim=1) <= before + 1e-12).all()


def test_the_gradient_outside_the_ball_is_tangential() -> None:
    outside = torch.tensor([[3.0, 4.0]], requires_grad=True)
    ball_normalize(outside).backward(torch.tensor([[1.0, 2.0]]))
    torch.testing.assert_close(outside.grad, torch.tensor([[-0.064, 0.048]]))


def test_the_gradient_inside_the_ball_is_untouched_even_at_zero() -> None:
    inside = torch.tensor([[0.3, 0.4], [0.0, 0.0]], requires_grad=True)
    upstream = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    ball_normalize(inside).backward(upstream)
    torch.testing.assert_close(inside.grad, upstream)


def test_a_second_derivative_is_refused_rather_than_wrong() -> None:
    outside = torch.tensor([[3.0, 4.0]], requires_grad=True)
    with pytest.raises(RuntimeError, match="cannot be differentiated again"):
        torch.autograd.grad(ball_normalize(outside)[0, 0] ** 2, outside, create_graph=True)


def test_the_layer_normalises_the_last_dimension() -> None:
    inputs = torch.full((2, 3, 4), 2.0)
    torch.testing.assert_close(BallNormalizer()(inputs), torch.full((2, 3, 4), 0.5))


def test_the_distance_is_euclidean_between_projected_vectors() -> None:
    left, right = vectors(0), vectors(1, count=7)
    expected = torch.tensor(
        [[float((ball_normalize(u) - ball_normalize(v)).norm()) for v in right] for u in left],
        dtype=torch.float64,
    )
    torch.testing.assert_close(BallLpDistance()(left, right), expected)


def test_the_similarity_is_a_dot_product_that_sees_norms_below_one() -> None:
    similarity = BallDotProductSimilarity()
    inside, outside = torch.tensor([[0.5, 0.0]]), torch.tensor([[2.0, 0.0]])
    assert similarity.is_inverted
    assert similarity(inside, outside).item() == pytest.approx(0.5)
    assert similarity(outside, outside).item() == pytest.approx(1.0)


@pytest.mark.parametrize("distance", [BallLpDistance(), BallDotProductSimilarity()])
def test_gradients_of_the_distances_are_right(distance: torch.nn.Module) -> None:
    left, right = vectors(2, count=4), vectors(3, count=5)
    assert torch.autograd.gradcheck(distance, (left.requires_grad_(), right.requires_grad_()))
