"""Protocols: published settings, and names that change when a number does."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import pytest

from harness import registry
from harness.errors import HarnessError
from harness.model.network import POOLINGS
from harness.protocols.fields import defaults_left_out
from harness.protocols.protocol import EvaluationProtocol, Optimizer, parse_changes
from harness.testing.protocol import PROTOCOL_CHECKS
from harness.training.optimizer import OPTIMIZERS


@pytest.mark.parametrize(
    ("dataset", "steps_without_improvement", "validate_every"),
    [("cub", 1000, 200), ("cars", 1500, 500), ("sop", 4000, 2000)],
)
def test_mlrc_stops_after_as_many_steps_as_the_reality_check(
    dataset: str, steps_without_improvement: int, validate_every: int
) -> None:
    protocol = registry.load_protocol("mlrc", dataset)
    assert protocol.validate_every == validate_every
    assert protocol.patience * protocol.validate_every == steps_without_improvement
    assert protocol.max_steps == 100_000


@pytest.mark.parametrize("dataset", ["cub", "cars", "sop"])
def test_mlrc_trains_as_the_reality_check_does(dataset: str) -> None:
    protocol = registry.load_protocol("mlrc", dataset)
    assert (protocol.optimizer, protocol.lr, protocol.momentum) == ("rmsprop", 1e-6, 0.9)
    assert (protocol.weight_decay, protocol.batch_size) == (1e-4, 32)
    assert (protocol.trunk, protocol.pooling, protocol.freeze_batchnorm) == (
        *("bninception", "avg"),
        True,
    )
    assert (protocol.resize, protocol.crop, protocol.crop_scale) == (256, 227, (0.16, 1.0))
    assert (protocol.embedding_size, protocol.trials, protocol.reproductions) == (128, 50, 10)


def test_a_changed_number_changes_the_name() -> None:
    protocol = registry.load_protocol("mlrc+lr=0.01+batch_size=64", "cub")
    assert protocol.name == "mlrc+batch_size=64+lr=0.01"
    assert (protocol.batch_size, protocol.lr) == (64, 0.01)


def test_a_name_leads_back_to_the_same_protocol() -> None:
    spec = "mlrc+clip_norm=10.0+crop_scale=0.5,1.0+flip=false+pooling=avg+max+weight_decay=0.0"
    once = registry.load_protocol(spec, "cub")
    assert once.name == spec
    assert registry.load_protocol(once.name, "cub") == once


def test_a_change_to_what_is_already_so_keeps_the_name() -> None:
    assert registry.load_protocol("mlrc+batch_size=32", "cub").name == "mlrc"
    # Settings of the data set come first: 500 is what mlrc has on Cars, not on CUB.
    assert registry.load_protocol("mlrc+validate_every=500", "cars").name == "mlrc"
    assert registry.load_protocol("mlrc+validate_every=500", "cub").name != "mlrc"


def test_numbers_of_trials_and_reproductions_are_no_part_of_the_identity() -> None:
    identity = registry.load_protocol("mlrc", "cub").identity()
    assert "trials" not in identity and "reproductions" not in identity
    assert identity["batch_size"] == 32


def test_a_field_that_came_later_is_in_the_identity_only_where_it_changes_something() -> None:
    plain = registry.load_protocol("mlrc", "cub")
    assert not set(defaults_left_out(EvaluationProtocol)) & set(plain.identity())
    spec = "mlrc+pooling=8-max+trunk_lr=1e-07+warmup_steps=10"
    changed = registry.load_protocol(spec, "cub")
    assert changed.name == spec
    expected = {"name": spec, "pooling": "8-max", "trunk_lr": 1e-7, "warmup_steps": 10}
    assert changed.identity() == plain.identity() | expected
    # A value that is written out but changes nothing has the old name and the old identity.
    same = registry.load_protocol("mlrc+trunk_lr=none+warmup_steps=0", "cub")
    assert same.identity() == plain.identity()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("mlcr", "Did you mean 'mlrc'"),
        ("mlrc+bach_size=64", "Did you mean 'batch_size'"),
        ("mlrc+batch_size=many", "batch_size must be a whole number, got many"),
        ("mlrc+batch_size", "does not read as field=value"),
        ("mlrc+batch_size=0", "batch_size must be a whole number >= 1, got 0"),
        ("mlrc+crop=300", r"crop \(300\) must not exceed resize \(256\)"),
        ("mlrc+folds=fifths", "no folds named 'fifths'"),
        ("mlrc+epochs=3+max_steps=9", "give epochs or max_steps, not both, got 3 and 9"),
        ("classic-hpl+validate_every=9", "give epochs or validate_every, not both, got 30 and 9"),
        ("mlrc+patience=none", "training would never end: give epochs or max_steps"),
        ("mlrc+validate_epochs=1,2", "validate_epochs needs epochs"),
        ("mlrc+warmup_epochs=1+warmup_steps=9", "give warmup_epochs or warmup_steps, not both"),
        ("mlrc+epochs=2+warmup_epochs=2", "warmup_epochs must be fewer than epochs, got 2 of 2"),
        ("mlrc+warmup_extra=true", "warmup_extra needs warmup_epochs"),
        ("mlrc+warmup_groups=head,los", "no warmup_groups named 'head,los'(?s:.*)trunk"),
        ("mlrc+lr_epochs=3,2", "lr_epochs must be ascending, got 3,2"),
        ("mlrc+schedule=multistep", "schedule=multistep needs lr_epochs"),
        ("mlrc+schedule=cosine", "no schedule named 'cosine'"),
        ("mlrc+lr_factor=1", "lr_factor must be a number < 1.0, got 1"),
        ("classic-proxygml+schedule=plateau", "needs the score of every epoch"),
        ("two_stage+folds=none+select=last", "schedule=plateau needs a score"),
        ("mlrc+select=test", "select=test does not go with folds=mlrc"),
        ("mlrc+folds=none", "select=best does not go with folds=none"),
        ("mlrc+select=last", "select=last keeps the last weights, so patience must be none, got 5"),
        ("mlrc+select=replay", "select=replay needs epochs, and folds of one model"),
        ("two_stage+validate_epochs=1,2", "needs the score of every epoch"),
        ("mlrc+split=thirds", "no split named 'thirds'"),
        ("classic-hpl+crop_scale=none", "crop_from=original needs a crop_scale"),
        ("mlrc+flip=maybe", "flip must be true or false, got maybe"),
        ("mlrc+trials=3", "no protocol field named 'trials'"),
        ("mlrc+optimizer=adm", "Did you mean 'adam'"),
        ("mlrc+pooling=mean", r"no pooling named 'mean'(?s:.*)known: K-max .*avg"),
        ("mlrc+pooling=mx", "Did you mean 'max'"),
        ("mlrc+pooling=0-max", r"no pooling named '0-max'(?s:.*)K-max .as 8-max"),
        ("mlrc+pooling=many-max", "no pooling named 'many-max'"),
        ("mlrc+pooling=-2-max", "no pooling named '-2-max'"),
        ("mlrc+trunk_lr=0", "trunk_lr must be a number > 0.0, got 0"),
        ("mlrc+warmup_steps=-1", "warmup_steps must be a whole number >= 0, got -1"),
        ("mlrc+crop_scale=1.0,0.5", "crop_scale must be ascending, got 1.0,0.5"),
        ("mlrc+crop_scale=2,3", "crop_scale must be at most 1.0, .* got 2,3"),
        ("mlrc+crop_ratio=0,1", "crop_ratio must be a number > 0.0, got 0,1"),
        ("mlrc+momentum=-1", "momentum must be a number >= 0.0, got -1"),
        ("mlrc+momentum=1", "momentum must be a number < 1.0, got 1"),
        ("mlrc+weight_decay=-1", "weight_decay must be a number >= 0.0, got -1"),
        ("mlrc+optimizer_eps=0", "optimizer_eps must be a number > 0.0, got 0"),
        ("mlrc+lr=inf", r"lr must be a number <= 1000000000\.0, got inf"),
        ("mlrc+weight_decay=nan", "weight_decay must be a number .*, got nan"),
        ("frozen+search_head_lr=1e-5,inf", "search_head_lr must be a number .*, got 1e-5,inf"),
        ("frozen+trunk_lr=1e-6", "trunk_lr must be none where the trunk is frozen, got 1e-06"),
        ("frozen+warmup_steps=9", "warmup_steps must be 0 where the trunk is frozen, got 9"),
        ("mlrc+warmup_steps=1.5", "warmup_steps must be a whole number, got 1.5"),
    ],
)
def test_a_wrong_protocol_is_refused_with_advice(spec: str, message: str) -> None:
    with pytest.raises(HarnessError, match=message):
        registry.load_protocol(spec, "cub")


@pytest.mark.parametrize("protocol", registry.items("protocol").values(), ids=lambda one: one.name)
@pytest.mark.parametrize("check", PROTOCOL_CHECKS, ids=lambda check: check.__name__)
def test_every_protocol_keeps_the_contract(
    protocol: EvaluationProtocol, check: Callable[[EvaluationProtocol], None]
) -> None:
    check(protocol)


def test_tuples_and_nothing_can_be_spelled() -> None:
    assert parse_changes("crop_ratio=0.5,2.0+crop_scale=none") == {
        "crop_ratio": (0.5, 2.0),
        "crop_scale": None,
    }


def test_every_choice_of_a_protocol_is_built() -> None:
    assert set(get_args(Optimizer)) == set(OPTIMIZERS)
    for pooling in POOLINGS:
        assert registry.load_protocol(f"mlrc+pooling={pooling}", "cub").pooling == pooling
