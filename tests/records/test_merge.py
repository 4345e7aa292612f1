"""Merging records: copied byte for byte, refused with a reason, counted once, never overwritten."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from made_records import make_record, put, put_metrics, put_scores

from harness.cli import main
from harness.errors import HarnessError
from harness.records.classes import note_test_classes, read_test_classes
from harness.records.layout import LEDGER
from harness.records.ledger import note_test_opening
from harness.records.merge import merge
from harness.records.records import TestRecord


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    put_scores(tmp_path / "ours", "ms", [0.5, 0.6])
    return tmp_path / "ours"


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    return tmp_path / "theirs"


def contents(folder: Path) -> dict[Path, bytes]:
    """Of all files but those that only serve as locks."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock"]
    return {path: path.read_bytes() for path in files}


def test_new_records_are_copied_byte_for_byte_and_old_ones_left(ours: Path, theirs: Path) -> None:
    before = contents(ours)
    path = put(theirs, make_record("triplet", 1, 0.4))
    path.write_text(path.read_text() + "\n\n")  # any byte counts
    done = merge([theirs], ours)
    assert (done.copied, done.known, done.refused) == (1, 0, [])
    assert (ours / path.relative_to(theirs)).read_bytes() == path.read_bytes()
    assert before.items() <= contents(ours).items()


def test_more_runs_of_a_method_join_those_that_are_there(ours: Path, theirs: Path) -> None:
    put(theirs, make_record("ms", 3, 0.7))
    put_scores(theirs, "ms", [0.5, 0.6], dataset="cars")
    assert merge([theirs], ours).copied == 3
    assert {path.name for path in ours.glob("mlrc/*")} == {"cub-bninception", "cars-bninception"}


def test_the_same_run_counts_once_even_under_another_name(ours: Path, theirs: Path) -> None:
    path = put(theirs, make_record("ms", 1, 0.5))
    path.rename(path.with_name("renamed-01.json"))
    done = merge([theirs, theirs], ours)
    assert (done.copied, done.known, done.refused) == (0, 2, [])


PROTOCOL = make_record().identity["protocol"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"data_fingerprint": "d2"}, "another version of the trainval images (d2 there, d1 here)"),
        ({"split": "s2"}, "another class split (s2 there, s1 here)"),
        ({"test_fingerprint": "t2"}, "another version of the test images (t2 there, t1 here)"),
        (
            {"protocol": {**PROTOCOL, "lr": 0.1}},
            "another protocol under the same name: lr is 0.1 there, 1e-06 here",
        ),
        (
            {"protocol": {**PROTOCOL, "epochs": 10}},  # one that is not named at its default
            "another protocol under the same name: epochs is 10 there, None here",
        ),
    ],
    ids=["data", "split", "test data", "protocol", "epochs"],
)
def test_what_measures_something_else_is_refused(
    ours: Path, theirs: Path, changes: dict[str, Any], reason: str
) -> None:
    before = contents(ours)
    path = put(theirs, make_record("triplet", 1, 0.4, **changes))
    done = merge([theirs], ours)
    assert done.refused == [f"{path}: {reason}"] and done.copied == 0
    assert contents(ours) == before


def test_other_pretrained_weights_are_refused_but_unstated_ones_are_not(
    ours: Path, theirs: Path
) -> None:
    def with_weights(repetition: int, digest: str) -> TestRecord:
        record = make_record("triplet", repetition, 0.4)
        return replace(record, identity={**record.identity, "weights": digest})

    put(theirs, with_weights(1, "w1"))
    assert merge([theirs], ours).refused == []  # older records do not say
    late = {**make_record().provenance, "time": "2027-01-01T00:00:00+00:00"}
    put(ours, replace(with_weights(2, "w1"), provenance=late))
    put(theirs, with_weights(3, "w2"))
    (refused,) = merge([theirs], ours).refused
    assert "weights is w2 there, w1 here" in refused


def test_the_same_run_with_other_scores_is_refused(ours: Path, theirs: Path) -> None:
    before = contents(ours)
    path = put(theirs, make_record("ms", 1, 0.51))
    (refused,) = merge([theirs], ours).refused
    there = ours / path.relative_to(theirs)
    assert refused == (
        f"{path}: the same run has other scores in {there}: "
        "map_at_r concatenated 0.51 there, 0.5 here"
    )
    assert contents(ours) == before


def test_another_run_under_the_name_of_a_file_does_not_replace_it(ours: Path, theirs: Path) -> None:
    before = contents(ours)
    path = put(theirs, make_record("ms", 1, 0.9, params={"alpha": 3.0}))
    (refused,) = merge([theirs], ours).refused
    assert refused == f"{path}: {ours / path.relative_to(theirs)} is there and holds something else"
    assert contents(ours) == before


def test_a_file_that_is_no_record_is_refused_and_the_rest_copied(ours: Path, theirs: Path) -> None:
    broken = put(theirs, make_record("triplet", 1, 0.4))
    broken.write_text(broken.read_text()[:100])
    put(theirs, make_record("triplet", 2, 0.4))
    done = merge([theirs], ours)
    assert done.copied == 1 and len(done.refused) == 1
    assert f"{broken}: not a complete JSON file" in done.refused[0]


