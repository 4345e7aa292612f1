"""The verdict: what tables answer, what they cannot, and where a loss of one's own stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_records import make_record, put, put_scores
from scipy import stats
from test_imports import modules_after

from harness import registry
from harness.cli import main
from harness.errors import HarnessError
from harness.judgement.almost_base import almost_base
from harness.judgement.questions import OLD, PROPOSED, SYSTEMS
from harness.judgement.stats import critical_difference, holm
from harness.losses import baselines
from harness.records.records import TEST_SELECTED
from harness.verdicts.verdict import (
    JudgedTable,
    Outcome,
    Verdict,
    find_stored,
    judge,
    read_tables,
    stand,
)

ROOT = Path(__file__).parents[2]

RNG = np.random.default_rng(0)
RUNS = 10
NOISE = 0.002 * RNG.standard_normal((8, RUNS))


def scores_around(mean: float, stream: int = 0) -> list[float]:
    """Of ten runs; the same stream has the same ups and downs."""
    return (mean + NOISE[stream]).tolist()


def tables_in(results: Path, stored: Path | None = None) -> list[JudgedTable]:
    return read_tables(results, stored, [], lambda table: True)


def judged(results: Path) -> Verdict:
    return judge(tables_in(results))


def outcomes(verdict: Verdict, question: str) -> dict[tuple[str, str, str], Outcome]:
    (claim,) = [claim for claim in verdict.systems if question in claim.question]
    return {(a.table.dataset, a.method, a.rival): a.outcome for a in claim.answers}


def test_the_papers_methods_are_asked_about_their_declared_bases() -> None:
    for system in SYSTEMS:
        for name, rivals in system.rivals.items():
            base = registry.load_method(name).base
            assert base is None or (rivals[0], system.corner) == (base.name, base.almost_base_at)
            for rival in rivals:
                registry.load_method(rival)


LOG, LINEAR = {"low": 1e-5, "high": 0.1, "log": True}, {"low": 0.0, "high": 1.0, "log": False}


@pytest.mark.parametrize(
    ("method", "params", "almost"),
    [
        ("hpl-pa", {"coarse_weight": 0.005}, True),
        ("hpl-pa", {"coarse_weight": 0.0051}, False),
        ("hpl-pa", {}, False),
        ("ccp-c2", {"reference_weight": 1e-5, "batch_share": 0.96}, True),
        ("ccp-c2", {"reference_weight": 1e-5, "batch_share": 0.9}, False),
        ("ccp-c2", {"reference_weight": 1e-3, "batch_share": 1.0}, False),
        ("proxyanchor", {"alpha": 1.0}, False),
    ],
)
def test_a_method_is_almost_its_base_where_all_of_its_own_parameters_are(
    method: str, params: dict[str, float], almost: bool
) -> None:
    ranges = {name: LINEAR if name == "batch_share" else LOG for name in params}
    record = make_record(method, params=params, search={"ranges": ranges, "base": "its base"})
    assert almost_base(record) == ("its base" if almost else "")


def test_a_loss_of_ones_own_says_itself_where_it_is_almost_its_base() -> None:
    search = {"base": "c2", "corner": {"weight": 0.01}, "ranges": {"weight": LOG}}
    for weight, almost in ((0.002, "c2"), (0.06, "")):
        record = make_record("mine", params={"weight": weight}, search=search)
        assert almost_base(record) == almost


def test_every_method_is_old_or_proposed_or_a_control_of_a_proposed_one() -> None:
    """A base that is left out would be missing from what the papers must beat."""
    assert {method.name for method in baselines.METHODS} <= set(OLD)
    controls = {name for name in registry.names("loss") if name.startswith("relation-")}
    truths = {name for name in registry.names("loss") if name.endswith("-gt")}
    assert set(registry.names("loss")) == {*OLD, *PROPOSED, *controls, *truths}


def test_each_question_has_the_answer_that_its_test_gives(tmp_path: Path) -> None:
    put_scores(tmp_path, "proxynca", scores_around(0.40, 0))
    put_scores(tmp_path, "proxynca++", scores_around(0.42, 1))
    put_scores(tmp_path, "hpl-nca", scores_around(0.38, 2))
    put_scores(tmp_path, "softtriple", scores_around(0.30, 3)[:3])
    put_scores(tmp_path, "proxygml", scores_around(0.40, 4))
    verdict = judged(tmp_path)
    assert outcomes(verdict, "ProxyNCA++") == {("cub", "proxynca++", "proxynca"): Outcome.YES}
    assert outcomes(verdict, "HPL") == {("cub", "hpl-nca", "proxynca"): Outcome.WORSE}
    assert outcomes(verdict, "SoftTriple") == {
        ("cub", "proxygml", "softtriple"): Outcome.UNTESTED,
        ("cub", "proxygml", "proxynca"): Outcome.NOT_SHOWN,
    }


def test_p_values_are_corrected_for_all_questions_together(tmp_path: Path) -> None:
    means = {"proxynca": 0.4, "proxynca++": 0.402, "hpl-nca": 0.401, "proxygml": 0.403}
    runs = {name: scores_around(mean, i) for i, (name, mean) in enumerate(means.items())}
    for name, scores in runs.items():
        put_scores(tmp_path, name, scores)
    verdict = judged(tmp_path)
    # Each against proxynca, which is also the best of the old ones: asked twice, tested once.
    rivals = [(name, "proxynca") for name in ("proxynca++", "proxygml", "hpl-nca")]
    expected = holm([stats.ttest_rel(runs[a], runs[b]).pvalue for a, b in rivals])
    answers = [a for claim in (*verdict.systems, verdict.against_old) for a in claim.answers]
    assert (verdict.tests, len(answers)) == (3, 6)
    found = {(a.method, a.comparison.concatenated.t_test) for a in answers}
    by_name = {name: p for (name, _), p in zip(rivals, expected, strict=True)}
    assert {name for name, _ in found} == set(by_name)
    for name, p_value in found:
        assert p_value == pytest.approx(by_name[name], rel=1e-9)


def test_a_lead_that_other_test_classes_might_reverse_is_no_yes(tmp_path: Path) -> None:
    for repetition, score in enumerate(scores_around(0.4), start=1):
        put(tmp_path, make_record("proxynca", repetition, score))
        lead = {"map_at_r": [0.9, *[0.2] * 11], "p_at_1": [0.5] * 12}  # of one class alone
        record = make_record("proxynca++", repetition, score + 0.02)
        put(
            tmp_path,
            make_record(
                "proxynca++",
                repetition,
                score + 0.02,
                per_class={"concatenated": lead, "separated": record.per_class["separated"]},
            ),
        )
    (outcome,) = outcomes(judged(tmp_path), "ProxyNCA++").values()
    assert outcome is Outcome.PERHAPS


def test_the_best_of_the_old_ones_is_what_the_five_must_beat(tmp_path: Path) -> None:
    put_scores(tmp_path, "ms", scores_around(0.40, 0))
    put_scores(tmp_path, "contrastive", scores_around(0.41, 1))
    put_scores(tmp_path, "relation-pa", scores_around(0.60, 2))  # neither old nor one of the five
    put_scores(tmp_path, "ccp-c2", scores_around(0.43, 3))
    put_scores(tmp_path, "drml-pa", scores_around(0.39, 4))
    claim = judged(tmp_path).against_old
    assert {(a.method, a.rival, a.outcome) for a in claim.answers} == {
        ("ccp-c2", "contrastive", Outcome.YES),
        ("drml-pa", "contrastive", Outcome.WORSE),
    }


def test_pca_has_no_seed_and_is_held_against_every_run(tmp_path: Path) -> None:
    runs = scores_around(0.40)
    put_scores(tmp_path, "ms", runs)
    put(tmp_path, make_record("pretrained", 0, 0.395, kind="naive", folds=[], search={}))
    (answer,) = judged(tmp_path).against_start.answers
    assert (answer.method, answer.rival) == ("ms", "pretrained")
    assert answer.comparison.concatenated.n == RUNS
    expected = stats.ttest_1samp(np.array(runs) - 0.395, 0).pvalue
    assert answer.comparison.concatenated.t_test == pytest.approx(expected)


def test_average_ranks_get_a_critical_difference_from_three_tables_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for dataset, order in (("cub", "abc"), ("cars", "acb")):
        for place, name in enumerate(order):
            put_scores(tmp_path, name, scores_around(0.4 - 0.05 * place), dataset=dataset)
    ranks = judged(tmp_path).ranks
    assert "Of two tables no critical difference" in said(tmp_path, capsys)
    assert ranks is not None
    assert ranks.methods[0] == "a" and ranks.ranks == [1.0, 2.5, 2.5]
    for place, name in enumerate("abcd"):  # d is not in the others
        put_scores(tmp_path, name, scores_around(0.4 - 0.05 * place), dataset="sop")
    ranks = judged(tmp_path).ranks
    assert ranks is not None and ranks.critical == critical_difference(3, 3)
    assert f"Ranks closer than {ranks.critical:.1f}" in said(tmp_path, capsys)
    assert dict(zip(ranks.methods, ranks.ranks, strict=True)) == pytest.approx(
        {"a": 1.0, "b": 7 / 3, "c": 8 / 3}
    )


def test_tables_that_share_too_few_methods_are_left_out_of_the_ranks_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """ms, c2 and margin on cub, ms and c2 on cars, ms alone on sop."""
    scores = {"ms": 0.5, "c2": 0.4, "margin": 0.45}
    for dataset, methods in (("cub", scores), ("cars", ("ms", "c2")), ("sop", ("ms",))):
        for method in methods:
            put_scores(tmp_path, method, scores_around(scores[method]), dataset=dataset)
    for arguments in ([], ["c2"]):
        text = said(tmp_path, capsys, *arguments)
        assert "Average ranks over cars and cub" in text
        assert "ms 1.0, c2 2.0." in text
        assert "Ranked among the 2 methods that all of these have." in text
        assert ("Not ranked, for want of shared methods: sop." in text) == (not arguments)


def test_one_large_model_is_not_judged(tmp_path: Path) -> None:
    put_scores(tmp_path, "ms", scores_around(0.40, 0))
    put_scores(tmp_path, "ccp-c2", scores_around(0.60, 1), kind="single")
    (table,) = tables_in(tmp_path)
    assert list(table.rows) == ["ms"]


def test_what_was_selected_on_the_test_classes_is_not_judged(tmp_path: Path) -> None:
    protocol = {**make_record().identity["protocol"], "name": "classic", "select": "test"}
    put_scores(tmp_path, "ms", scores_around(0.40, 0), kind=TEST_SELECTED, protocol=protocol)
    with pytest.raises(HarnessError, match="no records in"):
        tables_in(tmp_path)


def command(results: Path, *arguments: str) -> int:
    return main(["verdict", *arguments, "--results-dir", str(results), "--against", "none"])


def said(results: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert command(results, *arguments) == 0
    return capsys.readouterr().out


def test_the_text_has_answers_tests_doubts_and_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short: dict[str, Any] = {**make_record().search, "trials": 20}
    put_scores(tmp_path, "c2", scores_around(0.26, 0))
    put_scores(tmp_path, "ccp-c2", scores_around(0.28, 1), search=short)
    text = said(tmp_path, capsys)
    gain = 100 * np.mean(NOISE[1] - NOISE[0]) + 2
    assert (
        f"- **Yes.** ccp-c2 is better than c2 by {gain:.2f} points of MAP@R on cub (95 % interval "
        "over test classes"
    ) in text
    assert "paired over 10 reproductions p < 0.001" in text
    assert "Reasons to doubt: ccp-c2 (fewer trials or reproductions)." in text
    assert "- Not answered on cub: no records of ccp-c1, c1, c1-xbm, c2-xbm" in text
    assert "- Does ProxyNCA++ beat ProxyNCA? Not answered yet.\n" in text
    assert "### Does ProxyNCA++ beat" not in text  # nothing more to say of it
    assert re.search(
        r"harness search --loss proxynca\+\+ .*c2-xbm.* --dataset cub --protocol mlrc --trunk "
        r"bninception\nharness eval --loss proxynca\+\+",
        text,
    )


def test_of_single_runs_nothing_is_claimed_and_more_are_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put_scores(tmp_path, "c2", [0.25])
    put_scores(tmp_path, "ccp-c2", [0.28])
    text = said(tmp_path, capsys)
    too_few = "too few shared reproductions to say"
    assert "2 methods on cub.\n" in text  # no p-value, nothing to correct
    assert f"the best of the old ones? cub: {too_few}; the best old one is c2." in text
    assert f"**cub: T{too_few[1:]}.**" in text
    assert "| cub | ccp-c2 over c2 | MAP@R | +1.55 | +3.00 |  | CCP supplement" in text
    where = "--dataset cub --protocol mlrc --trunk bninception"
    assert f"\nharness eval --loss ccp-c2 c2 {where} --reproductions 5\n" in text
    alone = said(tmp_path, capsys, "ccp-c2")
    assert "over 1 reproduction. Nothing is claimed" in alone


def test_more_runs_of_fixed_parameters_are_asked_for_by_the_command_that_made_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = make_record()
    command = "harness eval --loss ccp --set params.x=2 --reproductions 1 --workers 2"
    changes: dict[str, Any] = {
        "search": {**record.search, "trials": 0},
        "provenance": {**record.provenance, "command": command},
    }
    put_scores(tmp_path, "c2", scores_around(0.25))
    put_scores(tmp_path, "ccp-c2", [0.28], **changes)
    text = said(tmp_path, capsys)
    again = "harness eval --loss ccp --set params.x=2 --workers 2 --reproductions 5"
    assert text.count(f"\n{again}\n") == 1


def test_a_method_alone_has_nobody_to_be_held_against(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put_scores(tmp_path, "c2", scores_around(0.25))
    text = said(tmp_path, capsys, "c2")
    assert "There is no other method to hold it against." in text and "|" not in text


def test_what_is_missing_would_be_searched_without_the_images_that_the_table_lacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for left_out in (0, 15):
        put_scores(tmp_path, "c2", scores_around(0.26), missing_images=left_out)
        text = said(tmp_path, capsys)
        assert ("15 images of cub are missing or broken." in text) == (left_out > 0)
        assert text.count("--trunk bninception --allow-missing\n") == (2 if left_out else 0)


def test_a_lead_that_was_found_almost_at_the_base_is_one_of_the_search(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put_scores(tmp_path, "proxyanchor", scores_around(0.40, 0))
    search = {**make_record().search, "base": "proxyanchor", "ranges": {"coarse_weight": LOG}}
    for weight, doubted in ((0.002, True), (0.5, False)):
        params = {"coarse_weight": weight}
        put_scores(tmp_path, "hpl-pa", scores_around(0.45, 1), params=params, search=search)
        text = said(tmp_path, capsys)
        answer = "no: one is almost the other" if doubted else "yes (cub)"
        assert f"hpl-pa against proxyanchor: {answer}" in text
        assert ("hpl-pa is better than proxyanchor" in text) != doubted
        assert ("hpl-pa (best where it is almost its base)" in text) == doubted
        apart = 5 + 100 * np.mean(NOISE[1] - NOISE[0])
        luck = f"hpl-pa and proxyanchor differ by {apart:.2f} points of MAP@R on cub."
        for of in ([], ["hpl-pa"], ["proxyanchor"]):
            assert (luck in said(tmp_path, capsys, *of)) == doubted


WITHIN_LUCK = "No more than what searches of one loss, or almost one, differ by"


def test_a_lead_within_the_luck_of_a_search_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two searches of one loss are five points apart; ProxyNCA++ leads by three, then by seven."""
    search = {**make_record().search, "base": "proxyanchor", "ranges": {"coarse_weight": LOG}}
    put_scores(tmp_path, "proxyanchor", scores_around(0.40))
    params = {"coarse_weight": 1e-3}
    put_scores(tmp_path, "hpl-pa", scores_around(0.45), params=params, search=search)
    put_scores(tmp_path, "proxynca", scores_around(0.30))
    for score, within in ((0.33, True), (0.37, False)):
        put_scores(tmp_path, "proxynca++", scores_around(score, 1))
        answer = "**Yes.** proxynca++ is better than proxynca"
        (line,) = [line for line in said(tmp_path, capsys).splitlines() if answer in line]
        assert (WITHIN_LUCK in line) == within


