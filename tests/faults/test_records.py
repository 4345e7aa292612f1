"""A record that can be read can be shown: whatever is wrong inside of one, the tables stand."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from made_records import make_record, put, put_metrics, put_scores

from harness.cli import main
from harness.judgement.judge import JUDGED, judge
from harness.records.layout import find_records
from harness.records.merge import merge
from harness.records.records import RecordError, read_record
from harness.tables import leaderboard
from harness.tables.leaderboard import Leaderboard

# What somebody's script, another version or a torn disk may leave at any place of a record.
WRONG: list[Any] = [
    *(None, True, -1, 0, 1.5, -0.5, 1e308, 2**70, "", "text", "\x1b[31m", "../..", "NaN"),
    *([], [None], [[]], {}, {"": None}, {"a": {"b": []}}),
]


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place within a record; of a list its first entry stands for all."""
    if at:
        yield at
    if isinstance(value, dict):
        for key, part in value.items():
            yield from places(part, (*at, key))
    elif isinstance(value, list) and value:
        yield from places(value[0], (*at, 0))


def changed(record: Any, at: tuple[Any, ...], value: Any) -> Any:
    copy = json.loads(json.dumps(record))
    inner = copy
    for key in at[:-1]:
        inner = inner[key]
    inner[at[-1]] = value
    return copy


def made(results: Path) -> Leaderboard:
    """The table, which is judged, too."""
    (table,) = {path.parents[2] for path in results.glob("*/*/records/*/*.json")}
    board = leaderboard.build(table)
    if board.frame["kind"].isin(JUDGED).any():
        judge(results)
    return board


RECORD = json.loads(json.dumps(make_record("ms", 3).__dict__))


@pytest.mark.parametrize("at", list(places(RECORD)), ids=lambda at: ".".join(map(str, at)))
def test_whatever_stands_at_any_place_is_named_or_shown(
    at: tuple[Any, ...], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = put_scores(tmp_path / "results", "triplet", [0.4, 0.5])
    put_scores(tmp_path / "results", "ms", [0.6, 0.7])
    without = made(tmp_path / "results")
    leaderboard.write(without)
    path = put(tmp_path / "results", make_record("ms", 3))
    for value in WRONG:
        path.write_text(json.dumps(changed(RECORD, at, value)))
        board = made(tmp_path / "results")
        try:
            read_record(path)
        except RecordError as error:
            assert str(path) in str(error) and str(error) in board.problems
            # The table stands as it was written, so it is not written once more.
            assert board.frame.equals(without.frame)
        else:
            leaderboard.write(board)
    for text in ("NaN", "Infinity", "1e999"):
        written = json.dumps(changed(RECORD, at, "HERE")).replace('"HERE"', text)
        path.write_text(written)
        board = made(tmp_path / "results")
        assert any(str(path) in problem for problem in board.problems)
        assert board.frame.equals(without.frame)
    assert table.exists()


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{", b"[]", b"null", b"\xff\xfe", b'"text"', b"[" * 100_000, b'{"a":' * 50_000),
        *(b"0" * 1000, b'{"kind": "reproduction"}', b"\x80\x04."),
    ],
    ids=lambda content: repr(content[:12]),
)
def test_merge_takes_nothing_that_it_could_not_show(tmp_path: Path, content: bytes) -> None:
    """It used to bring it in first, and then no table could be made."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    put_scores(ours, "triplet", [0.4])
    good = put(theirs, make_record("ms", 1))
    bad = good.with_name("abc-02.json")
    bad.write_bytes(content)
    worse = put_metrics(good, {"nmi": 0.5})
    worse.write_bytes(content)
    done = merge([theirs], ours)
    assert done.copied == 1 and len(done.refused) == 2
    assert {bad.name, worse.name} == {
        name for name in (bad.name, worse.name) if any(name in said for said in done.refused)
    }
    assert sorted(path.name for path in find_records(done.tables[0])) == ["abc-01.json"] * 2
    board = made(ours)
    leaderboard.write(board)
    assert board.problems == []


def test_the_command_says_what_it_did_not_take(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    put_scores(ours, "triplet", [0.4])
    path = put(theirs, make_record("ms", 1))
    path.write_text(json.dumps(changed(RECORD, ("folds", 0, "best_step"), "x")))
    assert main(["merge", str(theirs), "--results-dir", str(ours)]) == 2
    said = capsys.readouterr().err
    assert "abc-01.json: not a TestRecord: field 'folds[0].best_step' takes a whole number" in said
    assert main(["leaderboard", "--results-dir", str(ours)]) == 0
