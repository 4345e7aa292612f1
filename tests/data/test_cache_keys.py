"""Cached images and features of an earlier version are found again, and none that differ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pytest

from harness.data import image_cache, sources
from harness.data.sources import open_part
from harness.experiment import Experiment
from harness.protocols.fields import protocol_field
from harness.protocols.protocol import EvaluationProtocol

MakeExperiment = Callable[..., Experiment]
FolderOf = Callable[..., str]


class Asked(Exception):
    """Raised instead of opening a folder of the cache."""


@pytest.fixture
def folder_of(monkeypatch: pytest.MonkeyPatch) -> FolderOf:
    """The name of the folder that an experiment keeps its images or features in."""

    def stop(folder: Path, *others: Any) -> Any:
        raise Asked(folder.name)

    monkeypatch.setattr(image_cache, "open_cache", stop)
    monkeypatch.setattr(sources, "open_features", stop)

    def find(experiment: Experiment, part: str = "trainval") -> str:
        # The stamps of glyphs name the versions of Pillow and of the fonts.
        listing = replace(experiment.listing, stamp=lambda index: "a stamp")
        with pytest.raises(Asked) as asked:
            open_part(replace(experiment, listing=listing), part)
        return str(asked.value)

    return find


# Computed by version 0.1.0, whose keys were written by hand.
@pytest.mark.parametrize(
    ("wanted", "folder"),
    [
        ({"protocol": "mlrc"}, "a0eafa319384ca02293591a7"),
        ({"protocol": "mlrc", "part": "test"}, "69b542344e09f4697fc225f0"),
        ({"protocol": "mlrc", "cache": "off"}, "72d162c9c21228c043d44706"),
        ({"protocol": "mlrc+resize=40"}, "9b5bb1f04a463919a28789ea"),
        ({"protocol": "mlrc+crop=20+pooling=max+flip=false"}, "a0eafa319384ca02293591a7"),
        ({"protocol": "mlrc-ccp"}, "a0eafa319384ca02293591a7"),
        ({"protocol": "frozen"}, "features-19c3848e38cadbb7"),
        ({"protocol": "frozen", "part": "test"}, "features-2373b716383e962d"),
        ({"protocol": "frozen", "trunk": "convnet"}, "features-ec6c19fd7e3dba3e"),
        ({"protocol": "frozen", "trunk": "convnet", "seed": 1}, "features-8ab2fcecb87631e0"),
        ({"protocol": "frozen", "allow_missing": True}, "features-c64982c104af21dc"),
        ({"protocol": "frozen+pooling=max"}, "features-fef9930dd8064063"),
        ({"protocol": "frozen+crop=20"}, "features-c413f3260209550d"),
        ({"protocol": "frozen+resize=40"}, "features-fee17fbd44e96156"),
        ({"protocol": "frozen+batch_size=64+norm=layer+lr=0.002"}, "features-19c3848e38cadbb7"),
    ],
)
def test_a_cache_keeps_its_name(
    make_experiment: MakeExperiment, folder_of: FolderOf, wanted: dict[str, Any], folder: str
) -> None:
    config = {name: value for name, value in wanted.items() if name != "part"}
    assert folder_of(make_experiment(**config), wanted.get("part", "trainval")) == folder


@dataclass(frozen=True)
class Extended(EvaluationProtocol):
    """The protocol of a next version."""

    rescale: str = protocol_field("bilinear", added_in="0.3", affects="images")
    views: int = protocol_field(1, added_in="0.3", affects="features")
    shuffles: int = protocol_field(0, added_in="0.3")


def settings_of(protocol: EvaluationProtocol) -> dict[str, Any]:
    return {one.name: getattr(protocol, one.name) for one in fields(protocol)}


@pytest.mark.parametrize(
    ("changes", "images_differ", "features_differ"),
    [
        ({}, False, False),
        ({"shuffles": 2}, False, False),
        ({"views": 2}, False, True),
        ({"rescale": "area"}, True, True),
    ],
)
def test_a_new_field_changes_the_caches_that_it_affects(
    make_experiment: MakeExperiment,
    folder_of: FolderOf,
    changes: dict[str, Any],
    images_differ: bool,
    features_differ: bool,
) -> None:
    for protocol, differ in (("mlrc", images_differ), ("frozen", features_differ)):
        experiment = make_experiment(protocol=protocol)
        changed = Extended(**settings_of(experiment.protocol), **changes)
        other = folder_of(replace(experiment, protocol=changed))
        assert (other != folder_of(experiment)) == differ


# Read while features are computed, but only for training crops, or to decide for features at all.
WITHOUT_EFFECT = {"crop_scale", "crop_ratio", "flip", "crop_from", "crops", "frozen"}


def test_features_depend_on_no_field_that_their_key_leaves_out(
    make_experiment: MakeExperiment, tmp_path: Path
) -> None:
    """A field that is read there affects features, unless the list above says why not."""
    read: set[str] = set()

    class Watched(EvaluationProtocol):
        def __getattribute__(self, name: str) -> Any:
            read.add(name)
            return super().__getattribute__(name)

    experiment = make_experiment(protocol="frozen", trunk="convnet", cache_dir=str(tmp_path))
    watched = Watched(**settings_of(experiment.protocol))
    keys = {name for cached in ("images", "features") for name in watched.cache_key(cached)}
    monitored = replace(experiment, protocol=watched)
    read.clear()
    open_part(monitored, "trainval")
    known = {one.name for one in fields(EvaluationProtocol)}
    assert read & known - keys == WITHOUT_EFFECT
