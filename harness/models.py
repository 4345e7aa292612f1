"""The network of an experiment as it is before training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from harness.experiment import Benchmark, Experiment
from harness.features import Features
from harness.heads import FrozenTrunk, Model, PooledTrunk
from harness.registry import builder_params
from harness.seeds import derive_seed


def build_trunk(benchmark: Benchmark, seed: int) -> PooledTrunk:
    """The trunk up to its pooled features."""
    trunk = benchmark.trunk
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        channels = trunk.channels or benchmark.listing.channels
        network = trunk.build(channels, benchmark.config.weights)
    return PooledTrunk(network, trunk.normalize, benchmark.protocol.pooling)


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
