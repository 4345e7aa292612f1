"""`harness compare` and its words."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from made_records import put_scores

import harness
from harness.cli import main
from harness.errors import HarnessError
from harness.judgement.judge import judge
from harness.judgement.words import sentence, short_answer
from harness.records.layout import find_table

RNG = np.random.default_rng(0)
BASE = (0.5 + 0.02 * RNG.standard_normal(8)).tolist()
BETTER = [score + 0.01 + 0.005 * RNG.standard_normal() for score in BASE]


def words(results: Path, one: str, other: str) -> str:
    (table,) = judge(results).tables
    pair = table.pair(one, other)
    assert pair is not None
    return sentence(table, pair)


def test_a_sentence_names_difference_interval_test_and_scope(tmp_path: Path) -> None:
    put_scores(tmp_path, "base", BASE)
    put_scores(tmp_path, "better", BETTER)
    (pair,) = harness.compare("base", "better", dataset="cub", results_dir=str(tmp_path))
    estimate = pair.estimate
    assert estimate.low is not None and estimate.high is not None and pair.holm_p is not None
    assert words(tmp_path, "base", "better") == (
        f"better is better than base by {100 * estimate.difference:.2f} points of MAP@R on cub "
        f"(95% interval {100 * estimate.low:.2f} to {100 * estimate.high:.2f}; p = "
        f"{pair.holm_p:.2g}; one search each: search noise not measured)."
    )


def test_a_pair_of_one_search_each_says_what_would_measure_its_noise(tmp_path: Path) -> None:
    """The lead is clear over classes and hidden by the seeds."""
    put_scores(tmp_path, "base", BASE)
    put_scores(tmp_path, "ahead", [s + 0.01 * n for s, n in zip(BASE, range(-3, 5), strict=True)])
    said = words(tmp_path, "base", "ahead")
    assert said.startswith(
        "Not decided: 3 searches each (4 more, about 2 hours) would measure the search noise. "
        "ahead is ahead of base by 0.50 points"
    )


def test_too_few_reproductions_are_said_in_words(tmp_path: Path) -> None:
    put_scores(tmp_path, "base", BASE[:4])
    put_scores(tmp_path, "better", BETTER[:4])
    said = words(tmp_path, "base", "better")
    assert said.startswith("Not decided: too few shared reproductions (5 are needed).")


def test_an_unequal_budget_is_named_by_its_trials(tmp_path: Path) -> None:
    search = {"trials": 4, "asked": {"trials": 50, "reproductions": 10}}
    put_scores(tmp_path, "base", BETTER)
    put_scores(tmp_path, "mine", BASE, search=search)
    (table,) = judge(tmp_path).tables
    pair = table.pair("base", "mine")
    assert pair is not None
    assert short_answer(table, pair) == "not decided: mine had 4 of 50 trials"


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
    assert main(["compare", "base", "ms", *where, "--metric", "p_at_1"]) == 0
    assert "P-values are not corrected" in capsys.readouterr().out


def test_compare_and_verdict_have_one_p_value_for_a_pair(tmp_path: Path) -> None:
    for place, name in enumerate(("base", "other", "third")):
        put_scores(tmp_path, name, [score + 0.002 * place for score in BASE])
    (pair,) = harness.compare("base", "other", dataset="cub", results_dir=str(tmp_path))
    table = harness.judge(results_dir=str(tmp_path), against="none").tables[0]
    assert table.pair("base", "other") == pair
    (of_one,) = harness.judge("base", results_dir=str(tmp_path), against="none").tables
    assert {p.holm_p for p in of_one.pairs} <= {p.holm_p for p in table.pairs}


def test_two_names_of_one_method_are_refused(tmp_path: Path) -> None:
    put_scores(tmp_path, "ccp-c2", BASE)
    with pytest.raises(HarnessError, match="ccp and ccp-c2 are names of one method, ccp-c2"):
        harness.compare("ccp", "ccp-c2", dataset="cub", results_dir=str(tmp_path))


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
