"""The retrieval metrics against their definitions and PML, and NMI."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_search import METRICS, clustered, near_duplicates, plain_scores
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from torch import Tensor

from benchmarks.pretended_gpu import pretended_gpu
from harness.metrics import neighbours
from harness.metrics.retrieval import evaluate, faiss_card

ROOT = Path(__file__).parents[2]
PML_NAMES = {
    "p_at_1": "precision_at_1",
    "r_precision": "r_precision",
    "map_at_r": "mean_average_precision_at_r",
}


def pml_scores(embeddings: Tensor, labels: Tensor, *references: Tensor) -> dict[str, float]:
    calculator = AccuracyCalculator(
        include=tuple(PML_NAMES.values()), k="max_bin_count", device=torch.device("cpu")
    )
    found = calculator.get_accuracy(embeddings, labels, *references)
    return {name: found[PML_NAMES[name]] for name in PML_NAMES}


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks so small that a few hundred points make many of them, the last one partial."""
    monkeypatch.setattr(neighbours, "BLOCK", 64)
    monkeypatch.setattr(neighbours, "PIECE", 24)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 60), st.integers(1, 12))
def test_grid_points_full_of_ties_agree_with_the_plain_loop(
    seed: int, size: int, classes: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    points = torch.randint(-2, 3, (size, 3), generator=generator) * 0.3
    labels = torch.randint(classes, (size,), generator=generator)
    assert evaluate(points, labels, metrics=METRICS).values == pytest.approx(
        plain_scores(points, labels), abs=1e-12, nan_ok=True
    )


@pytest.mark.parametrize("spread", [0.3, 1.5, 5.0])
def test_self_retrieval_scores_agree_with_both_references(
    small_blocks: None, spread: float
) -> None:
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


def test_very_uneven_classes_agree_with_the_reference(small_blocks: None) -> None:
    points, labels = clustered(250, 12, 50)
    labels[torch.arange(250) % 3 == 0] = 1000
    found = evaluate(points, labels, metrics=METRICS).values
    assert found == pytest.approx(plain_scores(points, labels), abs=1e-12)


def test_identical_embeddings_score_as_their_index_order_says() -> None:
    points, labels = torch.ones(60, 4), torch.arange(60) // 2
    found = evaluate(points, labels, metrics=METRICS).values
    assert found == pytest.approx(plain_scores(points, labels), abs=1e-12)


def test_near_ties_of_hits_and_misses_score_by_their_true_order(small_blocks: None) -> None:
    points = clustered(250, 16, 25)[0]
    points = torch.cat(
        [points, points + 1e-6 * torch.randn(250, 16, generator=torch.Generator().manual_seed(1))]
    )
    labels = torch.randint(25, (500,), generator=torch.Generator().manual_seed(2))
    for embeddings, classes in ((points, labels), (near_duplicates(), labels[:300])):
        found = evaluate(embeddings, classes, metrics=METRICS).values
        assert found == pytest.approx(plain_scores(embeddings, classes), abs=1e-12)


def test_scores_do_not_depend_on_the_number_of_threads() -> None:
    points, labels = clustered(500, 16, 30)
    threads = torch.get_num_threads()
    scores = []
    try:
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            scores.append(evaluate(points, labels).per_query)
    finally:
        torch.set_num_threads(threads)
    for name, values in scores[0].items():
        assert np.array_equal(values, scores[1][name], equal_nan=True)
        assert np.array_equal(values, scores[2][name], equal_nan=True)


def test_a_square_matrix_is_never_held(monkeypatch: pytest.MonkeyPatch) -> None:
    largest = 0

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, arguments=(), keywords=None):  # type: ignore[no-untyped-def]
            nonlocal largest
            result = function(*arguments, **(keywords or {}))
            if isinstance(result, Tensor):
                largest = max(largest, result.numel())
            return result

    monkeypatch.setattr(neighbours, "BLOCK", 64)
    monkeypatch.setattr(neighbours, "HELD", 2**15)
    points, labels = clustered(1000, 4, 150)
    large = torch.where(torch.arange(1000) < 250, 7, labels)
    with Watch():
        evaluate(points, labels)
        evaluate(points, large)
        evaluate(points, labels, points, labels)
        evaluate(points, labels, metrics=["recall_at_900"])
    assert largest < 1000 * 64


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


@pytest.mark.parametrize("rank", [1, 2, 7])
def test_precision_is_the_share_of_right_neighbours_up_to_its_rank(rank: int) -> None:
    points, labels = clustered(120, 8, 10, 1.5)
    distances = torch.cdist(points.double(), points.double()).fill_diagonal_(torch.inf)
    right = [
        sum(labels[j] == labels[i] for j in row.argsort(stable=True)[:rank]).item() / rank
        for i, row in enumerate(distances)
    ]
    name = f"p_at_{rank}"
    found = evaluate(points, labels, metrics=[name]).values[name]
    assert found == pytest.approx(sum(right) / len(right), abs=1e-12)


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


def test_nmi_of_points_on_a_card_is_clustered_by_faiss_on_that_card(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    points = torch.randn(200, 8, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(200) % 10
    here = evaluate(points, labels, metrics=["nmi"]).values
    asked: list[Any] = []

    class Resources:
        def setTempMemory(self, size: int) -> None:
            asked.append(size)

    def index_cpu_to_gpu(resources: Resources, card: int, index: Any) -> Any:
        asked.append((type(resources), card, type(index)))
        return index  # the values of a card that rounds as the CPU does

    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 2, raising=False)
    monkeypatch.setattr(faiss, "StandardGpuResources", Resources, raising=False)
    monkeypatch.setattr(faiss, "index_cpu_to_gpu", index_cpu_to_gpu, raising=False)
    assert evaluate(points, labels, metrics=["nmi"]).values == here
    assert asked == []
    with pretended_gpu():
        there = points.to("cuda"), labels.to("cuda")
        assert evaluate(*there, metrics=["nmi"]).values == here
    assert asked == [2**28, (Resources, 0, faiss.IndexFlatL2)]
    assert faiss_card(torch.device("cuda", 1)) == 1
    assert faiss_card(torch.device("cpu")) is None
    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 0)
    assert faiss_card(torch.device("cuda", 0)) is None


def test_nmi_is_the_same_every_time() -> None:
    points, labels = clustered(300, 8, 20)
    first, second = (evaluate(points, labels, metrics=["nmi"]).values for _ in range(2))
    assert first == second


def test_no_tensor_is_created_on_the_default_device(small_blocks: None) -> None:
    points, labels = clustered(300, 8, 20)
    points[:40] = points[0]
    expected = evaluate(points, labels, metrics=(*METRICS, "nmi")).values
    with torch.device("meta"):
        assert evaluate(points, labels, metrics=(*METRICS, "nmi")).values == expected
        assert evaluate(points, labels, points, labels).queries == 300


def test_gradients_and_inputs_are_left_alone() -> None:
    points, labels = clustered(50, 8, 5)
    leaf = points.clone().requires_grad_()
    evaluate(leaf, labels)
    assert torch.equal(leaf.detach(), points)
    assert leaf.grad is None


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
    with pytest.raises(ValueError, match=f"map_at_r, r_precision, p_at_1, nmi.*{name}"):
        evaluate(torch.ones(3, 2), torch.zeros(3).long(), metrics=[name])


@pytest.mark.slow
def test_benchmark_runs_on_small_sizes() -> None:
    command = [sys.executable, "-m", "benchmarks.retrieval", "--quick"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "500 x 16" in run.stdout and "torch" in run.stdout
