"""Values that do not fit their types are refused in words that name the field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import pytest
from msgspec import Meta

from harness.typed import convert

Share = Annotated[float, Meta(ge=0, le=1)]


class Part(TypedDict):
    share: Share
    pair: NotRequired[tuple[int, int]]


@dataclass(frozen=True)
class Settings:
    steps: int
    parts: list[Part] = field(default_factory=list)
    by_name: Mapping[str, Part] = field(default_factory=dict)
    range: tuple[float, float] | None = None
    pooling: Literal["avg", "max"] = "avg"
    flip: bool = True

    def __post_init__(self) -> None:
        if self.steps < 0:
            raise ValueError(f"steps must not be negative, got {self.steps}")


def test_what_fits_becomes_the_dataclass_with_its_defaults() -> None:
    assert convert({"steps": 3, "range": [0, 1]}, Settings, "config") == Settings(
        steps=3, range=(0.0, 1.0)
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"steps": "a"}, "field 'steps' takes a whole number, got 'a' (str)"),
        ({"steps": True}, "field 'steps' takes a whole number, got True (bool)"),
        ({"steps": 1, "flip": 1}, "field 'flip' takes true or false, got 1 (int)"),
        ({}, "lacks field 'steps'"),
        ({"steps": -1}, "steps must not be negative, got -1"),
        ({"steps": 1, "range": [1]}, "field 'range' takes a list of length 2, got [1] (list)"),
        ({"steps": 1, "range": "x"}, "field 'range' takes a list or none, got 'x' (str)"),
        ({"steps": 1, "pooling": "min"}, "field 'pooling' takes avg, max, got 'min'"),
        (
            {"steps": 1, "parts": [{"share": 0.5}, {"share": 1.5}]},
            "field 'parts[1].share' takes a number <= 1.0, got 1.5 (float)",
        ),
        (
            {"steps": 1, "parts": [{"share": float("nan")}]},
            "field 'parts[0].share' takes a number >= 0.0, got nan (float)",
        ),
        ({"steps": 1, "parts": [{}]}, "lacks field 'parts[0].share'"),
        (
            {"steps": 1, "by_name": {"a": {"share": "b"}}},
            "field 'by_name[...].share' takes a number, got text",
        ),
        ({"steps": 1, "by_name": {1: {}}}, "field 'by_name' takes text as a key"),
        ([1], "it takes a mapping, got [1] (list)"),
    ],
)
def test_what_does_not_fit_is_named(values: Any, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        convert(values, Settings, "config")
    assert str(caught.value) == f"config: {message}"


def test_an_unknown_field_is_named_with_the_nearest_one() -> None:
    with pytest.raises(ValueError, match=r"config: no field named 'step'. Did you mean 'steps'"):
        convert({"step": 1}, Settings, "config")