def test_searches_of_one_loss_with_other_seeds_say_what_luck_can_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """ProxyNCA once more with another seed, two points better: more than what ProxyNCA++ adds."""
    put_scores(tmp_path, "proxynca", scores_around(0.30))
    put_scores(tmp_path, "proxynca++", scores_around(0.315, 1))
    assert "Searches of one loss" not in said(tmp_path, capsys)
    again = {"seed": 1, "params": {"alpha": 3.0}, "digest": "other"}
    put_scores(tmp_path, "proxynca", [score + 0.02 for score in scores_around(0.30)], **again)
    text = said(tmp_path, capsys)
    assert "2 searches of proxynca differ by 2.00 points of MAP@R on cub." in text
    assert "**Yes.** proxynca++ is better than proxynca by" in text
    assert WITHIN_LUCK in text
    brief = "yes, by no more than searches of one loss differ by"
    assert f"proxynca++ against proxynca: {brief} (cub)." in text
    of_old = "proxynca++ (by no more than searches of one loss differ by)"
    assert f"cub: yes: {of_old}; the best old one is proxynca." in text
    assert f"**cub: Yes: {of_old}.**" in text
    assert f"| {brief} |" in said(tmp_path, capsys, "proxynca++")


def test_a_setting_that_all_methods_searched_says_how_it_orders_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The higher the rate, the lower the score; a parameter that one method lacks is not named."""
    rates = {"ms": 1e-5, "triplet": 1e-4, "c2": 1e-3, "margin": 1e-2, "proxynca": 0.1}
    for i, (method, rate) in enumerate(rates.items()):
        ranges = {"head_lr": LOG} | ({} if method == "ms" else {"margin": LINEAR})
        search = {**make_record().search, "ranges": ranges}
        params = {"head_lr": rate, "margin": 0.5}
        put_scores(tmp_path, method, [0.4 - 0.01 * i] * RUNS, params=params, search=search)
        said_of_rate = (
            "head_lr on cub, which all 5 methods searched: best values from 1e-05 to 0.1, rank "
            "correlation -1.00 with MAP@R on the test classes."
        )
        text = said(tmp_path, capsys)
        assert (said_of_rate in text.replace("\\", "")) == (i == 4)
        assert "margin on cub" not in text


@pytest.mark.parametrize(
    ("searched", "rate", "doubted"),
    [([1e-5, 0.1], 0.011, True), ([1e-5, 0.1], 0.009, False), (None, 0.011, False)],
)
def test_a_lead_of_two_methods_that_were_searched_to_far_apart_rates_says_so(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    searched: list[float] | None,
    rate: float,
    doubted: bool,
) -> None:
    """Eleven or nine times apart; a rate that the protocol leaves to the method is its own."""
    protocol = {**make_record().identity["protocol"], "search_head_lr": searched}
    for method, score, own in (("proxynca", 0.30, 1e-3), ("proxynca++", 0.35, rate)):
        params = {"head_lr": own, "loss_lr": own}
        put_scores(tmp_path, method, scores_around(score), params=params, protocol=protocol)
    rates = f"proxynca++ and proxynca at head_lr of {rate} and 0.001"
    text = said(tmp_path, capsys).replace("\\", "")
    assert text.count(rates) == 2 * doubted  # of its paper's claim, and against the best old one
    assert "at loss_lr" not in text
    assert (rates in said(tmp_path, capsys, "proxynca++").replace("\\", "")) == doubted


def test_what_concatenation_adds_says_whether_it_orders_the_methods(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of five methods the worst single models gain most, and are the best side by side."""
    for i, method in enumerate(("ms", "triplet", "c2", "margin", "proxynca")):
        whole, single = (
            {"map_at_r": score, "r_precision": score, "p_at_1": score}
            for score in (0.30 + 0.01 * i, 0.28 - 0.002 * i)
        )
        scores = {"concatenated": whole, "separated": single}
        for repetition in range(1, RUNS + 1):
            put(tmp_path, make_record(method, repetition, scores=scores))
        expected = (
            "The methods on cub span 4.00 points of MAP@R concatenated and 0.80 as single models "
            "(rank correlation -1.00); concatenation adds from 2.00 (ms) to 6.80 (proxynca)."
        )
        assert (expected in said(tmp_path, capsys)) == (i == 4)