def test_a_record_in_the_wrong_folder_is_refused(ours: Path, theirs: Path) -> None:
    path = put(theirs, make_record("triplet", 1, 0.4))
    wrong = theirs / "mlrc-hpl" / "cub-bninception" / "records" / "triplet" / path.name
    wrong.parent.mkdir(parents=True)
    path.rename(wrong)
    (refused,) = merge([theirs], ours).refused
    assert "lies in mlrc-hpl/cub-bninception/records/triplet but says that it belongs in" in refused


def openings(results: Path) -> list[str]:
    path = results / "mlrc" / "cub-bninception" / LEDGER
    return [json.loads(line)["method"] for line in path.read_text().splitlines()]


def test_openings_are_counted_once(ours: Path, theirs: Path) -> None:
    table = Path("mlrc", "cub-bninception")
    note_test_opening(ours / table, "ms", "abc", 1)
    theirs_ledger = theirs / table / LEDGER
    put(theirs, make_record("triplet", 1, 0.4))
    theirs_ledger.write_bytes((ours / table / LEDGER).read_bytes())  # they began from ours
    note_test_opening(theirs / table, "triplet", "abc", 1)
    note_test_opening(theirs / table, "triplet", "lost", 1)  # opened, but no record was written
    for _ in range(2):
        assert merge([theirs], ours).problems == []
        assert openings(ours) == ["ms", "triplet", "triplet"]


def test_openings_of_something_else_are_not_counted(ours: Path, theirs: Path) -> None:
    table = Path("mlrc", "cub-bninception")
    put(theirs, make_record("triplet", 1, 0.4, split="s2"))
    put(theirs, make_record("snr", 1, 0.4))
    for method in ("triplet", "snr"):
        note_test_opening(theirs / table, method, "abc", 1)
    merge([theirs], ours)
    assert openings(ours) == ["snr"]


def test_a_broken_line_of_a_ledger_is_named(ours: Path, theirs: Path) -> None:
    path = put(theirs, make_record("triplet", 1, 0.4)).parent.parent.parent / LEDGER
    path.write_text("[1]\n")
    assert merge([theirs], ours).problems == [f"{path}, line 1: not a ledger entry"]


def test_into_an_empty_folder_the_newest_version_of_the_data_goes(
    tmp_path: Path, theirs: Path
) -> None:
    put(theirs, make_record("a", 1, 0.4, data_fingerprint="old"))
    late = {**make_record().provenance, "time": "2027-01-01T00:00:00+00:00"}
    put(theirs, make_record("b", 1, 0.4, provenance=late))
    done = merge([theirs], tmp_path / "new")
    assert done.copied == 1 and "another version of the trainval images (old" in done.refused[0]


def test_folders_that_cannot_be_meant_are_refused_before_anything_is_copied(
    ours: Path, theirs: Path, tmp_path: Path
) -> None:
    put(theirs, make_record("triplet", 1, 0.4))
    before = contents(ours)
    with pytest.raises(HarnessError, match="is the results folder itself"):
        merge([theirs, ours], ours)
    with pytest.raises(HarnessError, match=r"no records in .*empty: a results folder has them in"):
        merge([theirs, tmp_path / "empty"], ours)
    assert contents(ours) == before


def test_the_command_makes_the_tables_again_and_fails_if_something_was_refused(
    ours: Path, theirs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(theirs, make_record("triplet", 1, 0.4))
    assert main(["merge", str(theirs), "--results-dir", str(ours)]) == 0
    assert "1 records copied, 0 were there, 0 refused" in capsys.readouterr().out
    frame = pd.read_csv(ours / "mlrc" / "cub-bninception" / "leaderboard.csv")
    assert frame["method"].tolist() == ["ms", "triplet"]
    put(theirs, make_record("ms", 1, 0.9))
    assert main(["merge", str(theirs), "--results-dir", str(ours)]) == 2
    assert "error: these records were refused:\n  " in capsys.readouterr().err


def test_metrics_on_demand_are_merged_like_records(ours: Path, theirs: Path) -> None:
    path = put(theirs, make_record("ms", 1, 0.5))
    more = put_metrics(path, {"nmi": 0.6})
    done = merge([theirs], ours)
    assert (done.copied, done.known, done.refused) == (1, 1, [])
    assert merge([theirs], ours).known == 2
    put_metrics(path, {"nmi": 0.7})
    (refused,) = merge([theirs], ours).refused
    assert refused.startswith(f"{more}: the same run has other scores in ")


def test_the_names_of_test_classes_come_along_unless_they_are_there(
    ours: Path, theirs: Path
) -> None:
    path = put(theirs, make_record("triplet", 1, 0.4))
    table = path.parents[2].relative_to(theirs)
    note_test_classes(theirs / table, "s1", ["one", "two", "three"])
    merge([theirs], ours)
    assert read_test_classes(ours / table, "s1") == ["one", "two", "three"]
    note_test_classes(theirs / table, "s1", ["1", "2", "3"])
    merge([theirs], ours)
    assert read_test_classes(ours / table, "s1") == ["one", "two", "three"]
