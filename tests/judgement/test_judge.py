"""Judging tables of made-up records."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_records import QUERIES, make_record, put
from scipy import stats

from harness import registry
from harness.errors import HarnessError
from harness.judgement.declared import OLDER_CORNERS, OLDER_RIVALS
from harness.judgement.judge import find_stored, judge
from harness.judgement.judged import (
    Answer,
    Beats,
    Budget,
    FamilyKind,
    JudgedPair,
    JudgedTable,
    Reason,
    Scope,
)

ROOT = Path(__file__).parents[2]
CLASS_NOISE = 0.004
LOG = {"low": 1e-5, "high": 0.1, "log": True}


def put_row(
    results: Path,
    method: str,
    mean: float,
    *,
    searches: Sequence[float] = (0.0,),
    runs: int = 10,
    seed_noise: float = 0.001,
    p_at_1: float | None = None,
    separated: float | None = None,
    search: dict[str, Any] | None = None,
    **changes: Any,
) -> None:
    """Records of a row whose searches deviate from its mean, with noise of seeds and classes.

    Args:
        p_at_1, separated: its P@1, and its MAP@R of single models; MAP@R without them.
    """
    rng = np.random.default_rng([*map(ord, method)])
    profile = CLASS_NOISE * rng.standard_normal(len(QUERIES))
    profile -= np.average(profile, weights=QUERIES)
    facts = {**make_record().search, **(search or {})}
    for seed, shift in enumerate(searches):
        for repetition in range(1, runs + 1):
            noise = shift + seed_noise * rng.standard_normal()
            levels = {"map_at_r": mean, "p_at_1": mean if p_at_1 is None else p_at_1}
            single = {**levels, "map_at_r": mean if separated is None else separated}
            scores, per_class = {}, {}
            for embedding, of in (("concatenated", levels), ("separated", single)):
                scores[embedding] = {m: v + noise for m, v in {**of, "r_precision": mean}.items()}
                per_class[embedding] = {m: (v + noise + profile).tolist() for m, v in of.items()}
            fields = {"scores": scores, "per_class": per_class, "search": facts, "seed": seed}
            put(results, make_record(method, repetition, **{**fields, **changes}), f"d{seed}")


def put_no_training(results: Path, score: float, **changes: Any) -> None:
    put(results, make_record("pretrained", 0, score, kind="naive", folds=[], search={}, **changes))


def judged(results: Path, stored: Path | None = None) -> JudgedTable:
    (table,) = judge(results, stored).tables
    return table


def pair_of(table: JudgedTable, one: str, other: str) -> JudgedPair:
    pair = table.pair(one, other)
    assert pair is not None
    return pair


# Three searches that differ by a third of a point.
THREE = (-0.003, 0.0, 0.003)


def test_the_difference_of_searched_rows_has_search_seed_and_class_noise(tmp_path: Path) -> None:
    """The whole formula, by hand."""
    put_row(tmp_path, "ms", 0.42, searches=THREE)
    put_row(tmp_path, "triplet", 0.40, searches=(-0.004, 0.002, 0.001))
    put_row(tmp_path, "margin", 0.38, searches=(0.0, 0.001))
    table = judged(tmp_path)
    records = {
        name: [
            [r for r in _records(tmp_path, name) if r.identity["seed"] == seed]
            for seed in range(count)
        ]
        for name, count in (("ms", 3), ("triplet", 3), ("margin", 2))
    }
    means = {
        name: [np.mean([r.scores["concatenated"]["map_at_r"] for r in row]) for row in rows]
        for name, rows in records.items()
    }
    shared = sum((len(m) - 1) * np.var(m, ddof=1) for m in means.values()) / 5
    variance, freedom = 0.0, 0.0
    for name in ("ms", "triplet"):
        own = (4 * shared + 2 * np.var(means[name], ddof=1)) / 6 / 3
        variance, freedom = variance + own, freedom + own**2 / 6
    classes = [
        np.mean(
            [np.mean([r.per_class["concatenated"]["map_at_r"] for r in row], 0) for row in rows], 0
        )
        for rows in (records["ms"], records["triplet"])
    ]
    difference = np.mean(means["ms"]) - np.mean(means["triplet"])
    q = np.array(QUERIES)
    squares = sum(q**2 * (classes[0] - classes[1] - difference) ** 2)
    of_classes = len(q) / (len(q) - 1) * squares / sum(q) ** 2
    variance, freedom = variance + of_classes, freedom + of_classes**2 / (len(q) - 1)
    estimate = pair_of(table, "ms", "triplet").estimate
    assert estimate.difference == pytest.approx(difference)
    assert estimate.error == pytest.approx(np.sqrt(variance))
    assert estimate.freedom == pytest.approx(variance**2 / freedom)
    p = 2 * stats.t.sf(difference / np.sqrt(variance), variance**2 / freedom)
    assert estimate.p == pytest.approx(p)
    assert pair_of(table, "ms", "triplet").scope is Scope.SEARCHES


def _records(results: Path, method: str) -> list[Any]:
    from harness.records.rows import read_tests

    (table,) = results.glob("*/*")
    return [r for r in read_tests(table, []) if r.identity["method"] == method]


def test_old_records_of_one_search_each_are_paired_by_seed(tmp_path: Path) -> None:
    put_row(tmp_path, "ms", 0.42)
    put_row(tmp_path, "triplet", 0.40)
    pair = pair_of(judged(tmp_path), "ms", "triplet")
    runs = [
        [r.scores["concatenated"]["map_at_r"] for r in _records(tmp_path, name)]
        for name in ("ms", "triplet")
    ]
    differences = np.subtract(*runs)
    assert pair.scope is Scope.ONE_SEARCH and pair.answer is Answer.BETTER
    assert pair.estimate.difference == pytest.approx(differences.mean())
    assert pair.estimate.error is not None
    assert pair.estimate.error**2 > differences.var(ddof=1) / 10  # and the classes
    assert pair.outperforming is None  # nobody knows what another search would find


def test_copies_of_one_loss_are_not_called_different_once_search_noise_is_measured(
    tmp_path: Path,
) -> None:
    """Five searches of one loss differ by more than their seeds do."""
    shifts = np.random.default_rng(0).normal(0, 0.005, (5, 3))
    for number, searches in enumerate(shifts):
        put_row(tmp_path, f"copy{number}", 0.43, searches=searches.tolist())
    table = judged(tmp_path)
    assert len(table.pairs) == 10
    assert not any(pair.separated for pair in table.pairs)
    assert {row.letters for row in table.rows} == {"A"}


def test_a_row_of_one_search_takes_its_noise_from_the_others(tmp_path: Path) -> None:
    put_row(tmp_path, "ms", 0.43, searches=THREE)
    put_row(tmp_path, "triplet", 0.40, searches=THREE)
    put_row(tmp_path, "margin", 0.38)
    table = judged(tmp_path)
    assert pair_of(table, "ms", "margin").scope is Scope.BORROWED
    assert table.by_name["margin"].scope is Scope.BORROWED
    width, borrowed = (table.by_name[name].score.half_width for name in ("ms", "margin"))
    assert width is not None and borrowed is not None and borrowed > width


def test_too_few_runs_or_classes_decide_nothing(tmp_path: Path) -> None:
    put_row(tmp_path, "ms", 0.43, runs=4)
    put_row(tmp_path, "triplet", 0.40, runs=4)
    pair = pair_of(judged(tmp_path), "ms", "triplet")
    assert (pair.answer, pair.reason) == (Answer.NOT_DECIDED, Reason.FEW_RUNS)
    assert pair.holm_p is None and pair.bound is None
    few: dict[str, Any] = {"class_queries": [4] * 9, "per_class": {}, "dataset": "cars"}
    few["per_class"] = {"concatenated": {"map_at_r": [0.4] * 9}}
    for method in ("ms", "triplet"):
        put_row(tmp_path, method, 0.4, **few)
    cars, _ = judge(tmp_path).tables
    assert pair_of(cars, "ms", "triplet").reason is Reason.FEW_CLASSES
    none = {"per_class": {}, "class_queries": [], "dataset": "sop"}
    for method in ("ms", "triplet"):
        put_row(tmp_path, method, 0.4, **none)
    sop = judge(tmp_path).tables[-1]
    assert pair_of(sop, "ms", "triplet").reason is Reason.NO_CLASSES


def test_every_pair_is_in_one_family_and_has_one_p_value(tmp_path: Path) -> None:
    for place, method in enumerate(("proxynca", "proxynca++", "proxygml", "softtriple", "ms")):
        put_row(tmp_path, method, 0.40 + 0.004 * place, searches=THREE)
    put_no_training(tmp_path, 0.3)
    table = judged(tmp_path)
    assert len(table.pairs) == len({frozenset((p.method, p.rival)) for p in table.pairs}) == 15
    planned = {(p.method, p.rival) for p in table.pairs if p.family == FamilyKind.PLANNED.value}
    assert planned == {
        ("proxynca++", "proxynca"),
        ("proxygml", "softtriple"),
        ("proxygml", "proxynca"),
    }
    tests = {family.kind: family.tests for family in table.families}
    assert tests == {FamilyKind.PLANNED: 3, FamilyKind.OTHERS: 7, FamilyKind.NO_TRAINING: 5}
    assert table.error_rate == pytest.approx(0.15)


def test_a_planned_pair_counts_before_its_rival_has_records(tmp_path: Path) -> None:
    put_row(tmp_path, "c2", 0.40, searches=THREE)
    put_row(tmp_path, "ccp-c2", 0.41, searches=THREE, search={"base": "c2"})
    table = judged(tmp_path)
    (family,) = table.families
    pair = pair_of(table, "ccp-c2", "c2")
    assert (table.missing, family.tests) == ((("ccp-c2", "c2-xbm"),), 2)
    assert pair.holm_p == pytest.approx(2 * (pair.estimate.p or 0))


def test_answers_about_stored_rows_do_not_change_when_a_user_adds_rows(tmp_path: Path) -> None:
    """Not even if the user's rows are searched often and would tell the noise of searches."""
    own, stored = tmp_path / "own", tmp_path / "stored"
    for place, method in enumerate(("ms", "triplet", "margin")):
        put_row(stored, method, 0.40 + 0.003 * place)
    alone = judged(stored)
    put_row(own, "mine@aaaaaaaa", 0.45, searches=THREE)
    put_row(own, "mine@bbbbbbbb", 0.35, searches=(-0.02, 0.0, 0.02))
    table = judged(own, stored)
    for one, other in combinations(("ms", "triplet", "margin"), 2):
        before, after = pair_of(alone, one, other), pair_of(table, one, other)
        assert after.estimates == before.estimates
        assert (after.holm_p, after.answer) == (before.holm_p, before.answer)
    against = [f for f in table.families if f.kind is FamilyKind.OWN_ROW]
    assert [family.tests for family in against] == [3, 3]


