"""What a sweep varies: axes, as people type them, and the points that they span."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

from harness.config import RunConfig, keys
from harness.errors import HarnessError, convert_value_errors, unknown
from harness.plain_yaml import read_yaml
from harness.protocols.protocol import with_change

# Axis -> value.
Values = Mapping[str, Any]

LOSS, VARIANT = "loss", "variant"
PARAMS, PROTOCOL = "params.", "protocol."

CONFIG_AXES = [name for name, about in keys().items() if about.is_axis]

MOST_IN_RANGE = 30_000

_RANGE = re.compile(r"(-?\d{1,18})\.\.(-?\d{1,18})")


@dataclass(frozen=True)
class Axis:
    """One thing that varies.

    Attributes:
        key: params.NAME, protocol.FIELD, or a config key.
    """

    key: str
    values: tuple[Any, ...]


def parse_axis(text: str) -> Axis:
    """`params.ratio=0.05,0.5,1` as an axis; `1..30` stands for all whole numbers between.

    Values that hold a comma themselves are separated by semicolons.
    """
    key, equals, listed = text.partition("=")
    if not equals or not listed:
        raise HarnessError(
            f"--over takes KEY=VALUE,VALUE,..., got '{text}'\n"
            "  as in --over params.proxies_per_class=1..12 --over protocol.batch_size=16,32,64"
        )
    values: list[Any] = []
    for part in listed.split(";" if ";" in listed else ","):
        values += _parse_values(part.strip())
    return make_axis(key.strip(), values)


def make_axis(key: str, values: Sequence[Any]) -> Axis:
    """An axis whose key can be one, with at least one value, none of them twice."""
    if not key.startswith((PARAMS, PROTOCOL)) and key not in CONFIG_AXES:
        known = [f"{PARAMS}NAME", f"{PROTOCOL}FIELD", *CONFIG_AXES]
        raise unknown("axis", key, known, "several losses: --loss c2 ccp-c2")
    if not values:
        raise HarnessError(f"axis {key} has no values")
    twice = [value for position, value in enumerate(values) if value in values[:position]]
    if twice:
        raise HarnessError(f"axis {key} has the value {twice[0]} twice")
    return Axis(key, tuple(values))


def _parse_values(text: str) -> list[Any]:
    between = _RANGE.fullmatch(text)
    if between is None:
        return [_parse_value(text) if text else ""]
    first, last = int(between[1]), int(between[2])
    if first > last:
        raise HarnessError(f"a range goes up, got {text}")
    if last - first >= MOST_IN_RANGE:
        raise HarnessError(f"a range has at most {MOST_IN_RANGE:,} values, got {text}")
    return list(range(first, last + 1))


def _parse_value(text: str) -> Any:
    with convert_value_errors(f"'{text}' is no value"):
        return read_yaml(text)


def parse_variant(text: str) -> tuple[str, Values]:
    """`no norm: protocol.norm=none; params.x=1` as a name and what it changes; perhaps nothing."""
    name, _, changes = text.partition(":")
    values = {}
    for change in filter(None, (part.strip() for part in changes.split(";"))):
        key, equals, value = change.partition("=")
        if not equals:
            raise HarnessError(
                f"--variant takes NAME:KEY=VALUE;KEY=VALUE, got '{text}'\n"
                "  as in --variant full --variant 'no norm:protocol.norm=none'"
            )
        values[key.strip()] = _parse_value(value)
    return name.strip(), values


def check_variants(variants: Mapping[str, Values], axes: Sequence[Axis]) -> None:
    """Refuse a variant without a name, or one that changes what cannot be, or what an axis does."""
    for name, changes in variants.items():
        if not name:
            raise HarnessError("a variant has no name; --variant takes NAME:KEY=VALUE")
        for key, value in changes.items():
            if key != LOSS:
                make_axis(key, [value])
            if key in [axis.key for axis in axes]:
                raise HarnessError(f"variant '{name}' changes {key}, which is an axis")


def span(
    axes: Sequence[Axis], zipped: bool, max_points: int, losses: int = 1
) -> list[dict[str, Any]]:
    """Every point: all combinations of the values, the last axis fastest; or one of each, zipped.

    Args:
        max_points: more are refused.
        losses: that each point is trained with, and variants, so that it counts as many times.
    """
    keys = [axis.key for axis in axes]
    for key in keys:
        if keys.count(key) > 1:
            raise HarnessError(f"axis {key} is given twice; put all its values into one --over")
    lengths = [len(axis.values) for axis in axes]
    if zipped and len(set(lengths)) > 1:
        found = ", ".join(f"{key} has {count}" for key, count in zip(keys, lengths, strict=True))
        raise HarnessError(f"--zip needs axes of one length: {found}")
    count = losses * (lengths[0] if zipped and axes else prod(lengths))
    if count > max_points:
        raise HarnessError(
            f"the grid has {count:,} points, more than --max-points {max_points:,}\n"
            "  leave out some values, or allow that many"
        )
    columns = [axis.values for axis in axes]
    rows = zip(*columns, strict=True) if zipped and axes else product(*columns)
    return [dict(zip(keys, row, strict=True)) for row in rows]


def config_at(config: RunConfig, values: Values) -> RunConfig:
    """The config of one point."""
    params, protocol = dict(config.params), config.protocol
    keys: dict[str, Any] = {}
    for key, value in values.items():
        if key.startswith(PARAMS):
            name = key.removeprefix(PARAMS)
            if name in config.params:
                raise HarnessError(f"{key} is both swept and fixed at {config.params[name]}")
            params[name] = value
        elif key == "protocol":
            protocol = value
        elif not key.startswith(PROTOCOL):
            keys[key] = value
    for key, value in values.items():
        if key.startswith(PROTOCOL):
            protocol = with_change(protocol, key.removeprefix(PROTOCOL), value)
    return config.updated({**keys, "params": params, "protocol": protocol})
