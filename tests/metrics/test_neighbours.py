"""The exact search: its order, whatever the blocks, threads and settings, and its memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_search import clustered, near_duplicates, plain_nearest, random_points
from torch import Tensor

from harness.metrics import neighbours

ALL_AT_ONCE = neighbours.HELD
FEW_AT_A_TIME = 2**13


@pytest.fixture(params=[ALL_AT_ONCE, FEW_AT_A_TIME])
def small_blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks so small that a few hundred points make many of them, the last one partial.

    Candidates of all queries are held at once, or of few: then no product is used twice.
    """
    monkeypatch.setattr(neighbours, "BLOCK", 64)
    monkeypatch.setattr(neighbours, "PIECE", 24)
    monkeypatch.setattr(neighbours, "HELD", request.param)


def nearest(queries: Tensor, references: Tensor | None, k: int) -> list[list[int]]:
    """The k nearest of every query."""
    everyone = torch.arange(len(queries))
    depths = torch.full_like(everyone, k)
    found = dict[int, list[int]]()
    for rows, indices in neighbours.nearest(queries, references, depths, everyone.flip(0)):
        for row, of_row in zip(rows.tolist(), indices.tolist(), strict=True):
            assert row not in found
            found[row] = of_row
    return [found[row] for row in range(len(queries))]


def calls(run: Callable[[], Any]) -> Counter[str]:
    """How often a run calls which function of torch."""
    counter = Counter[str]()

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, arguments=(), keywords=None):  # type: ignore[no-untyped-def]
            counter[function.__name__] += 1
            return function(*arguments, **(keywords or {}))

    with Watch():
        run()
    return counter


@pytest.mark.parametrize("size", [2, 31, 97, 193, 500])
def test_self_retrieval_finds_the_neighbours_of_the_plain_loop(
    small_blocks: None, size: int
) -> None:
    points = random_points(size, 7, seed=size)
    k = min(9, size - 1)
    assert nearest(points, None, k) == plain_nearest(points, None, k)


def test_gallery_search_finds_the_neighbours_of_the_plain_loop(small_blocks: None) -> None:
    points = random_points(450, 6)
    queries, references = points[:150], points[150:]
    assert nearest(queries, references, 11) == plain_nearest(queries, references, 11)


def test_gallery_search_does_not_exclude_the_reference_with_the_index_of_the_query() -> None:
    points = random_points(20, 4)
    assert nearest(points, points, 1) == [[i] for i in range(20)]


@pytest.mark.parametrize("k", [200, 299])
def test_deep_searches_find_the_same_neighbours(small_blocks: None, k: int) -> None:
    points = random_points(300, 5, seed=3)
    assert nearest(points, None, k) == plain_nearest(points, None, k)
    assert nearest(points[:20], points, k) == plain_nearest(points[:20], points, k)


def test_every_query_gets_as_many_neighbours_as_it_needs(small_blocks: None) -> None:
    points = random_points(300, 5)
    depths = 1 + torch.arange(300) ** 2 % 120
    expected = plain_nearest(points, None, 120)
    turns = []
    for rows, found in neighbours.nearest(points, None, depths, torch.arange(300)):
        for row, of_row in zip(rows.tolist(), found.tolist(), strict=True):
            assert of_row[: depths[row]] == expected[row][: depths[row]]
        turns += rows.tolist()
    assert sorted(turns) == list(range(300))


def test_duplicates_come_in_ascending_order_of_index(small_blocks: None) -> None:
    base = random_points(40, 33) + 100
    points = base.repeat(6, 1)[torch.randperm(240, generator=torch.Generator().manual_seed(1))]
    assert nearest(points, None, 7) == plain_nearest(points, None, 7)
    assert nearest(points[:50], points, 8) == plain_nearest(points[:50], points, 8)


