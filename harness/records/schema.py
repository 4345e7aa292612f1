"""The JSON Schema of records, for programs in other languages.

It is made from the types of the records, whose docstrings explain the fields.
"""

from __future__ import annotations

from typing import Any

import msgspec

from harness.records.records import FoldRecord, MetricsRecord, TestRecord, ValidationRecord


def json_schema() -> dict[str, Any]:
    """A schema with one definition for each kind of record, by the name of its class."""
    kinds = (TestRecord, MetricsRecord, ValidationRecord, FoldRecord)
    choices, definitions = msgspec.json.schema_components(kinds, ref_template="#/$defs/{name}")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Records of metric-harness",
        "anyOf": list(choices),
        "$defs": definitions,
    }
