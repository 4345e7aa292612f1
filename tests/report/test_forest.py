"""Forest plots: where marks are drawn, and that they say what the verdict says."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_records import make_record, put, put_scores

from harness.judgement.judge import judge
from harness.judgement.words import short_answer
from harness.report.forest import axis_of, forest
from harness.report.page import read_report, render
from harness.report.table import read_table
from harness.verdicts.conclusions import of_table, of_tables, planned_pairs


def test_an_axis_is_filled_by_its_values_and_broken_for_what_is_far() -> None:
    axis = axis_of([0.18, 0.20], [0.17])
    assert len(axis.breaks) == 1
    assert axis.place(0.17) < axis.breaks[0] < axis.place(0.18) < 25
    assert 90 < axis.place(0.20) <= 98
    middle = (axis.place(0.18) + axis.place(0.20)) / 2
    assert axis.place(0.19) == pytest.approx(middle, abs=0.01)


def test_what_is_near_is_drawn_without_a_break_and_what_is_above_on_the_right() -> None:
    assert axis_of([0.18, 0.20], [0.177]).breaks == ()
    above = axis_of([0.18, 0.20], [0.3])
    assert above.place(0.20) < above.breaks[0] < above.place(0.3)


@pytest.mark.parametrize("width", [1e-4, 0.003, 0.07, 0.9])
def test_ticks_are_few_round_and_where_they_say(width: float) -> None:
    axis = axis_of([0.05, 0.05 + width])
    assert 2 <= len(axis.ticks) <= 6
    for place, text in axis.ticks:
        assert axis.place(float(text) / 100) == pytest.approx(place, abs=0.02)


def put_pair(results: Path) -> Path:
    put_scores(results, "proxyanchor", [0.50, 0.51, 0.52, 0.53, 0.54])
    search = {**make_record().search, "base": "proxyanchor"}
    folder = put_scores(results, "hpl-pa", [0.60, 0.61, 0.62, 0.63, 0.64], search=search)
    put(results, make_record("pretrained", 0, 0.1, kind="naive", search={}, folds=[], params={}))
    return folder


def test_rows_and_claims_are_those_of_the_verdict(tmp_path: Path) -> None:
    table = read_table(put_pair(tmp_path))
    assert table is not None
    found = forest(table)
    (judged,) = judge(tmp_path).tables
    assert [row.name for row in found.scores] == ["hpl-pa", "proxyanchor", "pretrained"]
    assert [row.letters for row in found.scores[:2]] == [row.letters for row in judged.rows[:2]]
    assert [row.kind for row in found.scores] == ["leader", "trained", "naive"]
    places = [row.mark.at for row in found.scores]
    assert places[0] > places[1] > found.axis.breaks[0] > places[2]
    assert all(row.mark.low <= row.mark.at <= row.mark.high for row in found.scores)
    (pair,) = planned_pairs(judged)
    (claim,) = found.claims
    assert (claim.method, claim.rival) == ("hpl-pa", "proxyanchor")
    assert short_answer(judged, pair).startswith(claim.answer)
    assert short_answer(judged, pair).endswith(claim.reason)
    assert found.zero < claim.mark.low  # the whole interval is above no difference


def test_the_page_opens_with_the_words_of_the_verdict(tmp_path: Path) -> None:
    put_pair(tmp_path)
    page = render(read_report(tmp_path, against="none"))
    (judged,) = judge(tmp_path).tables
    first = page.index(of_tables([judged]))
    assert page.index("<main>") < first < page.index(of_table(judged)) < page.index('id="scores"')


def test_the_table_that_decides_most_comes_first(tmp_path: Path) -> None:
    """Not the alphabetically first one."""
    put_scores(tmp_path, "ms", [0.5, 0.6, 0.5, 0.6, 0.5], dataset="cars")
    put_scores(tmp_path, "c2", [0.6, 0.5, 0.6, 0.5, 0.55], dataset="cars")
    put_scores(tmp_path, "ms", [0.50, 0.51, 0.52, 0.53, 0.54], dataset="cub")
    put_scores(tmp_path, "c2", [0.60, 0.61, 0.62, 0.63, 0.64], dataset="cub")
    tables = read_report(tmp_path, against="none").tables
    assert [table.dataset for table in tables] == ["cub", "cars"]
