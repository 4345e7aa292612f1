"""Names of metrics: which may select a checkpoint, how recall is spelt, and what is kept."""

from __future__ import annotations

import pytest

from harness.errors import HarnessError
from harness.metrics import names


@pytest.mark.parametrize("name", names.METRICS)
def test_every_metric_of_a_test_may_select_a_checkpoint(name: str) -> None:
    names.check_selection_metric(name)


@pytest.mark.parametrize("name", ["map_at", "nmi", "recall_at_1"])
def test_another_metric_may_not_and_the_nearest_is_named(name: str) -> None:
    with pytest.raises(HarnessError, match=f"no metric to select by named '{name}'") as refused:
        names.check_selection_metric(name)
    assert "known: map_at_r, p_at_1, r_precision" in str(refused.value)
    assert ("Did you mean 'map_at_r'?" in str(refused.value)) == (name == "map_at")


@pytest.mark.parametrize(
    ("metric", "rank", "title"),
    [
        ("recall_at_1", 1, "R@1"),
        ("recall_at_1000", 1000, "R@1000"),
        ("recall_at_0", None, "recall_at_0"),
        ("recall_at_1e3", None, "recall_at_1e3"),
        ("p_at_1", None, "P@1"),
        ("covering_radius", None, "covering radius"),
    ],
)
def test_recall_states_its_rank(metric: str, rank: int | None, title: str) -> None:
    assert names.recall_rank(metric) == rank
    assert names.title_of(metric) == title


def test_a_precision_states_its_rank_and_that_of_rank_1_is_part_of_every_test() -> None:
    assert names.precision_rank("p_at_2") == 2 and names.title_of("p_at_2") == "P@2"
    assert names.is_on_demand("p_at_2") and not names.is_on_demand("p_at_1")
    assert names.parse_metrics(["p@2,5", "recall@2"]) == ("p_at_2", "p_at_5", "recall_at_2")
    assert not names.is_metric("p@1")
    with pytest.raises(HarnessError, match="no metric on demand named 'p@1'"):
        names.parse_metrics(["p@1"])


def test_lists_name_metrics_that_there_are() -> None:
    assert set(names.PER_CLASS) <= set(names.METRICS)
    assert set(names.LENGTHS) <= set(names.MORE)
    assert set(names.TITLES) == {*names.METRICS, *names.MORE}
