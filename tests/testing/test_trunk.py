"""The contract of a trunk finds what is wrong with one, and nothing in one that is right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from harness.errors import HarnessError
from harness.testing import check_trunk
from harness.trunks.trunk import Trunk
from harness.trunks.weights import load_into


class Network(nn.Module):
    """One convolution; `change` replaces what it gives."""

    def __init__(self, change: Callable[[nn.Module, Tensor], Tensor] | None = None) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 8, 3)
        self.out_features = 8
        self.change = change

    def forward(self, images: Tensor) -> Tensor:
        features = self.layer(images)
        return features if self.change is None else self.change(self, features)


def sound(channels: int, file: Path | None) -> Network:
    network = Network()
    if file is not None:
        load_into(network, file)
    return network


def that(change: Callable[[Any, Tensor], Tensor]) -> Callable[[int, Path | None], Network]:
    return lambda channels, file: Network(change)


def without_a_count(channels: int, file: Path | None) -> nn.Module:
    return nn.Conv2d(3, 8, 3)


def unrepeatable(channels: int, file: Path | None) -> Network:
    network = Network()
    nn.init.normal_(network.layer.weight, generator=torch.Generator().manual_seed(torch.seed()))
    return network


def trusting(channels: int, file: Path | None) -> Network:
    network = Network()
    if file is not None:
        network.load_state_dict(torch.load(file), strict=False)
    return network


SOUND = Trunk("sound", "one convolution", sound, own_side=24)


def refuse(side: int) -> None:
    raise ValueError("no side is right")


def test_a_sound_trunk_passes() -> None:
    check_trunk(SOUND)


def test_a_trunk_is_found_by_its_name() -> None:
    check_trunk("convnet")
    with pytest.raises(HarnessError, match="Did you mean 'convnet'"):
        check_trunk("convnt")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "My Trunk"}, "the name 'My Trunk' must consist of"),
        ({"summary": ""}, "has no summary"),
        ({"mean": (0.5, 0.5)}, "mean of sound must have 1 value or one per channel, got 2"),
        ({"std": (0.0,)}, "std and scale of sound must be positive"),
        ({"check_side": refuse}, r"check_side\(24\) of sound: ValueError: no side is right"),
        ({"network": without_a_count}, "has no out_features"),
        ({"network": that(lambda net, x: x.mean(dim=(2, 3)))}, r"gives \(2, 8\)"),
        ({"network": that(lambda net, x: x[:, :4])}, r"gives \(2, 4, 22, 22\)"),
        ({"network": that(lambda net, x: x + torch.zeros(1))}, "features of 2 images by sound"),
        ({"network": that(lambda net, x: x.detach())}, "does not require grad"),
        ({"network": that(lambda net, x: x - x.mean(dim=0))}, "beside another image"),
        ({"network": unrepeatable}, "differs between two builds with the same seed"),
        ({"network": that(lambda net, x: x)}, "takes weights of another network"),
        ({"network": trusting}, "takes weights of another network"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_trunk(replace(SOUND, **changes))
