"""The version of a record, and the JSON Schema that describes all records."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from made_records import put_scores

from harness.records.layout import holds_metrics
from harness.records.records import SCHEMA, RecordError, TestRecord
from harness.records.schema import json_schema

RESULTS = Path(__file__).parents[2] / "results"


def validator(kind: str) -> Draft202012Validator:
    schema = {**json_schema(), "anyOf": [{"$ref": f"#/$defs/{kind}"}]}
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


@pytest.mark.parametrize(
    ("kind", "pattern"),
    [
        ("TestRecord", "records/*/*.json"),
        ("ValidationRecord", "validation/*/*.json"),
    ],
)
def test_committed_records_fit_the_schema(kind: str, pattern: str) -> None:
    """Most of them are from before there were versions."""
    fits = validator(kind)
    found = sorted(path for path in RESULTS.rglob(pattern) if not holds_metrics(path))
    assert found
    for path in found[::10]:  # of each table some
        fits.validate(json.loads(path.read_text()))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    put_scores(tmp_path, "ms", [0.5])
    (path,) = tmp_path.rglob("records/ms/*.json")
    return path


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record.pop("identity"),
        lambda record: record["identity"].pop("seed"),
        lambda record: record.update(repetition=-1),
        lambda record: record.update(kind="twin"),
        lambda record: record["scores"]["concatenated"].update(map_at_r="high"),
    ],
)
def test_the_schema_refuses_what_reading_refuses(path: Path, change: Any) -> None:
    values = json.loads(path.read_text())
    assert validator("TestRecord").is_valid(values)
    changed = copy.deepcopy(values)
    change(changed)
    assert not validator("TestRecord").is_valid(changed)
    path.write_text(json.dumps(changed))
    with pytest.raises(RecordError):
        TestRecord.read(path)


def test_a_new_record_has_the_version_and_its_identity_does_not(path: Path) -> None:
    values = json.loads(path.read_text())
    assert values["schema"] == SCHEMA == 1
    assert "schema" not in values["identity"]
    assert TestRecord.read(path).schema == 1


def test_a_record_without_a_version_has_version_0(path: Path) -> None:
    values = json.loads(path.read_text())
    del values["schema"]
    path.write_text(json.dumps(values))
    assert TestRecord.read(path).schema == 0


def test_a_record_of_a_later_version_is_refused_in_words(path: Path) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema": 2, "more": 1}))
    with pytest.raises(RecordError, match="it has schema 2, and this version of metric-harness"):
        TestRecord.read(path)
