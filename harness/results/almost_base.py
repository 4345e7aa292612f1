"""Did a search end where its method is almost its base?"""

from __future__ import annotations

from typing import Any

from harness.results.questions import CORNERS
from harness.results.records import TestRecord

# Of the difference in the corner, under 1 % of a gradient: here it is under 5 %.
TIMES = 5


def almost_base(record: TestRecord) -> str:
    """The base that the method trains almost as, with these parameters; empty without any."""
    # Records of before the corner was written into them are of the papers' methods.
    corner = record.search.get("corner", CORNERS.get(record.identity["method"], {}))
    ranges = record.search.get("ranges", {})
    almost = bool(corner) and all(
        _near(record.params.get(name), value, ranges.get(name, {}).get("log") is True)
        for name, value in corner.items()
    )
    return record.search.get("base", "") if almost else ""


def _near(value: Any, corner: Any, log: bool) -> bool:
    if not (isinstance(value, int | float) and isinstance(corner, int | float)):
        return bool(value == corner)
    if log:
        return corner / TIMES <= value <= corner * TIMES
    return abs(value - corner) <= abs(corner) * TIMES / 100
