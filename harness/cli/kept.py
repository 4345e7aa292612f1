"""The row of a table that a command names, with its models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.cli.options import Given, find_file, rows_named
from harness.config import keys
from harness.errors import HarnessError, unknown
from harness.loss_file import is_file

if TYPE_CHECKING:
    from harness.evaluation.kept_models import KeptModels
    from harness.records.records import TestRecord


def find_row(given: Given, method: str, reproduction: int) -> tuple[TestRecord, KeptModels]:
    """The record of one reproduction of a row, and the models that it was made by."""
    from harness.records.rows import label_of, read_rows

    method = find_file(method)
    folder = given.table
    rows = {label_of(row): row for row in read_rows(folder, [])}
    (name,) = rows_named([method], rows)
    if name not in rows:
        raise unknown("method", method, rows, f"these have records in {folder}")
    records = {record.repetition: record for record in rows[name]}
    if reproduction not in records:
        raise HarnessError(
            f"{name} has no reproduction {reproduction} in {folder}; it has "
            f"{', '.join(map(str, sorted(records)))}"
        )
    from harness.evaluation.kept_models import find_kept

    # The record says which search made the models; the other keys say where they are.
    where = {k: value for k, value in given.values.items() if not keys()[k].picks_searches}
    record = records[reproduction]
    return record, find_kept(record, where, [method] if is_file(method) else [])