def test_a_method_that_both_places_have_is_two_rows(tmp_path: Path) -> None:
    own, stored = tmp_path / "own", tmp_path / "stored"
    later = {**make_record().provenance, "time": "2026-02-01T00:00:00+00:00"}
    put_row(stored, "ms", 0.40)
    put_row(own, "ms", 0.42, provenance=later)
    put_no_training(stored, 0.3)
    put_no_training(own, 0.3, provenance=later)  # draws nothing: the same row
    table = judged(own, stored)
    assert [(row.name, row.stored) for row in table.rows] == [
        ("ms", False),
        ("ms (stored)", True),
        ("pretrained", True),
    ]
    assert pair_of(table, "ms", "ms (stored)").method == "ms"


def test_a_copy_of_stored_records_is_no_second_row(tmp_path: Path) -> None:
    own, stored = tmp_path / "own", tmp_path / "stored"
    for folder in (own, stored):
        put_row(folder, "ms", 0.40)
    assert [row.name for row in judged(own, stored).rows] == ["ms"]


def test_stored_rows_of_other_images_are_left_out_in_one_sentence(tmp_path: Path) -> None:
    own, stored = tmp_path / "own", tmp_path / "stored"
    put_row(stored, "ms", 0.40, data_fingerprint="d2")
    put_row(own, "mine@aaaaaaaa", 0.42)
    judgement = judge(own, stored)
    assert [row.name for row in judgement.tables[0].rows] == ["mine@aaaaaaaa"]
    (problem,) = judgement.problems
    assert "another version of the trainval images (d2 in the stored rows, d1 in yours)" in problem


