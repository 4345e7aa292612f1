"""Comparisons of methods from records: pairs, corrections, draws of classes, and plain words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_records import make_record, put, put_scores
from scipy import stats

import harness
from harness.cli import main
from harness.errors import HarnessError
from harness.judgement.compare import Comparison, compare, find_table, in_words
from harness.judgement.stats import Paired, class_intervals, holm
from harness.metrics.names import METRICS
from harness.registry import full_name

RNG = np.random.default_rng(0)
BASE = (0.5 + 0.02 * RNG.standard_normal(8)).tolist()
GAIN = (0.01 + 0.005 * RNG.standard_normal(8)).tolist()
PAIRED = Paired(10, 0.012, 0.005, 0.003, None, 1.4)
BETTER = [a + b for a, b in zip(BASE, GAIN, strict=True)]


def compared(results: Path, *methods: str, metric: str = "map_at_r") -> list[Comparison]:
    return compare([results / "mlrc" / "cub-bninception"], methods, metric, [])[0]


def test_runs_are_paired_by_repetition(tmp_path: Path) -> None:
    put_scores(tmp_path, "base", BASE)
    put_scores(tmp_path, "better", BETTER)
    (tmp_path / "mlrc/cub-bninception/records/base/abc-03.json").unlink()
    (tmp_path / "mlrc/cub-bninception/records/better/abc-05.json").unlink()
    (found,) = compared(tmp_path, "base", "better")
    kept = [i for i in range(8) if i not in (2, 4)]
    expected = stats.ttest_rel([BETTER[i] for i in kept], [BASE[i] for i in kept])
    assert (found.ahead, found.behind) == ("better", "base")
    assert found.concatenated.n == 6
    assert found.concatenated.t_test == pytest.approx(expected.pvalue)
    assert found.concatenated.mean == pytest.approx(np.mean([GAIN[i] for i in kept]))


def test_separated_scores_are_paired_by_reproduction_whatever_its_folds(tmp_path: Path) -> None:
    scores = RNG.random((2, 5, 4))
    for name, by_run in zip(("one", "other"), scores, strict=True):
        for repetition, by_fold in enumerate(by_run, start=1):
            separated = [dict.fromkeys(METRICS, value) for value in by_fold]
            put(tmp_path, make_record(name, repetition, by_run.mean(), separated=separated))
    (found,) = compared(tmp_path, "one", "other")
    assert found.separated.n == 5  # the same four folds each time: no twenty runs
    expected = stats.ttest_rel(scores[0].mean(axis=1), scores[1].mean(axis=1)).pvalue
    assert found.separated.t_test == pytest.approx(expected)


def test_several_pairs_are_corrected_together(tmp_path: Path) -> None:
    methods = {
        "base": BASE,
        "better": BETTER,
        "third": [s + 0.004 * g for s, g in zip(BASE, RNG.standard_normal(8), strict=True)],
    }
    for name, scores in methods.items():
        put_scores(tmp_path, name, scores)
    found = compared(tmp_path, *methods)
    raw = [stats.ttest_rel(methods[c.ahead], methods[c.behind]).pvalue for c in found]
    assert len(found) == 3
    assert [c.concatenated.t_test for c in found] == pytest.approx(holm(raw))


def test_classes_are_drawn_by_their_mean_difference_over_runs(tmp_path: Path) -> None:
    """Twelve classes of 1 to 12 queries, and one in which no query counts, two runs each."""
    queries = [0, *range(1, 13)]
    values = np.random.default_rng(0).random((2, 2, 12)).round(3) / 2
    values[0] += 0.4
    for name, by_run in zip(("one", "other"), values, strict=True):
        for repetition, by_class in enumerate(by_run, start=1):
            per_class = {"concatenated": {"map_at_r": [None, *by_class.tolist()]}}
            changes: dict[str, Any] = {"per_class": per_class, "class_queries": queries}
            score = np.average(by_class, weights=queries[1:])
            put(tmp_path, make_record(name, repetition, score, **changes))
    (found,) = compared(tmp_path, "one", "other")
    differences = (values[0] - values[1]).mean(axis=0)
    assert found.classes == pytest.approx(class_intervals([differences.tolist()], queries[1:])[0])


@pytest.mark.parametrize(("classes", "claimed"), [(9, False), (10, True)])
def test_of_few_test_classes_no_difference_is_called_real(
    tmp_path: Path, classes: int, claimed: bool
) -> None:
    for name, scores in (("base", BASE), ("better", BETTER)):
        for repetition, score in enumerate(scores, start=1):
            per_class = {"concatenated": {"map_at_r": [score] * classes}}
            changes: dict[str, Any] = {"per_class": per_class, "class_queries": [2] * classes}
            put(tmp_path, make_record(name, repetition, score, **changes))
    (found,) = compared(tmp_path, "base", "better")
    assert (found.classes is not None) == claimed
    assert ("better is better than base" in in_words(found)) == claimed
    assert ("it takes 10 of them, not 9" in in_words(found)) == (not claimed)


def test_too_few_reproductions_get_no_p_value_but_a_sentence(tmp_path: Path) -> None:
    put_scores(tmp_path, "base", BASE[:4])
    put_scores(tmp_path, "better", BETTER[:4])
    (found,) = compared(tmp_path, "base", "better")
    assert found.concatenated.t_test is None and found.separated.t_test is None
    assert found.separated.n == 4
    assert "over 4 reproductions: too few to say whether that is real" in in_words(found)


def test_methods_without_a_shared_run_are_not_compared(tmp_path: Path) -> None:
    put_scores(tmp_path, "base", BASE)
    put_scores(tmp_path, "better", BETTER, seed=1)
    (found,) = compared(tmp_path, "base", "better")
    assert in_words(found) == "base and better share no reproduction on cub: nothing is paired."


@pytest.mark.parametrize(
    ("gains", "by_class", "words"),
    [
        ([0.01, 0.012, 0.011, 0.013, 0.01], [0.01, 0.02, 0.01], "better is better than base by"),
        ([0.01, 0.012, 0.011, 0.013, 0.01], [0.1, -0.2, -0.1], "other test classes might"),
        ([0.01, -0.02, 0.011, 0.01, 0.01], [0.01, 0.02, 0.01], "No difference between"),
    ],
    ids=["real", "hangs on the classes", "noise"],
)
def test_a_sentence_claims_no_more_than_was_shown(
    tmp_path: Path, gains: list[float], by_class: list[float], words: str
) -> None:
    for name, step in (("base", 0.0), ("better", 1.0)):
        for repetition, gain in enumerate(gains, start=1):
            per_class = {"concatenated": {"map_at_r": [0.5 + step * c for c in by_class * 4]}}
            put(tmp_path, make_record(name, repetition, 0.5 + step * gain, per_class=per_class))
    (found,) = compared(tmp_path, "base", "better")
    assert words in in_words(found)
    assert "95 % interval over test classes" in in_words(found)
    assert "paired over 5 reproductions p " in in_words(found)


def test_the_sentence_of_a_worked_example() -> None:
    result = Comparison("cub", "map_at_r", "ccp", "ms", *2 * (PAIRED,), (0.003, 0.021), tests=3)
    assert in_words(result) == (
        "ccp is better than ms by 1.20 points of MAP@R on cub (95 % interval over test classes "
        "0.30 to 2.10; paired over 10 reproductions p = 0.003 after Holm)."
    )


@pytest.mark.parametrize(
    ("concatenated", "separated", "said"),
    [
        ((0.012, 0.003), (-0.038, 0.0004), "not concatenated, ms is ahead by 3.80 (p < 0.001)."),
        ((0.002, 0.4), (0.01, 0.02), "not concatenated, ccp is ahead by 1.00 (p = 0.02)."),
        ((0.012, 0.003), (0.01, 0.02), None),  # the same
        ((0.012, 0.003), (-0.01, 0.2), None),  # no difference
    ],
)
def test_a_sentence_tells_where_single_models_say_otherwise(
    concatenated: tuple[float, float], separated: tuple[float, float], said: str | None
) -> None:
    both = [
        replace(PAIRED, mean=mean, t_test=p_value) for mean, p_value in (concatenated, separated)
    ]
    words = in_words(Comparison("cub", "map_at_r", "ccp", "ms", *both, (0.003, 0.021)))
    assert words.endswith(said or "p = 0.003).")


def test_older_records_without_classes_are_compared_over_seeds(tmp_path: Path) -> None:
    put_scores(tmp_path, "base", BASE, per_class={}, class_queries=[])
    put_scores(tmp_path, "better", BETTER)
    (found,) = compared(tmp_path, "base", "better")
    assert found.classes is None
    assert "the records keep no MAP@R of classes" in in_words(found)
    # A test that could not be made is none that was passed.
    assert "other test classes might" in in_words(found) and "is better" not in in_words(found)


def test_two_names_of_one_method_and_unknown_metrics_are_refused(tmp_path: Path) -> None:
    table = put_scores(tmp_path, "ccp-c2", BASE)
    with pytest.raises(HarnessError, match="ccp and ccp-c2 are names of one method, ccp-c2"):
        compare([table], ["ccp", "ccp-c2"], "map_at_r", [], full_name)
    with pytest.raises(HarnessError, match="no metric named 'map_at_k'"):
        harness.compare("ccp", "c2", metric="map_at_k", results_dir=str(tmp_path))


def test_ranks_are_averaged_over_data_sets(tmp_path: Path) -> None:
    for dataset, order in (("cub", "abc"), ("cars", "bac"), ("sop", "abc")):
        for place, name in enumerate(order):
            put_scores(tmp_path, name, [0.5 - 0.1 * place], dataset=dataset)
    tables = [tmp_path / "mlrc" / f"{name}-bninception" for name in ("cub", "cars", "sop")]
    ranks = compare(tables, ["a", "b", "c"], "map_at_r", [])[1]
    assert dict(zip(ranks.methods, ranks.ranks, strict=True)) == pytest.approx(
        {"a": 4 / 3, "b": 5 / 3, "c": 3}
    )
    assert ranks.p_value is None


def test_a_table_is_found_by_data_set_protocol_and_trunk(tmp_path: Path) -> None:
    put_scores(tmp_path, "a", [0.5])
    put_scores(tmp_path, "a", [0.5], dataset="folder_birds")
    found = find_table(tmp_path, "mlrc", "cub", None)
    assert found == find_table(tmp_path, "mlrc", "cub", "bninception")
    assert (
        find_table(tmp_path, "mlrc", "folder:/some/birds", None).name == "folder_birds-bninception"
    )
    put_scores(tmp_path, "a", [0.5], trunk="convnet")
    put_scores(tmp_path, "a", [0.5], trunk="timm:resnet18")
    assert find_table(tmp_path, "mlrc", "cub", "timm:resnet18").name == "cub-timm_resnet18"
    with pytest.raises(HarnessError, match="several trunks on cub under mlrc; name one: --trunk"):
        find_table(tmp_path, "mlrc", "cub", None)
    with pytest.raises(HarnessError, match=r"under protocol frozen .* there are\n  mlrc: cub"):
        find_table(tmp_path, "frozen", "cub", None)


def test_the_command_prints_a_table_and_a_sentence_per_pair(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, scores in {"base": BASE, "ccp-c2": BETTER, "ms": BASE[::-1]}.items():
        for dataset in ("cub", "cars"):
            put_scores(tmp_path, name, scores, dataset=dataset)
    where = ["--dataset", "cub", "--dataset", "cars", "--results-dir", str(tmp_path)]
    assert main(["compare", "base", "ccp", "ms", *where]) == 0  # ccp is an alias
    text = capsys.readouterr().out
    assert text.count("\n- ") == 6 and "ccp-c2 is better than base" in text
    assert "Mean rank over 2 data sets: ccp-c2 1.00" in text
    assert "A Friedman test takes three methods and five data sets." in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["base"], "compare takes two or more methods"),
        (["base", "bse"], "Did you mean 'base'"),
        (["base", "other", "--metric", "map"], "no metric named 'map'"),
        (["base", "other", "--dataset", "cars"], "no results for cars"),
    ],
)
def test_what_cannot_be_compared_is_a_message(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put_scores(tmp_path, "base", BASE)
    put_scores(tmp_path, "other", BASE)
    where = ["--dataset", "cub"] if "--dataset" not in arguments else []
    assert main(["compare", *arguments, *where, "--results-dir", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err
