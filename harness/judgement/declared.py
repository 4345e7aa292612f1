"""What a method declares about its base, as its records state it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.records.records import SearchFacts, TestRecord

# A value counts as the corner's up to this factor on a logarithmic scale, or up to as many percent
# of it on a linear one: a step differs from the base's by less than 1% in the corner, by less than
# 5% here.
TIMES = 5

# Declarations that records did not state at first, for the methods that were searched then.
OLDER_CORNERS: Mapping[str, Mapping[str, float]] = {
    "hpl-nca": {"coarse_weight": 1e-3},
    "hpl-pa": {"coarse_weight": 1e-3},
    "ccp-c2": {"batch_share": 1.0, "reference_weight": 1e-5},
}
OLDER_RIVALS: Mapping[str, tuple[str, ...]] = {
    "proxynca++": ("proxynca",),
    "proxygml": ("softtriple", "proxynca"),
    "ccp-c2": ("c2-xbm",),
    "drml-pa": ("relation-pa",),
}


def declared_rivals(record: TestRecord) -> dict[str, str]:
    """Method -> what it is to this one: its base, and what its paper compares it with."""
    search, method = record.search, record.identity["method"]
    base = search.get("base", "")
    compared = search.get("compared_with", OLDER_RIVALS.get(method, ()))
    return {
        **dict.fromkeys(compared, "a declared rival"),
        **({base: "its base"} if base else {}),
    }


def base_near(method: str, params: Mapping[str, Any], search: SearchFacts) -> str:
    """The base that a method nearly coincides with at some parameters; empty without any.

    Args:
        search: its base, corner and ranges count.
    """
    corner = search.get("corner", OLDER_CORNERS.get(method, {}))
    ranges = search.get("ranges", {})
    coincides = bool(corner) and all(
        _near(params.get(name), value, ranges.get(name, {}).get("log") is True)
        for name, value in corner.items()
    )
    return search.get("base", "") if coincides else ""


def _near(value: Any, corner: Any, log: bool) -> bool:
    if not (isinstance(value, int | float) and isinstance(corner, int | float)):
        return bool(value == corner)
    if log:
        return corner / TIMES <= value <= corner * TIMES
    return abs(value - corner) <= abs(corner) * TIMES / 100