def test_what_is_left_of_a_papers_gain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """CCP's supplement has 26.47 and 28.02; ProxyNCA++'s Table 3 59.3 and 72.2 of Recall@1."""
    put_scores(tmp_path, "c2", [0.25] * RUNS)
    put_scores(tmp_path, "ccp-c2", [0.25 + 0.00775] * RUNS)
    put_scores(tmp_path, "proxynca", [0.3] * RUNS)
    put_scores(tmp_path, "proxynca++", [0.3 - 0.0129] * RUNS)
    text = said(tmp_path, capsys)
    assert "| cub | ccp-c2 over c2 | MAP@R | +1.55 | +0.78 | 50 % | CCP supplement" in text
    assert "| cub | proxynca++ over proxynca | P@1 | +12.90 | -1.29 | -10 % | ProxyNCA++" in text


def test_a_method_that_is_not_of_a_paper_is_held_against_the_base_that_its_records_state(
    tmp_path: Path,
) -> None:
    search: dict[str, Any] = {**make_record().search, "base": "ms"}
    put_scores(tmp_path, "ms", scores_around(0.40, 0))
    put_scores(tmp_path, "mine@12345678", scores_around(0.42, 1), search=search)
    found = outcomes(judged(tmp_path), "every other method")
    assert found == {("cub", "mine@12345678", "ms"): Outcome.YES}


