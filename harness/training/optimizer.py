"""The optimizer of a run: which parameters it has, at which rates, and how these fall."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import lr_scheduler

from harness.losses.method import Method
from harness.model.network import Model
from harness.protocols.protocol import EvaluationProtocol

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
    loss_lr = loss_lr if protocol.loss_lr is None else protocol.loss_lr
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
    if protocol.optimizer in ("adam", "adamw"):
        options["betas"] = (0.9, protocol.adam_beta2)
    return OPTIMIZERS[protocol.optimizer]([g for g in groups if g["params"]], **options)


class Schedule:
    """Torch's own scheduler as a protocol sets it, told of every epoch that ends."""

    def __init__(self, optimizer: torch.optim.Optimizer, protocol: EvaluationProtocol) -> None:
        self.optimizer = optimizer
        self.protocol = protocol
        self.torch = _scheduler(optimizer, protocol)

    def end_epoch(self, score: float | None) -> bool:
        """Whether the next epoch begins at lower rates.

        Args:
            score: of the validation at its end, if there was one.
        """
        before = self._rates()
        if isinstance(self.torch, lr_scheduler.ReduceLROnPlateau):
            assert score is not None, "a plateau is one of scores"
            harmonic = self.protocol.plateau_on == "harmonic"
            self.torch.step(2 * score / (1 + score) if harmonic else score)
        elif self.torch is not None:
            self.torch.step()
        return self._rates() < before

    def _rates(self) -> list[float]:
        return [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        return {} if self.torch is None else self.torch.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if self.torch is not None:
            self.torch.load_state_dict(dict(state))


def _scheduler(
    optimizer: torch.optim.Optimizer, protocol: EvaluationProtocol
) -> lr_scheduler.LRScheduler | None:
    match protocol.schedule:
        case "step":
            return lr_scheduler.StepLR(optimizer, protocol.lr_every, protocol.lr_factor)
        case "multistep":
            milestones = list(protocol.lr_epochs or ())
            return lr_scheduler.MultiStepLR(optimizer, milestones, protocol.lr_factor)
        case "plateau":
            return lr_scheduler.ReduceLROnPlateau(
                optimizer,
                mode="max",
                factor=protocol.lr_factor,
                patience=protocol.plateau_patience,
                threshold=protocol.plateau_threshold,
                threshold_mode=protocol.plateau_mode,
                cooldown=protocol.plateau_cooldown,
                min_lr=protocol.plateau_floor,
            )
    return None
