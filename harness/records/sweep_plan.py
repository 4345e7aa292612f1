"""What a sweep varies: its points, and what a paper printed of them, as sweep.json states it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from harness.errors import HarnessError
from harness.records.layout import PLAN
from harness.records.records import Record, Setting


class Point(TypedDict):
    """One point of a sweep, and how its records are told from others.

    Attributes:
        values: axis -> value.
        table: protocol / data set - trunk.
        failure: why it has no score, if it has none.
    """

    values: dict[str, Setting]
    method: str
    table: str
    params: dict[str, Setting]
    seed: int
    failure: NotRequired[str]


class PublishedValue(TypedDict):
    """What a paper printed of some points.

    Attributes:
        values: axis -> value that those points have.
        metric: as papers count: in percent.
        embedding: concatenated or separated, where a paper tells them apart.
        read_off: from a plot, hence not exact.
    """

    values: dict[str, Setting]
    metric: str
    embedding: str
    value: float
    read_off: bool


@dataclass(frozen=True)
class SweepPlan(Record):
    """What a sweep varies.

    Attributes:
        axes: in the order in which they were given.
        settings: of the config, what all points share.
        metric: that validation measures.
    """

    axes: list[str]
    settings: dict[str, Any]
    metric: str
    points: list[Point] = field(default_factory=list)
    published: list[PublishedValue] = field(default_factory=list)

    def joined(self, other: SweepPlan, folder: Path) -> SweepPlan:
        """With the points of a later command of the same name; another sweep is refused."""
        for what in ("axes", "settings", "metric"):
            ours, theirs = getattr(self, what), getattr(other, what)
            if ours != theirs:
                raise HarnessError(
                    f"{folder} holds another sweep: its {what} are {_differing(ours, theirs)}, now "
                    f"{_differing(theirs, ours)}\n  give this one a name of its own: --name"
                )
        points = {key_of(point["values"]): point for point in (*self.points, *other.points)}
        return replace(other, points=list(points.values()))


def _differing(one: Any, other: Any) -> str:
    if not isinstance(one, dict):
        return ", ".join(one) if isinstance(one, list) else str(one)
    differing = {name: value for name, value in one.items() if other.get(name) != value}
    return ", ".join(f"{name}={value}" for name, value in differing.items()) or "the same"


def key_of(values: Mapping[str, Any]) -> str:
    """What tells one set of values from another."""
    return json.dumps(values, sort_keys=True)


def read_plan(folder: Path) -> SweepPlan | None:
    """Of a sweep that is there."""
    path = folder / PLAN
    return SweepPlan.read(path) if path.exists() else None