def test_more_duplicates_than_candidates_still_come_in_ascending_order(small_blocks: None) -> None:
    points = random_points(3, 10).repeat(100, 1)
    assert nearest(points, None, 5) == plain_nearest(points, None, 5)
    assert nearest(points[:9], points, 5) == plain_nearest(points[:9], points, 5)


def test_identical_embeddings_are_all_ties(small_blocks: None) -> None:
    points = torch.full((250, 8), 0.1)
    assert nearest(points, None, 4) == plain_nearest(points, None, 4)


def test_near_duplicates_far_from_the_origin_are_ordered_by_their_true_distances(
    small_blocks: None,
) -> None:
    points = near_duplicates()
    assert nearest(points, None, 6) == plain_nearest(points, None, 6)


def test_one_point_far_away_does_not_spoil_the_order_of_the_others(small_blocks: None) -> None:
    points = random_points(300, 8)
    points[17] = 1e6
    assert nearest(points, None, 6) == plain_nearest(points, None, 6)


def test_points_far_from_the_origin_take_no_more_products() -> None:
    points = random_points(200, 16)
    far = points + 1000
    assert nearest(far, None, 6) == plain_nearest(far, None, 6)
    assert calls(lambda: nearest(points, None, 6))["matmul"] == 1
    assert calls(lambda: nearest(far, None, 6))["matmul"] == 1


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    sizes=st.tuples(st.integers(1, 40), st.integers(2, 60)),
    k=st.integers(1, 59),
    scale=st.sampled_from([0.3, 1e-3, 1e-20, 1e15]),
    origin=st.sampled_from([0, 1, 1000]),
    itself=st.booleans(),
)
def test_grid_points_full_of_ties_agree_with_the_plain_loop(
    seed: int, sizes: tuple[int, int], k: int, scale: float, origin: int, itself: bool
) -> None:
    generator = torch.Generator().manual_seed(seed)
    queries, references = (
        (torch.randint(-2, 3, (size, 3), generator=generator) + origin) * scale for size in sizes
    )
    if itself:
        k = min(k, len(references) - 1)
        assert nearest(references, None, k) == plain_nearest(references, None, k)
    else:
        k = min(k, len(references))
        assert nearest(queries, references, k) == plain_nearest(queries, references, k)


def test_the_result_does_not_depend_on_the_size_of_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    points = clustered(700, 24, 30)[0].repeat(2, 1)
    expected = nearest(points, None, 12)
    for block, piece in ((32, 32), (64, 5), (256, 100)):
        monkeypatch.setattr(neighbours, "BLOCK", block)
        monkeypatch.setattr(neighbours, "PIECE", piece)
        assert nearest(points, None, 12) == expected


@pytest.mark.parametrize("inference", [False, True])
def test_the_result_does_not_depend_on_the_number_of_threads(
    small_blocks: None, inference: bool
) -> None:
    points = clustered(500, 16, 30)[0]
    points[100:200] = points[:100]
    threads = torch.get_num_threads()
    try:
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            with torch.inference_mode(inference):
                assert nearest(points, None, 7) == plain_nearest(points, None, 7)
    finally:
        torch.set_num_threads(threads)


def test_the_result_does_not_depend_on_a_precision_that_was_set_for_speed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    points = near_duplicates()
    expected = plain_nearest(points, None, 6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert nearest(points, None, 6) == expected
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    assert nearest(points, None, 6) == expected
    monkeypatch.delenv("NVIDIA_TF32_OVERRIDE")
    with torch.backends.flags(fp32_precision="bf16"):
        assert nearest(points, None, 6) == expected
    torch.set_float32_matmul_precision("medium")
    try:
        assert nearest(points, None, 6) == expected
    finally:
        torch.set_float32_matmul_precision("highest")


def test_points_too_far_apart_for_float32_are_refused() -> None:
    with pytest.raises(ValueError, match=r"within 7e\+18 of their mean.*got 1e\+19"):
        nearest(torch.tensor([[-1e19], [1e19]]), None, 1)
