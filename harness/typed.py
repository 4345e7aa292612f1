"""Values from a file or a command line, checked against the types of a dataclass or TypedDict."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from harness.errors import unknown

T = TypeVar("T")

# How msgspec words what does not fit, and where: "Expected `int`, got `str` - at `$.a[2].b`".
_PLACE = re.compile(r"(.*) - at (`key` in )?`\$\.?(.*)`", re.DOTALL)
_EXPECTED = re.compile(r"Expected `([^`]*)`(?:, got `([^`]*)`)?(.*?)(?:, got \d+)?", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.*)`")
_NOT_A_CHOICE = re.compile(r"Invalid enum value (.*)", re.DOTALL)
_STEP = re.compile(r"[^.\[\]]+")
HIDDEN = "[...]"  # a key that msgspec does not tell

WORDS = {
    **{"int": "a whole number", "float": "a number", "str": "text", "bool": "true or false"},
    **{"object": "a mapping", "array": "a list", "null": "none"},
}


def convert(values: Any, type_: type[T], what: str) -> T:
    """The values as a `type_`; what does not fit is a ValueError that names the field.

    Args:
        type_: a dataclass, which takes no other fields than its own, or a TypedDict, from which
            others are dropped.
        what: that is read; the message begins with it.
    """
    if is_dataclass(type_) and isinstance(values, Mapping):
        known = [field.name for field in fields(type_)]
        for name in values:
            if name not in known:
                raise ValueError(f"{what}: {unknown('field', str(name), known)}")
    try:
        return msgspec.convert(values, type_)
    except msgspec.ValidationError as error:
        raise ValueError(f"{what}: {_in_our_words(str(error), values, type_)}") from None


def _in_our_words(said: str, values: Any, type_: type) -> str:
    located = _PLACE.fullmatch(said)
    said, of_key, place = located.groups() if located else (said, None, "")
    if missing := _MISSING.fullmatch(said):
        return f"lacks field '{'.'.join(filter(None, [place, missing[1]]))}'"
    field = f"field '{place}'" if place else "it"
    if refused := _NOT_A_CHOICE.fullmatch(said):
        choices = ", ".join(map(str, _choices(get_type_hints(type_).get(place))))
        return f"{field} takes {choices or 'another value'}, got {refused[1]}"
    expected = _EXPECTED.fullmatch(said)
    if expected is None:  # in words of the type itself
        return f"{field}: {said}" if place else said
    wanted, got, limit = expected.groups()
    takes = f"{field} takes {_spell(wanted)}{limit}"
    if of_key:
        return f"{takes} as a key"
    if HIDDEN not in place:
        value = _at(place, values)
        return f"{takes}, got {reprlib.repr(value)} ({type(value).__name__})"
    return f"{takes}, got {_spell(got)}" if got else takes


def _choices(hint: Any) -> list[Any]:
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    return [choice for part in get_args(hint) for choice in _choices(part)]


def _spell(types: str) -> str:
    return " or ".join(WORDS.get(name, name) for name in types.split(" | "))


def _at(place: str, values: Any) -> Any:
    """The value at a place such as `a.b[2]`."""
    for step in _STEP.findall(place):
        values = values[step] if isinstance(values, Mapping) else values[int(step)]
    return values