@pytest.mark.parametrize(
    ("score", "trials", "rival_trials", "answer"),
    [
        (0.35, 4, 50, Answer.NOT_DECIDED),
        (0.45, 4, 50, Answer.BETTER),
        (0.35, 50, 50, Answer.WORSE),
        (0.35, 20, 20, Answer.WORSE),  # neither had more
    ],
)
def test_a_row_with_fewer_trials_is_not_called_worse(
    tmp_path: Path, score: float, trials: int, rival_trials: int, answer: Answer
) -> None:
    put_row(tmp_path, "ms", 0.40, search={"trials": rival_trials})
    put_row(tmp_path, "mine", score, search={"trials": trials})
    table = judged(tmp_path)
    pair = pair_of(table, "mine", "ms")
    found = pair.answer
    if pair.method == "ms" and pair.separated:
        found = Answer.BETTER if pair.answer is Answer.WORSE else Answer.WORSE
    assert found is answer
    assert (pair.reason is Reason.UNDER_BUDGET) == (answer is Answer.NOT_DECIDED)
    row = table.by_name["mine"]
    assert (row.budget is Budget.SHORT) == (trials < 50)
    assert (row.trials, row.asked) == (trials, 50)


def test_a_row_that_coincides_with_its_base_is_never_separated_from_it(tmp_path: Path) -> None:
    search = {"base": "proxyanchor", "corner": {"weight": 1e-3}, "ranges": {"weight": LOG}}
    put_row(tmp_path, "proxyanchor", 0.40)
    for weight, coincides in ((2e-3, True), (0.05, False)):
        put_row(tmp_path, "mine", 0.45, params={"weight": weight}, search=search)
        pair = pair_of(judged(tmp_path), "mine", "proxyanchor")
        assert pair.separated != coincides
        assert (pair.reason is Reason.COINCIDES) == coincides
        assert pair.holm_p is not None and pair.holm_p < 0.05


