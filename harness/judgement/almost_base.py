"""Did a search end where its method nearly coincides with its base?"""

from __future__ import annotations

from harness.judgement.declared import base_near
from harness.records.records import TestRecord


def almost_base(record: TestRecord) -> str:
    """The base that the method coincides with, at these parameters; empty without any."""
    return base_near(record.identity["method"], record.params, record.search)