def later(time: str) -> dict[str, Any]:
    return {**make_record().provenance, "time": f"2026-02-{time}T00:00:00+00:00"}


def test_a_loss_of_ones_own_is_found_by_its_name_in_its_newest_version(tmp_path: Path) -> None:
    put_scores(tmp_path, "ms", scores_around(0.40, 0))
    put_scores(tmp_path, "mine@aaaaaaaa", scores_around(0.50, 1), provenance=later("01"))
    put_scores(tmp_path, "mine@bbbbbbbb", scores_around(0.42, 2), provenance=later("02"))
    put_scores(tmp_path, "mineral@cccccccc", scores_around(0.45, 3), provenance=later("03"))
    (standing,) = stand(tables_in(tmp_path), "mine")
    assert standing.method == "mine@bbbbbbbb"
    assert {a.rival: a.outcome for a in standing.answers} == {
        "mine@aaaaaaaa": Outcome.WORSE,
        "mineral@cccccccc": Outcome.WORSE,
        "ms": Outcome.YES,
    }
    assert standing.must_beat == {"ms": "the best of the old ones"}
    with pytest.raises(HarnessError, match="no method named 'mien'"):
        stand(tables_in(tmp_path), "mien")
    (standing,) = stand(tables_in(tmp_path), "multi-similarity", lambda alias: "ms")
    assert standing.method == "ms"


