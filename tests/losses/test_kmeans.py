"""Spherical k-means: what it finds, where it stops, and clusters that would be empty."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from harness.losses._tools.kmeans import nearest_centroids, seed_centroids, spherical_kmeans


def directions(*degrees: float) -> Tensor:
    radians = torch.tensor(degrees, dtype=torch.float64).deg2rad()
    return torch.stack([radians.cos(), radians.sin()], dim=1)


def unit(rows: Tensor) -> Tensor:
    return torch.nn.functional.normalize(rows)


def test_kmeans_finds_groups_that_are_apart() -> None:
    generator = torch.Generator().manual_seed(0)
    centres = torch.eye(6, 20)
    points = unit(centres.repeat(8, 1) + 0.05 * torch.randn(48, 20, generator=generator))
    _, assignments = spherical_kmeans(points, seed_centroids(points, 6))
    groups = [set(assignments[group::6].tolist()) for group in range(6)]
    assert all(len(group) == 1 for group in groups)
    assert len(set.union(*groups)) == 6


def test_centroids_are_the_unit_means_of_what_is_assigned() -> None:
    points = unit(torch.randn(50, 4, generator=torch.Generator().manual_seed(1)))
    centroids, assignments = spherical_kmeans(points, seed_centroids(points, 7))
    for cluster in range(7):
        mean = points[assignments == cluster].mean(dim=0)
        torch.testing.assert_close(centroids[cluster], mean / mean.norm())


def test_kmeans_only_improves_on_its_start() -> None:
    points = unit(torch.randn(200, 8, generator=torch.Generator().manual_seed(1)))
    start = seed_centroids(points, 12)
    centroids, _ = spherical_kmeans(points, start)

    def served(centroids: Tensor) -> float:
        return (points @ centroids.t()).amax(dim=1).sum().item()

    assert served(centroids) > served(start) + 1


def test_a_warm_start_that_moves_nothing_looks_once(monkeypatch: pytest.MonkeyPatch) -> None:
    points = unit(torch.randn(60, 8, generator=torch.Generator().manual_seed(1)))
    centroids, assignments = spherical_kmeans(points, seed_centroids(points, 5))
    looks = []

    def counted(*args: Tensor) -> Tensor:
        looks.append(1)
        return nearest_centroids(*args)

    monkeypatch.setattr("harness.losses._tools.kmeans.nearest_centroids", counted)
    again, same = spherical_kmeans(points, centroids, assignments)
    assert len(looks) == 1
    assert torch.equal(same, assignments)
    torch.testing.assert_close(again, centroids)


@pytest.mark.parametrize("kind", ["equal", "two places", "apart"])
@pytest.mark.parametrize("num_clusters", [1, 4, 9, 10])
def test_no_cluster_is_ever_empty(kind: str, num_clusters: int) -> None:
    points = {
        "equal": torch.ones(10, 3),
        "two places": torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]).repeat(5, 1),
        "apart": torch.randn(10, 3, generator=torch.Generator().manual_seed(0)),
    }[kind]
    centroids, assignments = spherical_kmeans(
        unit(points), seed_centroids(unit(points), num_clusters)
    )
    assert set(assignments.tolist()) == set(range(num_clusters))
    assert centroids.isfinite().all()


def test_an_empty_cluster_takes_the_worst_served_point() -> None:
    points = directions(0, 4, 50, 90)
    # The third centroid is nobody's nearest; 50 degrees is farthest from its own.
    assignments = nearest_centroids(points, directions(0, 90, 250))
    assert assignments.tolist() == [0, 0, 2, 1]


def test_a_point_that_is_alone_in_its_cluster_is_not_taken() -> None:
    points = directions(0, 1, 2, 120)
    # 120 degrees is the worst served, but alone with the centroid at 170.
    assignments = nearest_centroids(points, directions(1, 170, 250))
    assert sorted(assignments.bincount().tolist()) == [1, 1, 2]
    assert assignments[3] == 1


def test_seeds_are_different_points_and_always_the_same() -> None:
    points = unit(torch.randn(30, 4, generator=torch.Generator().manual_seed(1)))
    seeds = seed_centroids(points, 30)
    assert len(seeds.unique(dim=0)) == 30
    assert torch.equal(seeds, seed_centroids(points, 30))


def test_seeds_prefer_points_far_apart() -> None:
    # 99 points in one place, one opposite: a uniform draw of two would mostly miss it.
    points = directions(*([0.0] * 99), 180.0)
    assert sorted(seed_centroids(points, 2)[:, 0].round().tolist()) == [-1, 1]
