"""Fields of a protocol: how one is declared, checked, read from text and written as text.

A field is declared once, in the class. Its type gives the range or the choices, and
`protocol_field` adds everything else that other code has to know about it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import MISSING, Field, field, fields
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from harness.errors import unknown

# What the cache holds: decoded images, and features that a frozen trunk computed from them.
Cached = Literal["images", "features"]

Check = Callable[[Any], str]

_WORDS = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "text"}


def protocol_field(
    default: Any = MISSING,
    *,
    default_factory: Any = MISSING,
    check: Check | None = None,
    added_in: str = "",
    affects: Cached | None = None,
    needs_trainable_trunk: bool = False,
    in_identity: bool = True,
) -> Any:
    """Declare a field of a protocol. A field that needs no argument is declared with `=` alone.

    Args:
        default: value in a protocol that does not set the field.
        default_factory: function that returns the default, if that is mutable.
        check: function of a value that returns what the value must be instead, such as
            "ascending", or "" if it is fine. It is called after the type was checked, and not
            for None.
        added_in: version that added the field, if there were results before. The default must be
            what was done before. It is left out of identities and cache keys, so that older
            results and caches keep theirs.
        affects: "images" if the decoded images in the cache depend on the field, and therefore
            features, too; "features" if only cached features of a frozen trunk depend on it.
        needs_trainable_trunk: a frozen trunk takes the default alone.
        in_identity: whether a result depends on the field. Only then can a name change it:
            `mlrc+field=value`.
    """
    metadata = {
        "check": check,
        "added_in": added_in,
        "affects": affects,
        "needs_trainable_trunk": needs_trainable_trunk,
        "in_identity": in_identity,
    }
    if default is MISSING:
        return field(default_factory=default_factory, metadata=metadata)
    return field(default=default, metadata=metadata)


def one_of(*choices: str, pattern: str = "") -> Meta:
    """Constrain a text, for `Annotated[str, one_of(...)]`.

    Args:
        choices: listed in the message for a wrong value.
        pattern: regular expression of everything that is accepted. Default: the choices.
    """
    accepted = pattern or "|".join(map(re.escape, choices))
    return Meta(pattern=f"^({accepted})$", examples=list(choices))


def changeable_fields(protocol: type) -> set[str]:
    """Names of the fields that a data set, or `NAME+field=value`, can change."""
    return {one.name for one in fields(protocol) if _in_identity(one)} - {"name"}


def defaults_left_out(protocol: type) -> dict[str, Any]:
    """Field -> default, of the fields that identities and cache keys mention only if changed."""
    return {one.name: one.default for one in fields(protocol) if one.metadata.get("added_in")}


def trunk_defaults(protocol: type) -> dict[str, Any]:
    """Field -> default, of the fields that have no effect on a frozen trunk."""
    needing = (one for one in fields(protocol) if one.metadata.get("needs_trainable_trunk"))
    return {one.name: one.default for one in needing}


def identity_of(protocol: Any) -> dict[str, Any]:
    """Every field that a result depends on, without the defaults that are left out."""
    return _stated(protocol, _in_identity)


def cache_key_of(protocol: Any, cached: Cached) -> dict[str, Any]:
    """Every field that what is cached depends on, without the defaults that are left out."""
    return _stated(protocol, lambda one: one.metadata.get("affects") == cached)


def _in_identity(one: Field[Any]) -> bool:
    return one.metadata.get("in_identity", True)


def _stated(protocol: Any, wanted: Callable[[Field[Any]], bool]) -> dict[str, Any]:
    left_out = defaults_left_out(type(protocol))
    values = {one.name: getattr(protocol, one.name) for one in fields(protocol) if wanted(one)}
    return {
        name: value
        for name, value in values.items()
        if not (name in left_out and value == left_out[name])
    }


def parse_field(protocol: type, name: str, text: str) -> Any:
    """Read the value of a field from text, by the field's type.

    Raises UnknownName for a field or a choice that does not exist, ValueError for another value
    that the field does not take.
    """
    known = changeable_fields(protocol)
    if name not in known:
        raise unknown("protocol field", name, known)
    type_, may_be_none = _type_of(protocol, name)
    if text == "none" and may_be_none:
        return None
    return check_field(protocol, name, text.split(",") if get_origin(type_) is tuple else text)


def check_field(protocol: type, name: str, value: Any) -> Any:
    """Return a value, or the text of one, with the type of its field. Raises as `parse_field`."""
    type_, may_be_none = _type_of(protocol, name)
    if value is None and may_be_none:
        return None
    try:
        converted = msgspec.convert(value, type_, strict=not isinstance(value, str | list))
    except msgspec.ValidationError as error:
        if choices := _choices(type_):
            raise unknown(name, format_value(value), choices) from None
        # Such as "Expected `int` >= 1 - at `$[0]`".
        rule = re.sub(r"`(\w+)`", lambda word: _WORDS.get(word[1], word[1]), str(error))
        rule = rule.removeprefix("Expected ").partition(" - at")[0].partition(", got")[0]
    else:
        check = _checks(protocol).get(name)
        rule = check(converted) if check else ""
    if rule:
        raise ValueError(f"{name} must be {rule}, got {format_value(value)}")
    return converted


# Found once for each class, since protocols are checked often.
@cache
def _types(protocol: type) -> dict[str, Any]:
    return get_type_hints(protocol, include_extras=True)


@cache
def _checks(protocol: type) -> dict[str, Check]:
    found = {one.name: one.metadata.get("check") for one in fields(protocol)}
    return {name: check for name, check in found.items() if check}


def _type_of(protocol: type, name: str) -> tuple[Any, bool]:
    """The type of a field, and whether it may also be None."""
    type_ = _types(protocol)[name]
    options = get_args(type_)
    return (options[0], True) if type(None) in options else (type_, False)


def _choices(type_: Any) -> list[str]:
    """What a field of this type can be, if that is a list of names."""
    one = get_args(type_)[0] if get_origin(type_) is tuple else type_
    if get_origin(one) is Literal:
        return list(get_args(one))
    constraints = get_args(one)[1:] if get_origin(one) is Annotated else ()
    return [name for limit in constraints for name in limit.examples or ()]


def format_value(value: Any) -> str:
    """Write a value as it is written in the name of a protocol."""
    if isinstance(value, tuple | list):
        return ",".join(format_value(part) for part in value)
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return str(value)