def test_p_values_of_one_method_are_corrected_within_a_protocol(tmp_path: Path) -> None:
    runs = {name: scores_around(mean, i) for i, (name, mean) in enumerate(NEAR.items())}
    other = {**make_record().identity["protocol"], "name": "other"}
    for name, scores in runs.items():
        put_scores(tmp_path, name, scores)
        put_scores(tmp_path, name, scores, protocol=other)
    expected = holm([stats.ttest_rel(runs["ms"], runs[name]).pvalue for name in ("c2", "margin")])
    for standing in stand(tables_in(tmp_path), "ms"):
        found = {a.rival: a.comparison.concatenated.t_test for a in standing.answers}
        assert [found["c2"], found["margin"]] == pytest.approx(expected, rel=1e-9)


NEAR = {"ms": 0.4, "c2": 0.402, "margin": 0.401}


def test_a_base_that_is_also_the_best_old_loss_is_both(tmp_path: Path) -> None:
    search: dict[str, Any] = {**make_record().search, "base": "c2"}
    put_scores(tmp_path, "c2", scores_around(0.40, 0))
    put_scores(tmp_path, "ms", scores_around(0.30, 1))
    put_scores(tmp_path, "ccp-c2", scores_around(0.42, 2), search=search)
    (standing,) = stand(tables_in(tmp_path), "ccp-c2")
    assert standing.must_beat["c2"] == "its base, the best of the old ones"
    (standing,) = stand(tables_in(tmp_path), "c2")
    assert standing.must_beat == {"ms": "the best of the other old ones"}


