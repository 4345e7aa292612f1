"""Validation against test: the order of methods by both, as a number and as a picture."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_records import make_record, put

from harness.judgement.ranks import rank_correlation
from harness.judgement.selection import correlations, scatter, selection_in
from harness.tables.leaderboard import build


def put_methods(results: Path, scores: list[tuple[float, float]]) -> Path:
    """One method per (validation, test); returns the table."""
    for number, (validation, test) in enumerate(scores):
        search = {**make_record().search, "validation": validation}
        path = put(results, make_record(f"m{number}", 1, test, search=search))
    return path.parent.parent.parent


def test_rank_correlation_is_one_minus_the_squared_rank_differences() -> None:
    """Ranks 1 2 3 4 5 against 2 1 3 5 4: 1 - 6 * 4 / (5 * 24)."""
    assert rank_correlation([1, 2, 3, 4, 5], [0.2, 0.1, 0.3, 0.9, 0.8]) == pytest.approx(0.8)
    assert rank_correlation([1, 1, 1], [1, 2, 3]) is None


def test_only_searched_methods_count_and_fewer_than_five_say_nothing(tmp_path: Path) -> None:
    table = put_methods(tmp_path, [(0.1, 0.2), (0.2, 0.1), (0.3, 0.3), (0.4, 0.5)])
    put(tmp_path, make_record("pixels", 0, 0.9, kind="naive", search={}, folds=[]))
    assert selection_in(build(table).frame) is None
    put_methods(tmp_path, [(0.1, 0.2), (0.2, 0.1), (0.3, 0.3), (0.4, 0.5), (0.5, 0.4)])
    selection = selection_in(build(table).frame)
    assert selection is not None
    assert sorted(selection.methods) == ["m0", "m1", "m2", "m3", "m4"]
    assert correlations(selection) == pytest.approx({"concatenated": 0.8, "separated": 0.8})


def test_the_scatter_has_every_method_at_its_place(tmp_path: Path) -> None:
    """The best by test is on top, the best by validation at the right; two share a place."""
    points = [(0.1, 0.2), (0.5, 0.345), (0.29, 0.3), (0.29, 0.3), (0.2, 0.6)]
    selection = selection_in(build(put_methods(tmp_path, points)).frame)
    assert selection is not None
    *rows, axis, ends, names = scatter(selection, "concatenated")
    cells = [row.partition("|")[2] for row in rows]
    found = [(cell, i, j) for i, row in enumerate(cells) for j, cell in enumerate(row)]
    place = {cell: (i, j) for cell, i, j in found if cell != " "}
    named = dict(reversed(text.split()) for text in names.split(", "))
    assert place[named["m4"]] == (0, 15)  # a quarter of the way from 0.1 to 0.5
    assert place[named["m0"]] == (len(rows) - 1, 0)
    assert place[named["m1"]] == (7, 59)  # four elevenths of the way up from 0.2 to 0.6
    assert place["*"] == (8, 28)
    assert rows[0].startswith(" 60.00 |") and rows[-1].startswith(" 20.00 |")
    assert axis.endswith("-" * 60) and ends.split() == ["10.00", "50.00"]


def test_the_notes_of_a_table_have_the_correlation(tmp_path: Path) -> None:
    table = put_methods(tmp_path, [(0.1, 0.2), (0.2, 0.1), (0.3, 0.3), (0.4, 0.5), (0.5, 0.4)])
    expected = "Rank correlation of validation and test MAP@R over 5 methods: 0.80 at 512, 0.80 at"
    assert any(note.startswith(expected) for note in build(table).table().remarks)
