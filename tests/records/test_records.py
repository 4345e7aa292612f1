"""A file that is not a record to the last field is named and left out, and nothing else suffers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_records import make_record, put, put_metrics, put_scores

from harness.judgement.judge import judge
from harness.records.layout import LEDGER
from harness.records.ledger import note_test_opening, read_ledger
from harness.records.merge import merge
from harness.records.records import (
    MOST_POINTS,
    FoldRecord,
    RecordError,
    TestRecord,
    read_record,
)
from harness.system.files import read_json
from harness.tables.latex import to_latex
from harness.tables.leaderboard import build
from harness.tables.rendering import describe_columns, to_markdown

Place = tuple[str | int, ...]


def changed(values: Any, place: Place, value: Any) -> Any:
    """A copy of nested values with one of them replaced; `...` takes it out."""
    first, *rest = place
    copy = dict(values) if isinstance(values, dict) else list(values)
    if rest:
        copy[first] = changed(copy[first], tuple(rest), value)
    elif value is ...:
        del copy[first]
    else:
        copy[first] = value
    return copy


def write_json_text(path: Path, values: Any) -> None:
    path.write_text(json.dumps(values))


@pytest.mark.parametrize(
    ("place", "value", "reason"),
    [
        (("repetition",), "1", "field 'repetition' takes a whole number, got '1' (str)"),
        (("repetition",), -1, "field 'repetition' takes a whole number >= 0, got -1 (int)"),
        (("kind",), "twin", "field 'kind' takes text matching regex"),
        (("identity", "seed"), None, "field 'identity.seed' takes a whole number, got None"),
        (("identity", "split"), ..., "lacks field 'identity.split'"),
        (("identity", "protocol", "name"), 3, "the protocol of the identity has no name"),
        (("params", "alpha"), [[1]], "field 'params[...][0]' takes true or false or a"),
        (("dims", "concatenated"), 0, "field 'dims[...]' takes a whole number >= 1"),
        (("dims",), {"separated": 128}, "dims lack the size of an embedding that has scores"),
        (("scores", "concatenated"), ..., "scores lack concatenated"),
        (("scores", "single"), {}, "scores are concatenated or separated, got single"),
        (("scores", "separated", "p_at_1"), 1.5, "p_at_1 is a part of a whole, got 1.5"),
        (("scores", "concatenated", "map_at_r"), -0.1, "takes a number >= 0"),
        (("scores", "concatenated", "map_at_r"), ..., "scores lack map_at_r"),
        (("scores", "concatenated", "dim"), 0.5, "no metric is called dim"),
        (("separated", 2, "map_at_r"), "0.5", "field 'separated[2][...]' takes a number, got text"),
        (("folds", 1, "steps"), 0, "field 'folds[1].steps' takes a whole number >= 1, got 0"),
        (("folds", 0, "device"), {}, "field 'folds[0].device' takes text, got {} (dict)"),
        (("search", "on_bound"), ["alpha"], "field 'search.on_bound' takes a mapping"),
        (("search", "asked"), {"trials": 50}, "lacks field 'search.asked.reproductions'"),
        (("provenance", "time"), "yesterday", "field 'provenance.time' takes text matching regex"),
        (("provenance", "versions", "torch"), 2, "field 'provenance.versions[...]' takes text"),
        (("per_class", "separated", "p_at_1"), [0.5], "p_at_1 of the classes does not fit"),
        (("per_class", "separated", "p_at_1"), [0.5, None, 1], "p_at_1 of the classes does not"),
        (("class_queries",), [4.5, 2, 2], "field 'class_queries[0]' takes a whole number"),
        (("missing_images",), 2**60, "field 'missing_images' takes a whole number <= "),
        (("queries",), ..., "lacks field 'queries'"),
        (("querys",), 8, "no field named 'querys'. Did you mean 'queries'?"),
    ],
)
def test_a_record_is_checked_to_the_last_field(
    tmp_path: Path, place: Place, value: Any, reason: str
) -> None:
    path = put(tmp_path, make_record())
    write_json_text(path, changed(read_json(path), place, value))
    with pytest.raises(RecordError) as caught:
        TestRecord.read(path)
    assert str(caught.value).startswith(f"{path}: not a TestRecord: ")
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    "text", ["", "{", "[" * 100_000, '{"a": NaN}', "1e999", '"\\ud800"', "\x00", "null"]
)
def test_a_file_that_is_no_json_object_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "abc-01.json"
    path.write_text(text)
    with pytest.raises(RecordError, match=f"^{path}: not a "):
        read_record(path)


def test_no_score_is_infinite_or_not_a_number(tmp_path: Path) -> None:
    path = put(tmp_path, make_record())
    for value in (float("nan"), float("inf")):
        write_json_text(path, changed(read_json(path), ("scores", "separated", "p_at_1"), value))
        with pytest.raises(RecordError, match="not a complete JSON file"):
            TestRecord.read(path)
        put(tmp_path, make_record())


def test_what_a_newer_version_states_in_a_part_is_kept(tmp_path: Path) -> None:
    path = put(tmp_path, make_record())
    values = changed(read_json(path), ("search", "new"), {"x": [1]})
    values = changed(values, ("identity", "new"), "y")
    write_json_text(path, values)
    assert asdict(TestRecord.read(path)) == values


def places(values: Any) -> Iterator[Place]:
    """Every place of nested values, the inner ones too."""
    items = values.items() if isinstance(values, dict) else enumerate(values)
    for key, value in items:
        yield (key,)
        if isinstance(value, dict | list):
            yield from ((key, *rest) for rest in places(value))


JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(max_size=5),
        st.sampled_from(["naive", "single", "ms", 0.5, 1, 2**40, 1e308]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=4,
)
FACTS = {
    **{"trial_scores": [0.3, None, 0.4], "trial_folds": [[0.2, 0.4], None, [0.3, 0.5]]},
    **{"validation_folds": [0.4, 0.5], "dimensions": 3},
}
WHOLE = asdict(make_record("ms", 1, 0.5, search={**make_record().search, **FACTS}))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """The record among others, the record alone, and where it is merged into."""
    among, alone, ours = (tmp_path_factory.mktemp(name) for name in ("among", "alone", "ours"))
    later = {**make_record().provenance, "time": "2027-01-01T00:00:00+00:00"}
    for method in ("one", "other"):
        put_scores(among, method, [0.4, 0.5], provenance=later, per_class={}, class_queries=[])
    put(alone, make_record())
    put(among, make_record())
    return among, alone, ours


@pytest.mark.slow
@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(place=st.sampled_from(list(places(WHOLE))), value=st.one_of(st.just(...), JSON))
def test_whatever_stands_in_a_record_the_tables_are_made(
    folders: tuple[Path, Path, Path], place: Place, value: Any
) -> None:
    """Either the record is shown, or it is named; a merge takes in only what is shown."""
    among, alone, ours = folders
    table = Path("mlrc", "cub-bninception")
    name = table / "records" / "ms" / "abc-01.json"
    shown = []
    for results, others in ((among, 2), (alone, 0)):
        write_json_text(results / name, changed(WHOLE, place, value))
        board = build(results / table)
        named = any(problem.startswith(f"{results / name}: ") for problem in board.problems)
        assert named or len(board.frame) == others + 1
        if len(board.frame):
            whole = board.table(whole=True)
            to_markdown(whole), to_latex(whole), describe_columns(whole, "x.csv")
        shown.append(not named)
    judge(among)
    shutil.rmtree(ours, ignore_errors=True)
    merge([alone], ours)
    assert (ours / name).exists() <= shown[1]


def test_metrics_of_a_run_are_checked_too(tmp_path: Path) -> None:
    path = put_metrics(put(tmp_path, make_record()), {"nmi": 0.5})
    write_json_text(path, changed(read_json(path), ("scores", "separated", "nmi"), [0.5]))
    board = build(path.parent.parent.parent)
    assert len(board.frame) == 1 and "nmi_concatenated" not in board.frame
    assert board.problems[0].startswith(f"{path}: not a MetricsRecord: field 'scores[...][...]'")


@pytest.mark.parametrize(
    "line",
    [
        '{"method": ["ms"], "params": "abc", "repetition": 1}',
        '{"method": "ms", "params": "abc", "repetition": "1"}',
        '{"method": "ms", "params": "abc"}',
        "\udcff",
    ],
)
def test_a_line_that_is_no_entry_of_a_ledger_is_named(tmp_path: Path, line: str) -> None:
    note_test_opening(tmp_path, "ms", "abc", 1)
    with open(tmp_path / LEDGER, "ab") as file:
        file.write(line.encode(errors="surrogateescape") + b"\n")
    problems: list[str] = []
    assert [entry["method"] for entry in read_ledger(tmp_path / LEDGER, problems)] == ["ms"]
    assert problems == [f"{tmp_path / LEDGER}, line 2: not a ledger entry"]


def test_a_long_history_is_thinned_but_keeps_its_ends_and_its_best() -> None:
    best = 777
    history = [(step, 1 / 3, step / 1000) for step in range(1, 1001)]
    fold = FoldRecord(
        **{"best_score": 0.777, "best_step": best, "steps": 1000, "stopped_by": "patience"},
        **{"history": history, "train_seconds": 1.0, "seconds": 2.0, "peak_memory": 1, "hook": {}},
        **{"identity": make_record().identity, "params": {}, "fold": 0, "repetition": 1},
        **{"device": "cpu", "provenance": make_record().provenance},
    )
    kept = fold.facts(scored=True)["history"]
    assert {1, best, 1000} <= set(kept["steps"]) and len(kept["steps"]) <= MOST_POINTS + 1
    assert kept["score"] == [step / 1000 for step in kept["steps"]]
    assert set(kept["loss"]) == {0.33333}
    assert "score" not in fold.facts(scored=False)["history"]  # of one that nobody validates
