"""Did a search end where its method is almost its base?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.judgement.questions import CORNERS
from harness.records.records import SearchFacts, TestRecord

# Of the difference in the corner, under 1 % of a gradient: here it is under 5 %.
TIMES = 5


def almost_base(record: TestRecord) -> str:
    """The base that the method trains almost as, with these parameters; empty without any."""
    return base_near(record.identity["method"], record.params, record.search)


def base_near(method: str, params: Mapping[str, Any], search: SearchFacts) -> str:
    """The same of parameters that are not tested yet.

    Args:
        search: its base, corner and ranges count.
    """
    # Records of before the corner was written into them are of the papers' methods.
    corner = search.get("corner", CORNERS.get(method, {}))
    ranges = search.get("ranges", {})
    almost = bool(corner) and all(
        _near(params.get(name), value, ranges.get(name, {}).get("log") is True)
        for name, value in corner.items()
    )
    return search.get("base", "") if almost else ""


def _near(value: Any, corner: Any, log: bool) -> bool:
    if not (isinstance(value, int | float) and isinstance(corner, int | float)):
        return bool(value == corner)
    if log:
        return corner / TIMES <= value <= corner * TIMES
    return abs(value - corner) <= abs(corner) * TIMES / 100