def test_a_loss_of_ones_own_is_ranked_with_tests_against_every_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put_scores(tmp_path, "ms", scores_around(0.40, 0))
    put_scores(tmp_path, "proxyanchor", scores_around(0.44, 1))
    put_scores(tmp_path, "mine@aaaaaaaa", scores_around(0.42, 2))
    text = said(tmp_path, capsys, "mine")
    assert "Rank 2 of 3, MAP@R 4" in text
    assert "Better than ms; worse than proxyanchor." in text
    assert "- Against the best of the old ones: **No, it is worse.** proxyanchor is better" in text
    low = 100 * np.mean(NOISE[2] - NOISE[1]) - 2
    row = next(line for line in text.splitlines() if line.startswith("| proxyanchor |"))
    assert f"| {low:+.2f} ± " in row and row.endswith("| < 0.001 | 10 | no, it is worse |")


def test_stored_rows_stand_beside_ones_own_and_none_is_counted_twice(tmp_path: Path) -> None:
    own, stored = tmp_path / "own", tmp_path / "stored"
    put_scores(stored, "ms", scores_around(0.40, 0))
    put_scores(stored, "c2", scores_around(0.43, 1))
    put_scores(stored, "ms", scores_around(0.40, 0), dataset="cars")
    put_scores(own, "ms", scores_around(0.40, 0))  # the same runs again
    put_scores(own, "mine@aaaaaaaa", scores_around(0.42, 2))
    cars, cub = tables_in(own, stored)
    assert (cars.dataset, cars.trained) == ("cars", ["ms"])
    assert {name: len(row) for name, row in cub.rows.items()} == dict.fromkeys(
        ["ms", "c2", "mine@aaaaaaaa"], RUNS
    )


