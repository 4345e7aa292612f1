"""Greedy k-center against plain loops, brute force and worked examples."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from harness.losses._tools.k_center import farthest_points


def pool_of(*points: float) -> Tensor:
    return torch.tensor(points, dtype=torch.float32).view(1, -1, 1)


def radius(points: Tensor, centres: Tensor) -> float:
    return float(torch.cdist(points, centres).amin(dim=1).max())


def test_picks_are_the_farthest_points_first() -> None:
    pool, centres = pool_of(0, 1, 2, 9, 10), pool_of(0, 0)
    picks = farthest_points(pool, centres)
    assert picks.flatten().tolist() == [10, 2]
    assert radius(pool[0], torch.cat([centres[0], picks[0]])) == 1


def picks_by_loops(pool: Tensor, centres: Tensor) -> Tensor:
    result = []
    for points, chosen in zip(pool, centres, strict=True):
        centre_list = list(chosen)
        for _ in range(len(chosen)):
            nearest = [min(float(((x - c) ** 2).sum()) for c in centre_list) for x in points]
            centre_list.append(points[nearest.index(max(nearest))])
        result.append(torch.stack(centre_list[len(chosen) :]))
    return torch.stack(result)


def test_all_classes_are_selected_at_once_as_one_by_one() -> None:
    generator = torch.Generator().manual_seed(0)
    pool = torch.randn(20, 9, 5, generator=generator)
    centres = torch.randn(20, 4, 5, generator=generator)
    assert torch.equal(farthest_points(pool, centres), picks_by_loops(pool, centres))


def test_the_radius_is_at_most_twice_the_best_possible() -> None:
    generator = torch.Generator().manual_seed(0)
    pools = torch.randn(100, 7, 2, generator=generator)
    centres = torch.randn(100, 2, 2, generator=generator)
    for points, old, picks in zip(pools, centres, farthest_points(pools, centres), strict=True):
        best = min(
            radius(points, torch.cat([old, points[list(chosen)]]))
            for chosen in itertools.combinations(range(7), 2)
        )
        assert radius(points, torch.cat([old, picks])) <= 2 * best + 1e-6


def test_points_repeat_when_the_pool_has_too_few_different_ones() -> None:
    picks = farthest_points(pool_of(3, 3, 5), pool_of(0, 0, 0, 0))
    assert picks.flatten().tolist() == [5, 3, 3, 3]


def test_points_far_from_the_origin_are_told_apart() -> None:
    # Through inner products, float32 would lose differences of 1 beside squares of 1e8.
    picks = farthest_points(pool_of(10000, 10001, 10003), pool_of(10000, 10000))
    assert picks.flatten().tolist() == [10003, 10001]


def test_ties_go_to_the_first_point() -> None:
    assert farthest_points(pool_of(-1, 1, 0), pool_of(0)).item() == -1


def test_a_pool_in_half_precision_gives_points_of_the_pool() -> None:
    pool = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0)).bfloat16()
    picks = farthest_points(pool, torch.zeros(3, 2, 4))
    assert picks.dtype == torch.bfloat16
    assert all(
        (points == pick).all(dim=1).any()
        for points, chosen in zip(pool, picks, strict=True)
        for pick in chosen
    )


def test_pool_and_centres_that_do_not_match_are_refused() -> None:
    with pytest.raises(ValueError, match=r"got \(3, 5, 4\) and \(2, 2, 4\)"):
        farthest_points(torch.zeros(3, 5, 4), torch.zeros(2, 2, 4))