def test_rows_that_are_equal_within_the_margin_are_equivalent(tmp_path: Path) -> None:
    for place, method in enumerate(("ms", "triplet")):
        put_row(tmp_path, method, 0.40 + 0.0005 * place, searches=(0.0, 0.0002, -0.0002))
    pair = pair_of(judged(tmp_path), "ms", "triplet")
    assert pair.bound is not None and pair.bound < 0.005
    assert pair.answer is Answer.EQUIVALENT
    (table,) = judge(tmp_path, margin=0.0001).tables
    assert pair_of(table, "ms", "triplet").answer is Answer.NOT_DECIDED


def test_a_pair_within_the_noise_says_what_would_decide_it(tmp_path: Path) -> None:
    for method, mean in (("ms", 0.405), ("triplet", 0.40)):
        put_row(tmp_path, method, mean, searches=THREE)
    pair = pair_of(judged(tmp_path), "ms", "triplet")
    assert (pair.answer, pair.reason) == (Answer.NOT_DECIDED, Reason.NOISE)
    assert pair.needed is not None and pair.needed.searches > 3
    assert pair.needed.further == 2 * (pair.needed.searches - 3)
    # 50 trials and 10 reproductions of 4 models, 8 seconds each
    assert pair.needed.seconds == pytest.approx(pair.needed.further * 60 * 4 * 8.0)
    assert pair.outperforming is not None
    assert pair.outperforming.low < pair.outperforming.probability < pair.outperforming.high


def test_better_than_no_training_counts_every_score(tmp_path: Path) -> None:
    """Ahead of PCA in MAP@R, and behind it in P@1 or as single models."""
    put_row(tmp_path, "ms", 0.42)
    put_row(tmp_path, "triplet", 0.41, p_at_1=0.30)
    put_row(tmp_path, "margin", 0.40, separated=0.30)
    put_no_training(tmp_path, 0.35)
    rows = judged(tmp_path).by_name
    assert rows["ms"].beats_no_training is Beats.YES
    assert rows["triplet"].beats_no_training is Beats.IN_PART
    assert rows["triplet"].behind_no_training == (
        ("concatenated", "p_at_1"),
        ("separated", "p_at_1"),
    )
    assert rows["margin"].behind_no_training == (("separated", "map_at_r"),)
    pair = pair_of(judged(tmp_path), "margin", "pretrained")
    assert pair.answer is Answer.BETTER
    assert pair.contradictions == (("separated", "map_at_r"),)


def test_fixed_parameters_are_compared_over_reproductions(tmp_path: Path) -> None:
    for method, mean in (("ms", 0.42), ("triplet", 0.40)):
        put_row(tmp_path, method, mean, search={"trials": 0})
    pair = pair_of(judged(tmp_path), "ms", "triplet")
    assert (pair.scope, pair.answer) == (Scope.FIXED, Answer.BETTER)
    assert judged(tmp_path).by_name["ms"].budget is Budget.FIXED


def test_records_without_declarations_are_of_methods_that_declare_them_now() -> None:
    for name, rivals in OLDER_RIVALS.items():
        assert registry.load_method(name).compared_with == rivals
    for name, corner in OLDER_CORNERS.items():
        base = registry.load_method(name).base
        assert base is not None and base.almost_base_at == corner


def test_every_declared_rival_is_a_method() -> None:
    for name in registry.names("loss"):
        method = registry.load_method(name)
        for rival in method.compared_with:
            registry.load_method(rival)


def test_two_claims_on_cub_that_combined_noise_does_not_carry_are_gone() -> None:
    frozen = judge(ROOT / "results", wanted=lambda table: table.parent.name == "frozen")
    cub = next(table for table in frozen.tables if table.dataset == "cub")
    for one, other in (("contrastive", "ccp-c2"), ("proxygml", "softtriple")):
        pair = pair_of(cub, one, other)
        assert pair.answer is Answer.NOT_DECIDED and pair.scope is Scope.ONE_SEARCH


def test_stored_results_are_those_of_the_package_unless_they_are_ones_own(tmp_path: Path) -> None:
    stored = find_stored(tmp_path, None)
    assert stored is not None and stored.samefile(ROOT / "results")
    assert find_stored(ROOT / "results", None) is None
    assert find_stored(tmp_path, "none") is None
    assert find_stored(ROOT / "results", str(tmp_path)) == tmp_path
    with pytest.raises(HarnessError, match="no folder at nowhere"):
        find_stored(tmp_path, "nowhere")


def test_a_folder_without_records_is_a_message(tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match="no records in"):
        judge(tmp_path)
