"""A method of your own: a loss, a hook that acts during training, and parameters to begin with.

harness search --loss examples/own_method.py --trials 10
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from optuna.distributions import FloatDistribution
from pytorch_metric_learning.losses import NormalizedSoftmaxLoss

from harness.losses.method import LOSS_LR, Hook, HookContext, Method, Preset, Space


class CoolingSoftmaxLoss(NormalizedSoftmaxLoss):
    """Normalised softmax whose temperature can change while it trains."""

    def __init__(self, num_classes: int, embedding_size: int, temperature: float) -> None:
        super().__init__(num_classes, embedding_size, temperature)
        # A buffer is part of the checkpoint, a plain attribute is not.
        del self.temperature
        self.register_buffer("temperature", torch.tensor(temperature))


class Cooling(Hook):
    """Lowers the temperature after every validation."""

    def __init__(self, *, cooling: float = 0.9) -> None:
        self.cooling = cooling
        self.times = 0

    def on_validation_end(self, context: HookContext, score: float) -> None:
        context.loss.get_buffer("temperature").mul_(self.cooling)
        self.times += 1

    def facts(self) -> dict[str, Any]:
        """Stands in the record of the run."""
        return {"coolings": self.times}

    def state_dict(self) -> dict[str, Any]:
        return {"times": self.times}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.times = state["times"]


# The types of parameters are read off the builders: a mistyped name or value is refused.
def build_loss(
    num_classes: int, embedding_size: int, *, temperature: float = 0.05
) -> CoolingSoftmaxLoss:
    return CoolingSoftmaxLoss(num_classes, embedding_size, temperature)


def space(dataset: str, num_classes: int) -> Space:
    """May depend on both; here it does not."""
    return {
        "temperature": FloatDistribution(0.01, 1, log=True),
        "cooling": FloatDistribution(0.5, 1),
        "loss_lr": LOSS_LR,  # of the class weights; searched for every loss that has some
    }


METHODS = (
    Method(
        name="cooling-softmax",
        paper="nobody's: an example",
        build_loss=build_loss,
        build_hook=Cooling,
        space=space,
        # The first trial, on data sets that have no values of their own, too.
        presets={"mlrc": {"cub": Preset({"temperature": 0.05, "cooling": 0.9, "loss_lr": 1e-3})}},
        samples_per_class=1,  # as all losses with class weights or proxies
    ),
)
