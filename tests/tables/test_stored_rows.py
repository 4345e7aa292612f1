"""A user's rows among stored ones: every view shows both, and says the same about a pair."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from made_records import QUERIES, make_record, put, put_scores

import harness
from harness.cli import main
from harness.judgement.words import p_words, spell_p
from harness.report.differences import matrix
from harness.report.table import read_table
from harness.tables import leaderboard
from harness.tables.column import View

NOISE = np.random.default_rng(0).normal(0, 0.004, (4, 6, len(QUERIES)))


def put_row(results: Path, method: str, score: float, number: int, **changes: object) -> Path:
    """Six reproductions around a score, each class a little different."""
    for repetition, classes in enumerate(score + NOISE[number], start=1):
        mean = float(np.average(classes, weights=QUERIES))
        per_class = {m: classes.tolist() for m in ("map_at_r", "p_at_1")}
        scores = {"concatenated": per_class, "separated": per_class}
        path = put(results, make_record(method, repetition, mean, per_class=scores, **changes))
    return path.parent.parent.parent


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Results of a user and stored ones, which both have `c2`."""
    own, stored = tmp_path / "own", tmp_path / "stored"
    base = {**make_record().search, "base": "c2"}
    put_row(own, "mine", 0.505, 0, search=base)
    later = {**make_record().provenance, "time": "2027-01-01T00:00:00+00:00"}
    put_row(own, "c2", 0.500, 1, provenance=later)
    put_row(stored, "c2", 0.500, 2)
    put_row(stored, "ms", 0.450, 3)
    return own, stored


def table_in(results: Path) -> Path:
    return results / "mlrc" / "cub-bninception"


def test_one_pair_has_one_p_value_and_one_answer_in_every_view(
    folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    own, stored = folders
    places = {"results_dir": str(own), "against": str(stored)}
    flags = ["--results-dir", str(own), "--against", str(stored)]
    (judged,) = harness.judge(**places).tables
    page = read_table(table_in(own), str(stored))
    assert page is not None
    cells = matrix(page)
    assert cells is not None
    assert main(["verdict", *flags, "--json"]) == 0
    verdict = json.loads(capsys.readouterr().out)["tables"][0]["pairs"]
    names = [row.name for row in judged.trained_rows]
    assert sorted(names) == ["c2", "c2 (stored)", "mine", "ms"]
    letters = page.texts(View.TERMINAL).set_index("method")["group"]
    for i, one in enumerate(cells.methods):
        for j, other in enumerate(cells.methods[:i]):
            pair, cell = judged.pair(one, other), cells.cells[j][i]
            assert pair is not None and cell is not None and pair.holm_p is not None
            (same,) = harness.compare(one, other, dataset="cub", **places)
            assert (same.holm_p, same.answer) == (pair.holm_p, pair.answer)
            (told,) = [p for p in verdict if {p["method"], p["rival"]} == {one, other}]
            assert told["holm_p"] == pytest.approx(pair.holm_p)
            assert told["answer"] == pair.answer.value
            assert f"p {spell_p(pair.holm_p)}" in cell.words
            assert cell.answer in (pair.answer, pair.flipped.answer)
            assert bool(set(letters[one]) & set(letters[other])) != pair.separated
            assert main(["compare", one, other, "--dataset", "cub", *flags]) == 0
            assert p_words(pair) in capsys.readouterr().out


def test_files_hold_the_users_rows_and_the_terminal_shows_all(
    folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    own, stored = folders
    monkeypatch.setattr("harness.judgement.judge.STORED", stored)
    assert main(["leaderboard", "--results-dir", str(own)]) == 0
    shown = capsys.readouterr().out
    assert "c2 (stored)" in shown and "ms" in shown and "stored" in shown
    file = table_in(own) / "leaderboard.csv"
    assert sorted(pd.read_csv(file)["method"]) == ["c2", "mine"]
    assert main(["leaderboard", "--results-dir", str(own), "--against", str(stored)]) == 0
    assert sorted(pd.read_csv(file)["method"]) == ["c2", "c2 (stored)", "mine", "ms"]
    assert main(["leaderboard", "--results-dir", str(own), "--against", "none"]) == 0
    assert "stored" not in capsys.readouterr().out.split("files in")[-2]


def test_a_base_is_the_users_row_before_the_stored_one(folders: tuple[Path, Path]) -> None:
    own, stored = folders
    board = leaderboard.build(table_in(own), str(stored))
    frame = board.frame.set_index("method")
    ours = np.average(0.505 + NOISE[0].mean(0), weights=QUERIES)
    base = np.average(0.500 + NOISE[1].mean(0), weights=QUERIES)
    assert frame.loc["mine", "to_base"] == pytest.approx(ours - base, abs=1e-6)


def test_a_copy_of_a_stored_row_is_no_second_row(tmp_path: Path) -> None:
    for results in (tmp_path / "own", tmp_path / "stored"):
        put_scores(results, "ms", [0.5] * 6)
    board = leaderboard.build(table_in(tmp_path / "own"), str(tmp_path / "stored"))
    assert [line.name for line in board.lines] == ["ms"]
    assert board.frame["method"].tolist() == ["ms"]  # it is the user's, too
