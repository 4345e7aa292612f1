"""A loss that is told wrong labels, for a known answer: it must do worse than with the right ones.

The labels are permuted within a batch, because a loss sees no more than that. With all of them
permuted, what is left to learn has nothing to do with the classes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from harness import registry
from harness.losses.method import Method


def permute_labels(loss: nn.Module, share: float) -> nn.Module:
    """Have a loss give a share of the labels of every batch to other images of the batch.

    The loss stays what it is, so that its head and its hook find it as they expect it.
    """
    compute = loss.forward

    def forward(embeddings: Tensor, labels: Tensor, *others: Any, **named: Any) -> Any:
        # On the CPU, whose generator is seeded and saved for every loss.
        chosen = torch.randperm(len(labels))[: round(share * len(labels))]
        permuted = chosen[torch.randperm(len(chosen))]
        shuffled = labels.clone()
        shuffled[chosen.to(labels.device)] = labels[permuted.to(labels.device)]
        return compute(embeddings, shuffled, *others, **named)

    loss.forward = forward
    return loss


def with_label_noise(loss: str, share: float, name: str) -> Method:
    """A method with wrong labels, searched exactly as the method itself.

    Args:
        loss: name of the method, or its file.
        share: of the labels that are permuted, from 0 to 1.
        name: of the new method.
    """
    method = registry.load_method(loss)

    def build_loss(num_classes: int, embedding_size: int, hierarchy: Any, **params: Any) -> Any:
        loss = method.make_loss(num_classes, embedding_size, params, hierarchy)
        return permute_labels(loss, share)

    return replace(
        method,
        name=name,
        paper=f"{method.name} with {share:.0%} of the labels permuted",
        build_loss=build_loss,
        loss_params=method.loss_params,
        aliases=(),
        base=None,
    )
