"""The verdict's text, and the command that prints it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_records import make_record, put, put_scores
from test_imports import modules_after

import harness
from harness.cli import main
from harness.judgement.judge import judge
from harness.judgement.ranks import critical_difference
from harness.verdicts.text import wrapped

RUNS = 10
NOISE = 0.002 * np.random.default_rng(0).standard_normal((8, RUNS))


def scores_around(mean: float, stream: int = 0) -> list[float]:
    """Of ten runs; the same stream has the same ups and downs."""
    return (mean + NOISE[stream]).tolist()


def put_no_training(results: Path, score: float) -> None:
    put(results, make_record("pretrained", 0, score, kind="naive", folds=[], search={}))


def text_of(results: Path, method: str | None = None, **options: Any) -> str:
    return harness.verdict(method, results_dir=str(results), **{"against": "none", **options})


def test_a_verdict_begins_with_a_conclusion_of_three_sentences(tmp_path: Path) -> None:
    put_scores(tmp_path, "c2", scores_around(0.26, 0))
    put_scores(tmp_path, "ccp-c2", scores_around(0.28, 1), search=with_base("c2"))
    put_no_training(tmp_path, 0.2)
    first = text_of(tmp_path).split("\n\n")[1]
    assert first == (
        "In 1 table, a method is shown to be better than its base or a declared rival in 1 of 1 "
        "planned comparison, worse in 0 and equivalent in 0; 0 are not decided. 2 of 2 trained "
        "rows are better than no training in MAP@R. All answers rest on one search for each "
        "method, so a difference may still be due to a lucky search; searches with --searches 3 "
        "would measure that."
    )
    own = text_of(tmp_path, "ccp-c2").split("\n\n")[1]
    assert own.startswith("ccp-c2 ranks 1 of 2 on cub with 2")
    assert own.endswith("Better than no training: yes.")


def with_base(base: str) -> dict[str, Any]:
    return {**make_record().search, "base": base}


def test_planned_pairs_are_answered_with_interval_p_value_and_scope(tmp_path: Path) -> None:
    put_scores(tmp_path, "c2", scores_around(0.26, 0))
    put_scores(tmp_path, "ccp-c2", scores_around(0.28, 1), search=with_base("c2"))
    text = text_of(tmp_path)
    gain = 100 * np.mean(NOISE[1] - NOISE[0]) + 2
    (line,) = [line for line in text.splitlines() if line.startswith("| ccp-c2 - c2 | ")]
    assert f"| {gain:+.2f} | " in line and line.endswith("| < 0.001 | better |")
    assert "Scope of all answers: one search each: search noise not measured." in text


def test_commands_that_would_decide_the_rest_say_how_long_they_take(tmp_path: Path) -> None:
    """Searches of 50 trials with 4 models of 8 seconds, and 10 reproductions: 32 minutes each."""
    put_scores(tmp_path, "c2", scores_around(0.26, 0))
    put_scores(tmp_path, "ccp-c2", scores_around(0.28, 1), search=with_base("c2"))
    text = text_of(tmp_path)
    where = "--dataset cub --protocol mlrc --trunk bninception"
    assert "# Search rivals without a row, about 32 minutes of training\n" in text
    assert f"\nharness search --loss c2-xbm {where}\n" in text
    assert "# Measure search noise, about 2 hours of training\n" in text
    assert f"\nharness search --loss ccp-c2 c2 {where} --searches 3\n" in text


def test_a_short_search_is_told_how_to_finish(tmp_path: Path) -> None:
    put_scores(tmp_path, "ms", scores_around(0.30, 0))
    search = {**make_record().search, "trials": 4}
    put_scores(tmp_path, "mine@aaaaaaaa", scores_around(0.26, 1), search=search)
    text = text_of(tmp_path, "mine")
    assert "not decided: mine@aaaaaaaa had 4 of 50 trials" in text
    assert "worse than no row; against ms it is not decided." in text
    assert "Finish the search of mine@aaaaaaaa" in text and "--trials 50" in text


def test_fixed_parameters_with_few_seeds_are_repeated_by_their_own_command(tmp_path: Path) -> None:
    record = make_record()
    command = "harness eval --loss ccp --reproductions 1 --set params.x=2"
    changes: dict[str, Any] = {
        "search": {**record.search, "trials": 0},
        "provenance": {**record.provenance, "command": command},
    }
    put_scores(tmp_path, "c2", scores_around(0.25))
    put_scores(tmp_path, "ccp-c2", [0.28], **changes)
    again = "harness eval --loss ccp --set params.x=2 --reproductions 5"
    assert text_of(tmp_path).count(f"\n{again}\n") == 1


def test_what_is_missing_would_be_searched_without_the_images_that_the_table_lacks(
    tmp_path: Path,
) -> None:
    for left_out in (0, 15):
        put_scores(tmp_path, "c2", scores_around(0.26), missing_images=left_out)
        text = text_of(tmp_path)
        assert ("15 images of cub are missing or broken." in text) == (left_out > 0)
        assert ("--allow-missing" in text) == (left_out > 0)


def test_a_row_that_no_training_beats_in_some_scores_says_so(tmp_path: Path) -> None:
    """PCA is behind in MAP@R, and ahead in P@1 and with single models."""
    put_no_training(tmp_path, 0.39)
    single = dict.fromkeys(("map_at_r", "r_precision", "p_at_1"), 0.3)
    for repetition, score in enumerate(scores_around(0.42), start=1):
        whole = {"map_at_r": score, "r_precision": score, "p_at_1": 0.3}
        scores = {"concatenated": whole, "separated": single}
        put(tmp_path, make_record("ms", repetition, score, scores=scores))
    text = text_of(tmp_path, "ms")
    assert "Better than no training: in part, but it is behind in" in text
    assert "P@1 at 512 and 128 dimensions" in text and "MAP@R at 128 dimensions" in text
    assert "1 of 1 trained row is better than no training in MAP@R; 1 of these is" in text_of(
        tmp_path
    )


def test_a_method_alone_has_nothing_to_be_compared_with(tmp_path: Path) -> None:
    put_scores(tmp_path, "c2", scores_around(0.25))
    text = text_of(tmp_path, "c2")
    assert "There is no other trained row to compare it with." in text and "|" not in text


def test_settings_that_all_searches_chose_are_named_with_how_they_order_the_rows(
    tmp_path: Path,
) -> None:
    """The higher the rate, the lower the score."""
    rates = {"ms": 1e-5, "triplet": 1e-4, "c2": 1e-3, "margin": 1e-2, "proxynca": 0.1}
    for i, (method, rate) in enumerate(rates.items()):
        ranges = {"head_lr": {"low": 1e-5, "high": 0.1, "log": True}}
        search = {**make_record().search, "ranges": ranges}
        put_scores(
            tmp_path, method, [0.4 - 0.01 * i] * RUNS, params={"head_lr": rate}, search=search
        )
        said = (
            "All 5 searches chose head_lr: the best values range from 1e-05 to 0.1, with a rank "
            "correlation of -1.00 with test MAP@R."
        )
        assert (said in text_of(tmp_path)) == (i == 4)


def test_what_is_left_of_a_papers_gain(tmp_path: Path) -> None:
    """CCP's supplement has 26.47 and 28.02; ProxyNCA++'s Table 3 59.3 and 72.2 of Recall@1."""
    put_scores(tmp_path, "c2", [0.25] * RUNS)
    put_scores(tmp_path, "ccp-c2", [0.25 + 0.008] * RUNS, search=with_base("c2"))
    put_scores(tmp_path, "proxynca", [0.3] * RUNS)
    put_scores(tmp_path, "proxynca++", [0.3 - 0.0129] * RUNS)
    text = text_of(tmp_path)
    assert "| ccp-c2 over c2 | MAP@R | +1.55 | +0.80 | 52% | CCP supplement" in text
    assert "| proxynca++ over proxynca | P@1 | +12.90 | -1.29 | -10% | ProxyNCA++" in text


def test_average_ranks_get_a_critical_difference_from_three_tables_on(tmp_path: Path) -> None:
    for dataset, order in (("cub", "abc"), ("cars", "acb")):
        for place, name in enumerate(order):
            put_scores(tmp_path, name, scores_around(0.4 - 0.05 * place), dataset=dataset)
    text = text_of(tmp_path)
    assert "a 1.0, b 2.5, c 2.5. Two data sets are too few for a critical difference." in text
    for place, name in enumerate("abcd"):  # d is not in the others
        put_scores(tmp_path, name, scores_around(0.4 - 0.05 * place), dataset="sop")
    text = text_of(tmp_path)
    assert f"Ranks closer than {critical_difference(3, 3):.1f} are not separated" in text
    assert "Ranked are the 3 methods that all of these tables have." in text


def test_a_loss_of_ones_own_is_found_by_its_name_in_its_newest_version(tmp_path: Path) -> None:
    def later(day: str) -> dict[str, Any]:
        return {**make_record().provenance, "time": f"2026-02-{day}T00:00:00+00:00"}

    put_scores(tmp_path, "ms", scores_around(0.40, 0))
    put_scores(tmp_path, "mine@aaaaaaaa", scores_around(0.50, 1), provenance=later("01"))
    put_scores(tmp_path, "mine@bbbbbbbb", scores_around(0.42, 2), provenance=later("02"))
    put_scores(tmp_path, "mineral@cccccccc", scores_around(0.45, 3), provenance=later("03"))
    text = text_of(tmp_path, "mine")
    assert text.startswith("# mine@bbbbbbbb against the other rows\n")
    assert "It is better than ms and worse than mine@aaaaaaaa and mineral@cccccccc." in text


def test_a_rerun_of_a_stored_method_is_judged_against_the_stored_row(tmp_path: Path) -> None:
    own, stored = tmp_path / "own", tmp_path / "stored"
    put_scores(stored, "ms", scores_around(0.45, 0))
    made = {**make_record().provenance, "time": "2026-02-01T00:00:00+00:00"}
    put_scores(own, "ms", scores_around(0.40, 1), provenance=made)
    text = text_of(own, "ms", against=str(stored))
    assert "ms ranks 2 of 2 on cub" in text and "worse than ms (stored)." in text


def test_the_terminal_gets_lines_of_its_width_without_markup(tmp_path: Path) -> None:
    for place, name in enumerate(("ms", "c2", "ccp-c2", "a*very*long_name_of_a_loss")):
        search = {**make_record().search, "on_bound": {"alpha": "low", "margin": "high"}}
        put_scores(tmp_path, name, scores_around(0.4 + 0.01 * place, place), search=search)
    text = wrapped(text_of(tmp_path), 80)
    code = False
    for line in text.splitlines():
        code ^= line.startswith("```")
        assert code or len(line) <= 80, line
        assert "\\" not in line and "|" not in line


def test_the_command_writes_where_it_is_asked_to(tmp_path: Path) -> None:
    put_scores(tmp_path, "ms", scores_around(0.40, 0))
    file = tmp_path / "VERDICT.md"
    where = ["--results-dir", str(tmp_path), "--against", "none"]
    assert main(["verdict", *where, "--output", str(file)]) == 0
    assert file.read_text() == text_of(tmp_path)


def test_json_holds_what_python_returns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for place, name in enumerate(("ms", "c2", "margin")):
        put_scores(tmp_path, name, scores_around(0.4 + 0.01 * place, place))
    put_no_training(tmp_path, 0.3)
    where = ["--results-dir", str(tmp_path), "--against", "none", "--json"]
    assert main(["verdict", *where]) == 0
    (found,) = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)["tables"]
    (table,) = judge(tmp_path).tables
    assert [row["letters"] for row in found["rows"]] == [row.letters for row in table.rows]
    for pair, expected in zip(found["pairs"], table.pairs, strict=True):
        assert (pair["answer"], pair["scope"]) == (expected.answer.value, scope_value(expected))
        estimate = pair["estimates"]["concatenated"]["map_at_r"]
        assert estimate["p"] == expected.estimate.p and math.isfinite(estimate["high"])
    assert main(["verdict", "ms", *where]) == 0
    (of_one,) = json.loads(capsys.readouterr().out)["tables"]
    assert {pair["method"] for pair in of_one["pairs"]} == {"ms"} and len(of_one["pairs"]) == 3


def scope_value(pair: Any) -> str | None:
    return pair.scope.value if pair.scope else None


def test_judging_does_not_wait_for_torch(tmp_path: Path) -> None:
    put_scores(tmp_path, "ms", scores_around(0.40, 0))
    put_scores(tmp_path, "proxynca++", scores_around(0.40, 1))
    arguments = ["verdict", "--results-dir", str(tmp_path), "--against", "none"]
    (loaded,) = modules_after(f"from harness.cli import main; assert main({arguments}) == 0")
    assert "torch" not in loaded


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nobody"], "no method named 'nobody'"),
        (["pretrained"], "no method named 'pretrained'"),
        (["--dataset", "sop"], "of what was asked for"),
        (["--against", "nowhere"], "no folder at nowhere; --against takes"),
        (["--margin", "0"], "the margin must be between 0 and 100 points, got 0"),
        (["--margin", "nan"], "the margin must be between 0 and 100 points, got nan"),
    ],
)
def test_what_cannot_be_judged_is_a_message(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put_scores(tmp_path, "ms", scores_around(0.40, 0))
    put_no_training(tmp_path, 0.3)
    assert main(["verdict", "--results-dir", str(tmp_path), "--against", "none", *arguments]) == 2
    assert message in capsys.readouterr().err
