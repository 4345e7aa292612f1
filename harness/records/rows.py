"""The records of a table, found, read and grouped into rows: one per method."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from harness.metrics.names import METRICS
from harness.protocols.fields import defaults_left_out
from harness.protocols.protocol import EvaluationProtocol
from harness.records.layout import find_records
from harness.records.records import (
    TEST_SELECTED,
    MetricsRecord,
    RecordError,
    Scores,
    TestRecord,
    read_record,
)

AnyRecord = TestRecord | MetricsRecord
Row = list[TestRecord]
Searches = list[Row]  # of one method, that which tables show first

# Of an identity: what rows of one table may differ in, or what is compared by itself.
OF_A_METHOD_OR_ITS_DATA = {"method", "seed", "protocol", "data_fingerprint", "split"}


def read_rows(table: Path, problems: list[str]) -> list[Row]:
    """The records of each row that a table shows."""
    return [searches[0] for searches in group_searches(read_tests(table, problems))]


def group_searches(tests: Iterable[TestRecord]) -> list[Searches]:
    """The searches of each method: one per seed, at the parameters that did best in validation.

    The search whose seed most methods have comes first: it shares its runs with theirs.
    """
    found: dict[str, dict[int, dict[str, Row]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(list))
    )
    for record in tests:
        params = json.dumps(record.params, sort_keys=True)
        found[label_of([record])][record.identity["seed"]][params].append(record)
    having = Counter(seed for by_seed in found.values() for seed in by_seed)
    return [
        [
            max(by_seed[seed].values(), key=_selection)
            for seed in sorted(by_seed, key=lambda seed: (-having[seed], seed))
        ]
        for by_seed in found.values()
    ]


def read_tests(table: Path, problems: list[str]) -> list[TestRecord]:
    """Every test that can stand in one table, once, with the metrics that were asked for later."""
    records = read_records(table, problems)
    found = {path: record for path, record in records.items() if isinstance(record, TestRecord)}
    if not found:
        return []
    newest = newest_of(found.values())
    on_demand = _metrics_by_run(r for r in records.values() if isinstance(r, MetricsRecord))
    first: dict[str, Path] = {}
    tests = []
    for path, record in found.items():
        reason = difference(record, newest, ("in it", "in the newest record"))
        if reason:
            problems.append(f"{path}: {reason}; left out")
            continue
        run = key_of(record)
        twin = first.setdefault(run, path)
        if twin != path:
            problems.append(f"{path}: the same run as {twin}, left out")
            continue
        tests.append(_with_metrics(record, on_demand.get(run, {})))
    return tests


def read_records(table: Path, problems: list[str]) -> dict[Path, AnyRecord]:
    """Every record of a table that can be read, by its file; the others are named."""
    found: dict[Path, AnyRecord] = {}
    for path in find_records(table):
        try:
            found[path] = read_record(path)
        except RecordError as error:
            problems.append(str(error))
    return found


def label_of(row: Row) -> str:
    """What a row is called."""
    first = row[0]
    method = first.identity["method"]
    if first.kind == TEST_SELECTED:
        return f"{method} ({TEST_SELECTED})"
    return f"{method} (single {first.dims['concatenated']})" if first.kind == "single" else method


def mean_score(row: Row, metric: str = METRICS[0]) -> float:
    """Of the concatenated embeddings, over the reproductions."""
    return float(np.mean([record.scores["concatenated"][metric] for record in row]))


def key_of(record: AnyRecord) -> str:
    """What two records share if they are of the same run, whatever their files are called."""
    parts = [record.kind, record.identity, record.params, record.repetition]
    return json.dumps(parts, sort_keys=True)


def run_of(record: TestRecord) -> tuple[int, int]:
    """What two records share if their random streams are the same: seed and repetition."""
    return record.identity["seed"], record.repetition


def newest_of(records: Iterable[AnyRecord]) -> AnyRecord:
    """The record that decides which version of data and protocol a table is of."""
    return max(records, key=lambda record: record.provenance["time"])


def difference(
    record: AnyRecord, reference: AnyRecord, sides: tuple[str, str] = ("there", "here")
) -> str:
    """Why a record cannot stand in one table with another; empty if it can.

    Args:
        sides: how to call the two.
    """
    its, other = sides
    for what, value in _measured_on(record).items():
        wanted = _measured_on(reference)[what]
        if value != wanted:
            return f"another {what} ({value} {its}, {wanted} {other})"
    # What only one identity has, beside the protocol, was added by a newer version of the code.
    shared = (record.identity.keys() & reference.identity.keys()) - OF_A_METHOD_OR_ITS_DATA
    stated, asked = _settings(record, shared), _settings(reference, shared)
    for name in sorted(stated.keys() | asked.keys()):
        if stated.get(name) != asked.get(name):
            return (
                f"another protocol under the same name: {name} is {stated.get(name)} {its}, "
                f"{asked.get(name)} {other}"
            )
    return ""


def _settings(record: AnyRecord, more: Iterable[str]) -> dict[str, Any]:
    """Every field of the protocol, and more of the identity."""
    identity: Mapping[str, Any] = record.identity
    return {**UNSTATED, **identity["protocol"], **{name: identity[name] for name in more}}


def setting(stated: Mapping[str, Any], name: str) -> Any:
    """A field of a protocol as a record has it, whether it is stated there or not."""
    return _as_json(stated.get(name, UNSTATED.get(name)))


def _as_json(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


# Values of the fields that an identity does not state.
UNSTATED = {
    name: _as_json(default) for name, default in defaults_left_out(EvaluationProtocol).items()
}


def _measured_on(record: AnyRecord) -> dict[str, str]:
    return {
        "version of the trainval images": record.identity["data_fingerprint"],
        "class split": record.identity["split"],
        "version of the test images": record.test_fingerprint,
    }


def _metrics_by_run(more: Iterable[MetricsRecord]) -> dict[str, Scores]:
    """The scores that were measured on demand."""
    found: dict[str, Scores] = defaultdict(lambda: defaultdict(dict))
    for record in more:
        for embedding, values in record.scores.items():
            found[key_of(record)][embedding] |= values
    return found


def _with_metrics(record: TestRecord, more: Scores) -> TestRecord:
    if not more:
        return record
    scores = {
        embedding: {**values, **more.get(embedding, {})}
        for embedding, values in record.scores.items()
    }
    return replace(record, scores=scores)


def _selection(row: Row) -> tuple[float, int]:
    """What makes a set of parameters the method's: validation score, never a test score."""
    search = row[0].search
    return search.get("validation", 0.0), search.get("trials", 0)
