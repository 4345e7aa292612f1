"""The network of an experiment as it is before training, and whether there can be one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from harness.data.features import Features
from harness.errors import HarnessError, refusing
from harness.experiment import Benchmark, Experiment
from harness.model.network import FrozenTrunk, Model, PooledTrunk
from harness.registry import builder_params
from harness.system.seeds import derive_seed


def build_trunk(benchmark: Benchmark, seed: int) -> PooledTrunk:
    """The trunk up to its pooled features."""
    trunk = benchmark.trunk
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        channels = trunk.channels or benchmark.listing.channels
        network = trunk.build(channels, benchmark.config.weights)
    return PooledTrunk(network, trunk.normalize, benchmark.protocol.pooling)


_tried: set[tuple[str, str, int, int]] = set()  # of this process; those that passed


def check_trunk(benchmark: Benchmark) -> None:
    """Refuse weights that do not fit, and images that the network cannot take, before any work."""
    trunk, crop, channels = benchmark.trunk, benchmark.protocol.crop, benchmark.listing.channels
    asked = (trunk.name, benchmark.weights, channels, crop)
    if asked in _tried:  # for another method
        return
    with refusing():
        built = build_trunk(benchmark, seed=0).eval()
    trouble = _trouble(built, channels, crop)
    if trouble:
        advice = "take another trunk (`harness list trunks`), or a protocol with another +crop="
        own = trunk.own_side
        if own not in (None, crop) and not _trouble(built, channels, own):
            room = f"+resize={own}" if own > benchmark.protocol.resize else ""
            advice = (
                f"its own size is {own}: --protocol {benchmark.config.protocol}+crop={own}{room}"
            )
        raise HarnessError(
            f"trunk {trunk.name} makes no features of images of {crop} px: {trouble}\n  {advice}"
        )
    _tried.add(asked)


@torch.no_grad()
def _trouble(trunk: PooledTrunk, channels: int, side: int) -> str:
    """Why the trunk makes no features of an image, if it does not."""
    image = torch.zeros(1, channels, side, side, dtype=torch.uint8)
    try:
        found = tuple(trunk(image).shape)
    except Exception as error:  # of whatever network it is
        return f"{type(error).__name__}: {error}".splitlines()[0]
    wanted = (1, trunk.out_features)
    return "" if found == wanted else f"its features have the shape {found}, not {wanted}"


def build_model(experiment: Experiment, params: Mapping[str, Any], seed: int) -> Model:
    """Trunk and head; the same trunk for every method."""
    protocol, source = experiment.protocol, experiment.trainval
    if isinstance(source, Features):
        trunk: PooledTrunk | FrozenTrunk = FrozenTrunk(source.width)
    else:
        trunk = build_trunk(experiment, seed)
    build_head = experiment.method.build_head or _linear
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "head"))
        head = build_head(trunk.out_features, protocol.embedding_size, **builder_params(params))
    return Model(trunk, protocol.norm, head)


def _linear(in_features: int, embedding_size: int, **unused: Any) -> nn.Module:
    return nn.Linear(in_features, embedding_size)
