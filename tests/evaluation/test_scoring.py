"""Test scores: self-retrieval, or queries in a gallery."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks.pretended_gpu import pretended_gpu
from harness.evaluation.scoring import TestEmbeddings, score
from harness.metrics import retrieval


def test_queries_search_the_gallery_alone() -> None:
    """Two queries of class 0 and one of class 1, worked by hand on a line."""
    # queries: 0 at 0.0, 0 at 4.0, 1 at 9.0; gallery: 0 at 1.0, 1 at 3.5, 0 at 6.0, 1 at 20.0
    places = torch.tensor([[0.0], [4.0], [9.0], [1.0], [3.5], [6.0], [20.0]])
    labels = np.array([0, 0, 1, 0, 1, 0, 1])
    queries = np.array([True, True, True, False, False, False, False])
    test = TestEmbeddings(
        {"concatenated": [places]}, labels, queries, "f", 2, np.arange(len(labels))
    )
    found = score(test)
    # first query: 1.0 (hit), 3.5 -> RP 1/2, MAP@R (1)/2; second: 3.5, 6.0 (hit) -> 1/2, (1/2)/2;
    # third: 6.0, 3.5 (hit) -> 1/2, (1/2)/2
    values = found["scores"]["concatenated"]
    assert values["p_at_1"] == pytest.approx(1 / 3)
    assert values["r_precision"] == pytest.approx(1 / 2)
    assert values["map_at_r"] == pytest.approx((1 / 2 + 1 / 4 + 1 / 4) / 3)
    assert found["queries"] == 3 and found["missing_images"] == 2
    assert found["class_queries"] == [2, 1]
    assert found["per_class"]["concatenated"]["map_at_r"] == pytest.approx([3 / 8, 1 / 4])


def test_without_roles_every_image_searches_all_others() -> None:
    points = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
    labels = np.arange(12) % 3
    test = TestEmbeddings({"concatenated": [points]}, labels, None, "f", 0, np.arange(len(labels)))
    expected = retrieval.evaluate(points, torch.from_numpy(labels)).values
    assert score(test)["scores"]["concatenated"] == expected


def test_the_record_names_the_card_that_clustered_for_nmi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrieval, "faiss_card", lambda device: device.index)  # faiss sees the card

    def measured(points: torch.Tensor) -> TestEmbeddings:
        labels = np.arange(6) % 2
        return TestEmbeddings({"concatenated": [points]}, labels, None, "f", 0, np.arange(6))

    here = measured(torch.randn(6, 2))
    assert "nmi_clusters" not in here.provenance(["map_at_r", "nmi"])
    assert score(here)["provenance"].keys() == here.provenance([]).keys()
    with pretended_gpu():
        there = measured(torch.randn(6, 2).to("cuda"))
        assert there.provenance(["map_at_r", "nmi"])["nmi_clusters"] == "Pretended GPU"
        assert "nmi_clusters" not in there.provenance(["map_at_r"])
