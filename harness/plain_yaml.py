"""YAML as plain values of a bounded size, whoever wrote it; what is none is a ValueError."""

from __future__ import annotations

from typing import Any

import yaml

MOST_VALUES = 100_000  # in one text, each counted as often as aliases repeat it


def read_yaml(text: str) -> Any:
    """The value in a text: no tags that make objects, and no aliases that make it endless."""
    try:
        value = yaml.safe_load(text)
        _check(value)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except OverflowError as error:  # as of a date in the year 99999
        raise ValueError(str(error)) from None
    return value


def _check(value: Any) -> None:
    if _count(value, {}) > MOST_VALUES:
        raise ValueError(f"its aliases make more than {MOST_VALUES:,} values of it")


def _count(value: Any, known: dict[int, int]) -> int:
    """Values within a value; refuses texts that nothing can be called by or written with."""
    if isinstance(value, str):
        if "\0" in value or (not value.isascii() and any("\ud800" <= c <= "\udfff" for c in value)):
            raise ValueError(f"{value!r} is no text that can be written down")
        return 1
    if not isinstance(value, dict | list):
        return 1
    if id(value) not in known:
        known[id(value)] = MOST_VALUES + 1  # should it hold itself
        parts = [*value, *value.values()] if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_count(part, known) for part in parts)
    return known[id(value)]
