"""Large trunks in small memory: what can be done for one, and what is refused."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from harness.errors import HarnessError
from harness.experiment import Benchmark
from harness.model.network import PooledTrunk


def save_memory(benchmark: Benchmark, trunk: PooledTrunk) -> None:
    """Do for a trunk what the config asks for; refuse what would change its results."""
    config = benchmark.config
    if config.micro_batch and (reason := _no_pieces(benchmark, trunk)):
        raise HarnessError(
            f"--micro-batch {config.micro_batch} would change what is trained: {reason}"
            + ("; or give --checkpoint-gradients" if _can_checkpoint(trunk.network) else "")
        )
    if config.checkpoint_gradients:
        if not _can_checkpoint(trunk.network):
            raise HarnessError(
                f"trunk {benchmark.trunk.name} cannot compute its layers again for gradients; "
                "timm's can (`harness list trunks`)"
                + ("" if _no_pieces(benchmark, trunk) else "; or give --micro-batch N")
            )
        trunk.network.checkpoint_gradients()  # type: ignore[operator]


def advice(benchmark: Benchmark) -> str:
    """What would make a trunk fit that did not."""
    config, batch = benchmark.config, benchmark.protocol.batch_size
    ways = []
    if not benchmark.protocol.frozen:
        with torch.device("meta"):  # memory is short
            channels = benchmark.trunk.channels or benchmark.listing.channels
            trunk = benchmark.trunk.build(channels, "none")
        piece = (config.micro_batch or batch) // 2
        if piece and not _no_pieces(benchmark, trunk):
            ways.append(f"--micro-batch {piece} (the same gradients, one more pass forward)")
        if not config.checkpoint_gradients and _can_checkpoint(trunk):
            ways.append("--checkpoint-gradients (the same gradients, layers computed twice)")
    if config.per_gpu != 1:
        ways.append("fewer workers on a card (--per-gpu)")
    smaller = f"smaller batches, as with +batch_size={batch // 2} behind --protocol: another table"
    return " or ".join(ways or [smaller])


def _no_pieces(benchmark: Benchmark, trunk: nn.Module) -> str:
    """Why the images of a batch cannot pass a trunk one after the other; empty if they can."""
    modules, name = list(trunk.modules()), benchmark.trunk.name
    if not benchmark.protocol.freeze_batchnorm and any(isinstance(m, _BatchNorm) for m in modules):
        return (
            f"batch norm of {name} sees all images of a batch together\n"
            "  freeze it, with +freeze_batchnorm=true behind --protocol: another table"
        )
    # torch's dropout has its probability as p, timm's dropped paths as drop_prob.
    if any((getattr(m, "p", 0) or getattr(m, "drop_prob", 0) or 0) > 0 for m in modules):
        return f"{name} leaves out units at random, others in each of the passes of a piece"
    return ""


def _can_checkpoint(network: nn.Module) -> bool:
    return bool(getattr(network, "can_checkpoint", False))
