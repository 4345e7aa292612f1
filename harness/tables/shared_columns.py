"""Columns that leaderboards and sweeps share: cost, what was measured, and what made the row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from harness.records.provenance import commit_of, versions_of
from harness.records.records import TestRecord, ValidationRecord
from harness.tables.column import Column


class FromRecords(Protocol):
    """A line that was made from records.

    Attributes:
        last: the newest of them; None if there are none.
        cost: column of COST -> value; empty without models.
    """

    @property
    def last(self) -> TestRecord | ValidationRecord | None: ...

    @property
    def cost(self) -> Mapping[str, Any]: ...


def _cost(name: str, explanation: str) -> Column[FromRecords]:
    return Column(name, explanation, lambda line: line.cost.get(name))


def _of_last(
    name: str, explanation: str, value: Callable[[TestRecord | ValidationRecord], Any]
) -> Column[FromRecords]:
    return Column(name, explanation, lambda line: None if line.last is None else value(line.last))


COST = (
    _cost("best_step", "steps to the best checkpoint, mean over models"),
    _cost("ms_per_step", "training time per step, mean over models"),
    _cost("convergence_seconds", "training time to the best checkpoint, mean over models"),
    _cost("train_seconds", "training time of one model, mean"),
    _cost("peak_memory_mib", "largest, of a GPU or of the process on a CPU"),
    _cost("device", "what it was trained on"),
)
MEASURED_UNDER = (
    _of_last("protocol", "name of the protocol", lambda last: last.identity["protocol"]["name"]),
    _of_last("dataset", "name of the data set", lambda last: last.identity["dataset"]),
    _of_last("trunk", "name of the trunk", lambda last: last.identity["trunk"]),
)
MADE_BY = (
    _of_last(
        "commit",
        "of the code, with + if it had been changed; empty for an installed package",
        lambda last: commit_of(last.provenance),
    ),
    _of_last(
        "versions",
        "of Python and the libraries, as JSON",
        lambda last: versions_of(last.provenance),
    ),
    _of_last(
        "command",
        "that wrote the last record",
        lambda last: last.provenance["command"].replace("\n", " "),
    ),
)