def test_stored_rows_of_other_images_are_left_out_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own, stored = tmp_path / "own", tmp_path / "stored"
    old = {**make_record().provenance, "time": "2027-01-01T00:00:00+00:00"}  # and yet not newer
    put_scores(stored, "ms", scores_around(0.40, 0), data_fingerprint="d2", provenance=old)
    put_scores(own, "mine@aaaaaaaa", scores_around(0.42, 2))
    where = ["--results-dir", str(own), "--against", str(stored)]
    assert main(["verdict", "mine", *where]) == 0
    captured = capsys.readouterr()
    assert "Rank 1 of 1" in captured.out
    assert captured.err.count("another version of the trainval images") == 5
    assert "warning: and 5 more records" in captured.err


def test_other_results_are_those_that_came_with_the_package_unless_they_are_ones_own(
    tmp_path: Path,
) -> None:
    stored = find_stored(tmp_path, None)
    assert stored is not None and stored.samefile(ROOT / "results")
    assert find_stored(ROOT / "results", None) is None
    assert find_stored(tmp_path, "none") is None
    assert find_stored(ROOT / "results", str(tmp_path)) == tmp_path


def test_judging_does_not_wait_for_torch(tmp_path: Path) -> None:
    put_scores(tmp_path, "ms", scores_around(0.40, 0))
    put_scores(tmp_path, "proxynca++", scores_around(0.40, 1))
    arguments = ["verdict", "--results-dir", str(tmp_path), "--against", "none"]
    (loaded,) = modules_after(f"from harness.cli import main; assert main({arguments}) == 0")
    assert "torch" not in loaded


def test_the_verdict_is_written_where_it_is_asked_for(tmp_path: Path) -> None:
    put_scores(tmp_path, "ms", scores_around(0.40, 0))
    file = tmp_path / "VERDICT.md"
    assert command(tmp_path, "--output", str(file)) == 0
    assert file.read_text().startswith("# Verdict\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nobody"], "no method named 'nobody'"),
        (["pretrained"], "no method named 'pretrained'"),
        (["--dataset", "sop"], "of what was asked for"),
        (["--against", "nowhere"], "no folder at nowhere; --against takes"),
    ],
)
def test_what_cannot_be_judged_is_a_message(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put_scores(tmp_path, "ms", scores_around(0.40, 0))
    put(tmp_path, make_record("pretrained", 0, 0.3, kind="naive"))
    assert main(["verdict", "--results-dir", str(tmp_path), "--against", "none", *arguments]) == 2
    assert message in capsys.readouterr().err
