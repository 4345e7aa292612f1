"""Embedding geometry on points whose distances can be read off."""

from __future__ import annotations

import pytest
import torch

from harness.metrics.geometry import class_distance, covering_radius


def test_covering_radius_by_hand() -> None:
    """Points 0, 1, 2, 10 on a line. First centre 2 (farthest 8); then 10 (radius 2), then 0
    (radius 1), then 1 (radius 0): mean of 8, 2, 1, 0."""
    line = torch.tensor([[0.0], [1.0], [2.0], [10.0]])
    assert covering_radius(line, torch.zeros(4)) == pytest.approx(11 / 4)


def test_covering_radius_is_the_mean_over_classes() -> None:
    points = torch.tensor([[0.0], [1.0], [2.0], [10.0], [5.0], [7.0]])
    labels = torch.tensor([0, 0, 0, 0, 1, 1])
    # The second class: radius 2 with one centre, 0 with two.
    assert covering_radius(points, labels) == pytest.approx((11 / 4 + 1) / 2)


def test_a_class_of_one_has_radius_zero() -> None:
    assert covering_radius(torch.tensor([[3.0, 4.0]]), torch.tensor([0])) == 0.0


def test_class_distance_leaves_out_pairs_within_a_class() -> None:
    points = torch.tensor([[0.0], [1.0], [5.0], [9.0]])
    labels = torch.tensor([0, 0, 1, 2])
    # Pairs 0-5, 1-5, 0-9, 1-9, 5-9.
    assert class_distance(points, labels) == pytest.approx((5 + 4 + 9 + 8 + 4) / 5)
