"""Plain steps, as in anybody's training script."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn


def take_steps(
    head: nn.Module,
    loss: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Iterable[tuple[Tensor, Tensor]],
) -> list[float]:
    """The loss of every batch of features and labels, each before the step that it causes."""
    values = []
    for features, labels in batches:
        optimizer.zero_grad()
        value = loss(head(features), labels)
        value.backward()
        optimizer.step()
        values.append(value.item())
    return values
