"""The network of an experiment as it is before training, and whether there can be one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from harness.errors import HarnessError, convert_value_errors
from harness.experiment import Benchmark, Experiment
from harness.model.memory import save_memory
from harness.model.network import FrozenTrunk, Model, PooledTrunk
from harness.system.forks import ending_forks
from harness.system.seeds import derive_seed


def build_trunk(benchmark: Benchmark, seed: int) -> PooledTrunk:
    """The trunk up to its pooled features."""
    trunk = benchmark.trunk
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        channels = trunk.channels or benchmark.listing.channels
        network = trunk.build(channels, benchmark.config.weights)
    built = PooledTrunk(network, trunk.normalize, benchmark.protocol.pooling)
    save_memory(benchmark, built)
    return built


_widths: dict[tuple[Any, ...], int] = {}  # of trunks that passed, in this process


def check_trunk(benchmark: Benchmark) -> int:
    """Refuse weights that do not fit, and images that the network cannot take, before any work.

    Returns the number of its features.
    """
    if (given := benchmark.listing.features) is not None:
        return given.width
    trunk, crop, channels = benchmark.trunk, benchmark.protocol.crop, benchmark.listing.channels
    config, frozen = benchmark.config, benchmark.protocol.freeze_batchnorm
    saving = (config.micro_batch, config.checkpoint_gradients, frozen)
    asked = (trunk.name, benchmark.weights, channels, crop, *saving)
    if asked in _widths:  # for another method
        return _widths[asked]
    with convert_value_errors():
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
    _widths[asked] = built.out_features
    return built.out_features


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


def check_method(experiment: Experiment) -> None:
    """Build everything that a trial builds once: a bad value is one message, not ten failures."""
    width = check_trunk(experiment)
    protocol, method, params = experiment.protocol, experiment.method, experiment.published_params
    classes = experiment.split.folds[0].train
    hierarchy = experiment.hierarchy_of(classes)
    try:
        with ending_forks(), torch.random.fork_rng(devices=[]):
            loss = method.make_loss(len(classes), protocol.embedding_size, params, hierarchy)
            head = method.make_head(width, protocol.embedding_size, params)
        if head is not None:
            attach(loss, head)
        method.make_hook(params)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # of whatever code the method is
        given = ", ".join(f"{name}={value}" for name, value in params.items())
        reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise HarnessError(
            f"{method.name} cannot be built with {given or 'its parameters'}\n  {reason}"
        ) from error


def build_model(
    experiment: Experiment, params: Mapping[str, Any], seed: int, width: int | None = None
) -> Model:
    """Trunk and head; the same trunk for every method.

    Args:
        width: of the features that stand where the trunk would, if it is frozen.
    """
    protocol = experiment.protocol
    trunk = build_trunk(experiment, seed) if width is None else FrozenTrunk(width)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "head"))
        size = protocol.embedding_size
        head = experiment.method.make_head(trunk.out_features, size, params)
        if head is None:
            head = nn.Linear(trunk.out_features, size, bias=protocol.head_bias)
    return Model(trunk, protocol.norm, head, protocol.precision)


def attach(loss: nn.Module, head: nn.Module) -> None:
    """Let a loss know the head it belongs to, where it wants to (DRML)."""
    listen = getattr(loss, "attach", None)
    if listen is not None:
        listen(head)
