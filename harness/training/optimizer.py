"""The optimizer of a run: which parameters it has, and at which rates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from harness.model.network import Model
from losses.method import Method
from protocols.protocol import EvaluationProtocol

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "rmsprop": torch.optim.RMSprop,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "sgd": torch.optim.SGD,
}


def build_optimizer(
    model: Model,
    loss: nn.Module,
    protocol: EvaluationProtocol,
    method: Method,
    params: Mapping[str, Any],
) -> torch.optim.Optimizer:
    """One optimizer with a group each for trunk, head and the loss's own parameters."""
    decay = protocol.weight_decay
    trunk_lr = protocol.lr if protocol.trunk_lr is None else protocol.trunk_lr
    # A loss whose rate is not searched has the trunk's, or the head's if no trunk trains.
    loss_lr = params.get("head_lr", protocol.lr) if protocol.frozen else trunk_lr
    loss_decay = decay if method.loss_weight_decay is None else method.loss_weight_decay
    groups: list[dict[str, Any]] = [
        {"name": "trunk", "params": model.trunk, "lr": trunk_lr, "weight_decay": decay},
        {"name": "head", "params": model.head, "lr": protocol.lr, "weight_decay": decay},
        {"name": "loss", "params": loss, "lr": loss_lr, "weight_decay": loss_decay},
    ]
    for group in groups:
        group["lr"] = params.get(f"{group['name']}_lr", group["lr"])
        group["params"] = [p for p in group["params"].parameters() if p.requires_grad]
    # All parameters in one call: up to a third of the step of a head saved. RMSprop has no fused
    # form.
    whole = "foreach" if protocol.optimizer == "rmsprop" else "fused"
    options: dict[str, Any] = {"lr": protocol.lr, whole: True}
    if protocol.optimizer in ("rmsprop", "sgd"):
        options["momentum"] = protocol.momentum
    if protocol.optimizer != "sgd":
        options["eps"] = protocol.optimizer_eps
    return OPTIMIZERS[protocol.optimizer]([g for g in groups if g["params"]], **options)
