"""A new protocol field is one declaration: checks, names, identities and cache keys follow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Literal

import pytest

from harness import registry
from harness.errors import HarnessError, UnknownName
from harness.protocols.fields import protocol_field
from harness.protocols.protocol import EvaluationProtocol, Whole, check, parse_changes
from harness.testing import check_protocol


@dataclass(frozen=True)
class Extended(EvaluationProtocol):
    """The protocol of a next version, with a field for each thing that may depend on it."""

    views: Whole = protocol_field(
        0, check=lambda value: "even" if value % 2 else "", added_in="0.3", affects="features"
    )
    rescale: Literal["bilinear", "area"] = protocol_field(
        "bilinear", added_in="0.3", affects="images"
    )
    shuffles: Whole = protocol_field(0, added_in="0.3", needs_trainable_trunk=True)


def extended(name: str) -> Extended:
    before = registry.items("protocol")[name]
    return Extended(**{one.name: getattr(before, one.name) for one in fields(before)})


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The protocols `mlrc` and `frozen`, with the new fields."""
    new = {name: extended(name) for name in ("mlrc", "frozen")}
    known = {**registry.items("protocol"), **new}
    items = registry.items
    monkeypatch.setattr(
        registry, "items", lambda category: known if category == "protocol" else items(category)
    )
    yield


def test_a_new_field_can_be_changed_by_name() -> None:
    changed = registry.load_protocol("mlrc+rescale=area+views=4", "cub")
    assert changed.name == "mlrc+rescale=area+views=4"
    assert (changed.views, changed.rescale) == (4, "area")
    assert registry.load_protocol("mlrc+views=0", "cub").name == "mlrc"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("mlrc+views=-1", "views must be a whole number >= 0, got -1"),
        ("mlrc+views=3", "views must be even, got 3"),
        ("mlrc+rescale=aera", r"no rescale named 'aera'\. Did you mean 'area'"),
        ("mlrc+view=2", r"no protocol field named 'view'\. Did you mean 'views'"),
        ("frozen+shuffles=1", "shuffles must be 0 where the trunk is frozen, got 1"),
    ],
)
def test_values_of_a_new_field_are_checked(spec: str, message: str) -> None:
    with pytest.raises(HarnessError, match=message):
        registry.load_protocol(spec, "cub")


def test_a_value_that_was_set_in_a_file_is_checked_too() -> None:
    with pytest.raises(ValueError, match="views must be even, got 3"):
        check(replace(extended("mlrc"), views=3))
    check_protocol(replace(extended("mlrc"), name="mine", views=2))


def test_a_new_field_changes_the_identity_only_where_it_is_changed() -> None:
    before = EvaluationProtocol("plain").identity()
    assert Extended("plain").identity() == before
    assert Extended("plain", views=2).identity() == before | {"views": 2}


def test_a_cache_key_has_the_new_fields_that_say_so() -> None:
    plain, views, rescaled, shuffled = (
        Extended("plain", **changes)
        for changes in ({}, {"views": 2}, {"rescale": "area"}, {"shuffles": 1})
    )
    before = EvaluationProtocol("plain")
    for cached in ("images", "features"):
        assert plain.cache_key(cached) == shuffled.cache_key(cached) == before.cache_key(cached)
    assert views.cache_key("features") == before.cache_key("features") | {"views": 2}
    assert views.cache_key("images") == before.cache_key("images")
    assert rescaled.cache_key("images") == before.cache_key("images") | {"rescale": "area"}


def test_an_unknown_name_is_said_in_words_without_the_harness_around_it() -> None:
    with pytest.raises(UnknownName) as caught:
        parse_changes("batchsize=3")
    assert isinstance(caught.value, ValueError)
    said = str(caught.value)
    assert said.startswith("no protocol field named 'batchsize'. Did you mean 'batch_size'?")
    with pytest.raises(
        UnknownName, match=r"no preset of triplet named 'mlcr'\. Did you mean 'mlrc'"
    ):
        registry.load_method("triplet").preset("mlcr", "cub")
