"""Tests of the exact search and of the retrieval metrics."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from torch import Tensor

from harness.metrics import retrieval
from harness.metrics.retrieval import evaluate, nearest

ROOT = Path(__file__).parents[2]
METRICS = ("p_at_1", "r_precision", "map_at_r", "recall_at_2", "recall_at_5")
PML_NAMES = {
    "p_at_1": "precision_at_1",
    "r_precision": "r_precision",
    "map_at_r": "mean_average_precision_at_r",
}


def clustered(
    size: int, dimensions: int, classes: int, spread: float = 1.5, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Unit vectors around class centres, in random order, and their labels."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (size,), generator=generator)
    points = torch.randn(classes, dimensions, generator=generator)[labels]
    points = points + spread * torch.randn(size, dimensions, generator=generator)
    return torch.nn.functional.normalize(points), labels


def plain_nearest(queries: Tensor, references: Tensor | None, k: int) -> list[list[int]]:
    """The neighbours by the definition: every distance on its own, ties by index."""
    pool = queries if references is None else references
    found = []
    for i, query in enumerate(queries.numpy()):
        squares = (pool.numpy() - query) ** 2
        squared = squares.sum(1, dtype=np.float64).astype(np.float32)
        others = [j for j in range(len(pool)) if references is not None or j != i]
        found.append(sorted(others, key=lambda j: (squared[j], j))[:k])
    return found


def plain_scores(
    embeddings: Tensor,
    labels: Tensor,
    references: Tensor | None = None,
    reference_labels: Tensor | None = None,
) -> dict[str, float]:
    """The metrics by their definitions, in loops."""
    pool = labels if reference_labels is None else reference_labels
    rows: dict[str, list[float]] = {name: [] for name in METRICS}
    for i, neighbours in enumerate(plain_nearest(embeddings, references, len(pool))):
        hits = [int(pool[j] == labels[i]) for j in neighbours]
        relevant = sum(hits)
        if relevant == 0:
            continue
        rows["p_at_1"].append(hits[0])
        rows["r_precision"].append(sum(hits[:relevant]) / relevant)
        precisions = [hits[j] * sum(hits[: j + 1]) / (j + 1) for j in range(relevant)]
        rows["map_at_r"].append(sum(precisions) / relevant)
        rows["recall_at_2"].append(float(any(hits[:2])))
        rows["recall_at_5"].append(float(any(hits[:5])))
    return {name: float(np.mean(values)) if values else np.nan for name, values in rows.items()}


def pml_scores(embeddings: Tensor, labels: Tensor, *references: Tensor) -> dict[str, float]:
    calculator = AccuracyCalculator(
        include=tuple(PML_NAMES.values()), k="max_bin_count", device=torch.device("cpu")
    )
    found = calculator.get_accuracy(embeddings, labels, *references)
    return {name: found[PML_NAMES[name]] for name in PML_NAMES}


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles so small that a few hundred points make many of them, the last one partial."""
    monkeypatch.setattr(retrieval, "BLOCK", 64)
    monkeypatch.setattr(retrieval, "ROWS_CHUNK", 2**12)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """For torch function modes, which other threads do not see."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("size", [2, 31, 97, 193, 500])
def test_self_retrieval_finds_the_neighbours_of_the_plain_loop(
    small_tiles: None, size: int
) -> None:
    points = torch.randn(size, 7, generator=torch.Generator().manual_seed(size))
    assert nearest(points, None, 9).tolist() == plain_nearest(points, None, 9)


def test_gallery_search_finds_the_neighbours_of_the_plain_loop(small_tiles: None) -> None:
    points = torch.randn(450, 6, generator=torch.Generator().manual_seed(0))
    queries, references = points[:150], points[150:]
    assert nearest(queries, references, 11).tolist() == plain_nearest(queries, references, 11)


def test_gallery_search_does_not_exclude_the_reference_with_the_index_of_the_query() -> None:
    points = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
    assert nearest(points, points, 1)[:, 0].tolist() == list(range(20))


def test_depths_beyond_the_tiled_search_find_the_same_neighbours(small_tiles: None) -> None:
    points = torch.randn(300, 5, generator=torch.Generator().manual_seed(3))
    assert nearest(points, None, 200).tolist() == plain_nearest(points, None, 200)


def test_k_beyond_what_exists_returns_everything_that_exists() -> None:
    points = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    assert nearest(points, None, 50).tolist() == plain_nearest(points, None, 5)
    assert nearest(points, points, 50).shape == (6, 6)
    assert nearest(points[:1], None, 3).shape == (1, 0)


def test_duplicates_come_in_ascending_order_of_index(small_tiles: None) -> None:
    base = torch.randn(40, 33, generator=torch.Generator().manual_seed(0)) + 100
    points = base.repeat(6, 1)[torch.randperm(240, generator=torch.Generator().manual_seed(1))]
    assert nearest(points, None, 7).tolist() == plain_nearest(points, None, 7)
    assert nearest(points[:50], points, 8).tolist() == plain_nearest(points[:50], points, 8)


def test_more_duplicates_than_candidates_still_come_in_ascending_order(small_tiles: None) -> None:
    points = torch.randn(3, 10, generator=torch.Generator().manual_seed(0)).repeat(100, 1)
    assert nearest(points, None, 5).tolist() == plain_nearest(points, None, 5)
    assert nearest(points[:9], points, 5).tolist() == plain_nearest(points[:9], points, 5)


def test_identical_embeddings_are_all_ties(small_tiles: None) -> None:
    points = torch.full((250, 8), 0.1)
    assert nearest(points, None, 4).tolist() == plain_nearest(points, None, 4)


def test_near_duplicates_far_from_the_origin_are_ordered_by_their_true_distances(
    small_tiles: None,
) -> None:
    points = near_duplicates()
    assert nearest(points, None, 6).tolist() == plain_nearest(points, None, 6)


def test_one_point_far_away_does_not_spoil_the_order_of_the_others(small_tiles: None) -> None:
    points = torch.randn(300, 8, generator=torch.Generator().manual_seed(0))
    points[17] = 1e6
    assert nearest(points, None, 6).tolist() == plain_nearest(points, None, 6)


def test_error_bound_allows_for_a_lower_matrix_product_precision() -> None:
    highest = retrieval._error_bound(64, 1.0, torch.float32)
    torch.set_float32_matmul_precision("medium")
    try:
        assert retrieval._error_bound(64, 1.0, torch.float32) > 1000 * highest
    finally:
        torch.set_float32_matmul_precision("highest")


def test_points_far_from_the_origin_need_no_second_search(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(search: object, rows: Tensor, *_: object) -> Tensor:
        assert len(rows) == 0
        return rows

    monkeypatch.setattr(retrieval._Search, "_by_rows", refuse)
    points = torch.randn(200, 16, generator=torch.Generator().manual_seed(0)) + 1000
    assert nearest(points, None, 6).tolist() == plain_nearest(points, None, 6)


def test_result_does_not_depend_on_the_tile_size(monkeypatch: pytest.MonkeyPatch) -> None:
    points = clustered(700, 24, 30)[0].repeat(2, 1)
    expected = nearest(points, None, 12)
    for block in (32, 64, 256):
        monkeypatch.setattr(retrieval, "BLOCK", block)
        assert torch.equal(nearest(points, None, 12), expected)


def test_search_never_holds_a_square_matrix(
    one_thread: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    largest = 0

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, arguments=(), keywords=None):  # type: ignore[no-untyped-def]
            nonlocal largest
            result = function(*arguments, **(keywords or {}))
            if isinstance(result, Tensor):
                largest = max(largest, result.numel())
            return result

    monkeypatch.setattr(retrieval, "BLOCK", 64)
    monkeypatch.setattr(retrieval, "ROWS_CHUNK", 2**13)
    points, labels = clustered(2000, 4, 300)
    labels[:500] = 7
    with Watch():
        evaluate(points, labels)
        evaluate(points, labels, points, labels)
    assert largest < 2000 * 64


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 60), st.integers(1, 12), st.integers(1, 20))
def test_grid_points_full_of_ties_agree_with_the_plain_loop(
    seed: int, size: int, classes: int, k: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    points = torch.randint(-2, 3, (size, 3), generator=generator) * 0.3
    labels = torch.randint(classes, (size,), generator=generator)
    assert nearest(points, None, k).tolist() == plain_nearest(points, None, k)
    assert evaluate(points, labels, metrics=METRICS).values == pytest.approx(
        plain_scores(points, labels), abs=1e-12, nan_ok=True
    )


@pytest.mark.parametrize("spread", [0.3, 1.5, 5.0])
def test_self_retrieval_scores_agree_with_both_references(small_tiles: None, spread: float) -> None:
    points, labels = clustered(250, 16, 25, spread)
    found = evaluate(points, labels, metrics=METRICS).values
    assert found == pytest.approx(plain_scores(points, labels), abs=1e-12)
    expected = pml_scores(points, labels)
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-6)


def test_gallery_scores_agree_with_both_references() -> None:
    points, labels = clustered(400, 16, 35)
    parts = points[:150], labels[:150], points[150:], labels[150:]
    found = evaluate(*parts, metrics=METRICS).values
    assert found == pytest.approx(plain_scores(*parts), abs=1e-12)
    expected = pml_scores(*parts)
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-6)


def test_embeddings_of_any_length_agree_with_the_references() -> None:
    points, labels = clustered(300, 16, 20)
    points = points * torch.linspace(0.5, 3, 300)[:, None] + 5
    found = evaluate(points, labels).values
    assert found == pytest.approx(pml_scores(points, labels), abs=1e-6)


def test_very_uneven_classes_agree_with_the_reference(small_tiles: None) -> None:
    points, labels = clustered(250, 12, 50)
    labels[torch.arange(250) % 3 == 0] = 1000
    found = evaluate(points, labels, metrics=METRICS).values
    assert found == pytest.approx(plain_scores(points, labels), abs=1e-12)


def test_identical_embeddings_score_as_their_index_order_says() -> None:
    points, labels = torch.ones(60, 4), torch.arange(60) // 2
    found = evaluate(points, labels, metrics=METRICS).values
    assert found == pytest.approx(plain_scores(points, labels), abs=1e-12)


def near_duplicates() -> Tensor:
    """Two far clusters of points closer together than a float32 matrix product can tell."""
    offsets = torch.randn(300, 16, generator=torch.Generator().manual_seed(0))
    centres = torch.randn(2, 16, generator=torch.Generator().manual_seed(1)) * 10
    return centres[torch.arange(300) % 2] + offsets * 1e-4


def test_near_ties_of_hits_and_misses_score_by_their_true_order(small_tiles: None) -> None:
    points = clustered(250, 16, 25)[0]
    points = torch.cat(
        [points, points + 1e-6 * torch.randn(250, 16, generator=torch.Generator().manual_seed(1))]
    )
    labels = torch.randint(25, (500,), generator=torch.Generator().manual_seed(2))
    for embeddings, classes in ((points, labels), (near_duplicates(), labels[:300])):
        found = evaluate(embeddings, classes, metrics=METRICS).values
        assert found == pytest.approx(plain_scores(embeddings, classes), abs=1e-12)


def test_near_ties_of_equal_labels_are_not_refined_and_score_the_same(
    small_tiles: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = clustered(60, 16, 60)[0].repeat_interleave(5, 0)
    points += 1e-6 * torch.randn(points.shape, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(300) // 5
    expected = plain_scores(points, labels)
    exact_squared, refined = retrieval._exact_squared, []

    def count(first: Tensor, second: Tensor) -> Tensor:
        refined.append(len(first))
        return exact_squared(first, second)

    monkeypatch.setattr(retrieval, "_exact_squared", count)
    assert evaluate(points, labels, metrics=METRICS).values == expected
    assert sum(refined) == 0
    nearest(points, None, 4)
    assert sum(refined) > 300


@pytest.mark.parametrize(
    ("hits", "expected"),
    [
        (None, [1, 1, 1, 1, 0]),
        ([1, 1, 1, 1, 0], [0, 0, 0, 0, 0]),
        ([1, 1, 0, 0, 0], [0, 1, 1, 0, 0]),
        ([0, 1, 1, 0, 1], [1, 1, 1, 1, 0]),
    ],
)
def test_only_places_close_to_one_that_differs_are_unsure(
    hits: list[int] | None, expected: list[int]
) -> None:
    squared = torch.tensor([[1.0, 1.5, 2.0, 2.9, 9.0]])
    mask = None if hits is None else torch.tensor([hits]).bool()
    assert retrieval._unsure(squared, mask, error=0.46).int().tolist() == [expected]


@pytest.mark.parametrize("inference", [False, True])
def test_result_does_not_depend_on_the_number_of_threads(
    small_tiles: None, inference: bool
) -> None:
    threads = torch.get_num_threads()
    found, scores = [], []
    try:
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            with torch.inference_mode(inference):
                points, labels = clustered(500, 16, 30)
                points[100:200] = points[:100]
                found.append(nearest(points, None, 7).tolist())
                scores.append(evaluate(points, labels).per_query)
            assert torch.get_num_threads() == number
    finally:
        torch.set_num_threads(threads)
    assert found[0] == found[1] == found[2] == plain_nearest(points, None, 7)
    for name in scores[0]:
        assert np.array_equal(scores[0][name], scores[1][name], equal_nan=True)
        assert np.array_equal(scores[0][name], scores[2][name], equal_nan=True)


def test_a_second_thread_works_only_if_torch_may_use_two() -> None:
    threads = torch.get_num_threads()
    both = threading.Barrier(2, timeout=5)
    try:
        torch.set_num_threads(2)
        retrieval._on_workers(lambda _: both.wait(), range(2), torch.device("cpu"))
        torch.set_num_threads(1)
        here = threading.get_ident()
        used = retrieval._on_workers(lambda _: threading.get_ident(), range(9), torch.device("cpu"))
        assert used == [here] * 9
    finally:
        torch.set_num_threads(threads)


def test_an_error_in_either_thread_is_raised_and_the_threads_are_restored() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for broken in range(4):

            def divide(item: int, broken: int = broken) -> int:
                return 1 // (item - broken)

            with pytest.raises(ZeroDivisionError):
                retrieval._on_workers(divide, range(4), torch.device("cpu"))
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)


def test_queries_without_relevant_references_are_dropped_and_counted() -> None:
    points, labels = clustered(200, 8, 12)
    labels[:5] = torch.arange(100, 105)
    scores = evaluate(points, labels, metrics=METRICS)
    assert (scores.queries, scores.queries_dropped) == (200, 5)
    assert scores.values == pytest.approx(plain_scores(points, labels), abs=1e-12)
    expected = pml_scores(points, labels)
    assert {name: scores.values[name] for name in expected} == pytest.approx(expected, abs=1e-6)


def test_one_image_per_class_leaves_nothing_to_score() -> None:
    scores = evaluate(clustered(30, 8, 3)[0], torch.arange(30), metrics=METRICS)
    assert scores.queries_dropped == 30
    assert all(np.isnan(value) for value in scores.values.values())


def test_one_image_per_class_scores_against_a_gallery() -> None:
    points, labels = clustered(60, 8, 3)[0], torch.arange(60) % 30
    parts = points[:30], labels[:30], points[30:], labels[30:]
    found = evaluate(*parts).values
    assert found == pytest.approx(pml_scores(*parts), abs=1e-6)


def test_map_at_r_divides_by_relevant_references_and_not_by_hits() -> None:
    points = torch.tensor([[0.0], [1.0], [2.0], [9.0]])
    scores = evaluate(points, torch.tensor([0, 0, 1, 0]))
    assert scores.per_query["map_at_r"][0] == 0.5


def test_per_query_values_average_to_the_scores_and_are_nan_where_dropped() -> None:
    points, labels = clustered(100, 8, 10)
    labels[4] = 99
    scores = evaluate(points, labels, metrics=METRICS)
    for name in METRICS:
        assert np.flatnonzero(np.isnan(scores.per_query[name])).tolist() == [4]
        assert np.nanmean(scores.per_query[name]) == pytest.approx(scores.values[name])


def test_labels_beyond_the_integers_of_a_float_are_told_apart() -> None:
    points, labels = clustered(120, 8, 6)
    huge = labels + 2**62
    assert evaluate(points, huge).values == evaluate(points, labels).values


def test_recall_beyond_the_number_of_references_is_one() -> None:
    points, labels = clustered(20, 4, 2)
    assert evaluate(points, labels, metrics=["recall_at_100"]).values == {"recall_at_100": 1.0}


def test_nmi_is_one_for_separated_classes_and_less_if_a_point_changes_sides() -> None:
    points = torch.tensor([[0.0, 0.0], [5.0, 5.0]]).repeat(20, 1)
    labels = torch.arange(40) % 2
    assert evaluate(points, labels, metrics=["nmi"]).values["nmi"] == pytest.approx(1)
    labels[7] = 0
    assert 0.5 < evaluate(points, labels, metrics=["nmi"]).values["nmi"] < 0.95


def test_nmi_does_not_drop_queries_without_relevant_references() -> None:
    points = torch.tensor([[0.0], [100.0]])[[0] * 5 + [1]]
    labels = torch.tensor([3, 3, 3, 3, 3, 8])
    scores = evaluate(points, labels, metrics=["p_at_1", "nmi"])
    assert scores.queries_dropped == 1
    assert scores.values["nmi"] == pytest.approx(1)


def test_nmi_is_the_same_every_time() -> None:
    points, labels = clustered(300, 8, 20)
    first, second = (evaluate(points, labels, metrics=["nmi"]).values for _ in range(2))
    assert first == second


def test_no_tensor_is_created_on_the_default_device(small_tiles: None, one_thread: None) -> None:
    points, labels = clustered(300, 8, 20)
    points[:40] = points[0]
    expected = evaluate(points, labels, metrics=(*METRICS, "nmi")).values
    with torch.device("meta"):
        assert evaluate(points, labels, metrics=(*METRICS, "nmi")).values == expected
        assert evaluate(points, labels, points, labels).queries == 300
        assert nearest(points, None, 3).device.type == "cpu"


def test_gradients_and_inputs_are_left_alone() -> None:
    points, labels = clustered(50, 8, 5)
    leaf = points.clone().requires_grad_()
    evaluate(leaf, labels)
    assert torch.equal(leaf.detach(), points)
    assert not nearest(leaf, None, 2).requires_grad


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.ones(3, 2), torch.ones(4).long()), r"one per embedding.*\(4,\) for 3"),
        ((torch.ones(3, 2), torch.ones(3)), "integers, got torch.float32"),
        ((torch.ones(0, 2), torch.ones(0).long()), r"non-empty.*\(0, 2\)"),
        ((torch.ones(3), torch.ones(3).long()), r"matrix, got \(3,\)"),
        ((torch.tensor([[1.0], [torch.nan]]), torch.ones(2).long()), "finite, row 1"),
        ((torch.tensor([[torch.inf], [-torch.inf]]), torch.ones(2).long()), "finite, row 0"),
        ((torch.ones(2, 2), torch.ones(2).long(), torch.ones(2, 2)), "got only references"),
        ((torch.ones(2, 2), torch.ones(2).long(), None, torch.ones(2)), "only reference_labels"),
        (
            (torch.ones(2, 2), torch.ones(2).long(), torch.ones(2, 3), torch.ones(2).long()),
            "got 3 and 2",
        ),
    ],
)
def test_bad_input_is_refused_with_the_rule_and_the_value(
    arguments: tuple[Tensor, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        evaluate(*arguments)


@pytest.mark.parametrize("name", ["map", "recall_at_", "recall_at_0", "recall_at_x", "NMI"])
def test_unknown_metric_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(ValueError, match=f"p_at_1, r_precision, map_at_r.*{name}"):
        evaluate(torch.ones(3, 2), torch.zeros(3).long(), metrics=[name])


def test_k_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1, got 0"):
        nearest(torch.ones(3, 2), None, 0)


@pytest.mark.slow
def test_benchmark_runs_on_small_sizes() -> None:
    command = [sys.executable, "-m", "benchmarks.retrieval", "--quick"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "500 x 16" in run.stdout and "torch" in run.stdout
