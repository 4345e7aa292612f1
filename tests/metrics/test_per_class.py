"""Scores of each test class: worked by hand, and small enough to be committed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from harness.metrics.per_class import class_means, count_queries
from harness.system.files import read_json, write_json

NAN = float("nan")
# Classes 3, 7 and 9; the only image of class 9 has no companion and does not count.
LABELS = np.array([7, 3, 7, 9, 3, 3])
ONE = {
    "map_at_r": np.array([0.5, 0.2, 1.0, NAN, 0.4, 0.0]),
    "p_at_1": np.array([1.0, 0.0, 1.0, NAN, 1.0, 0.0]),
}
OTHER = {
    "map_at_r": np.array([0.1, 0.2, 0.0, NAN, 0.0, 0.4]),
    "p_at_1": np.array([0.0, 0.0, 1.0, NAN, 0.0, 0.0]),
}


def test_a_class_has_the_mean_of_its_queries_in_the_order_of_the_labels() -> None:
    means = class_means([ONE], LABELS)
    assert means == {"map_at_r": [0.2, 0.75, None], "p_at_1": [0.333333, 1.0, None]}


def test_several_models_are_averaged() -> None:
    means = class_means([ONE, OTHER], LABELS)
    assert means == {"map_at_r": [0.2, 0.4, None], "p_at_1": [0.166667, 0.75, None]}


def test_only_queries_that_count_are_counted() -> None:
    assert count_queries(ONE, LABELS) == [3, 2, 0]


def test_the_mean_of_classes_weighted_by_queries_is_the_score() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 20, 500)
    values = {"map_at_r": rng.random(500), "p_at_1": rng.integers(0, 2, 500).astype(float)}
    for metric, means in class_means([values], labels).items():
        mean = np.average(np.array(means, float), weights=count_queries(values, labels))
        assert mean == pytest.approx(values[metric].mean(), abs=1e-6)


def test_a_record_writes_its_numbers_on_one_line_and_reads_them_back(tmp_path: Path) -> None:
    values = {"numbers": [1, 0.25, None], "texts": ["[\n1\n]", "[ 1 ]"], "rows": [[1, 2], []]}
    write_json(tmp_path / "file.json", values)
    assert read_json(tmp_path / "file.json") == values
    assert '"numbers": [1, 0.25, null],\n' in (tmp_path / "file.json").read_text()


def test_eleven_thousand_classes_take_less_than_half_a_megabyte() -> None:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(11_317), 5)
    models = [{m: rng.random(len(labels)) for m in ("map_at_r", "p_at_1")} for _ in range(4)]
    means = {embedding: class_means(models, labels) for embedding in ("concatenated", "separated")}
    assert len(json.dumps(means)) < 500_000
