"""The gradient of a batch whose images pass the trunk some at a time, in less memory."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from harness.model.network import Model
from harness.system.precision import full_float32


def backward_by_pieces(
    model: Model, loss: nn.Module, images: Tensor, labels: Tensor, size: int
) -> Tensor:
    """The loss of a batch, with its gradients in all parameters: to rounding, those of one piece.

    All features come first, without a graph, then one loss over all of them, then each piece once
    more with its graph: one more pass forward, for the memory of a single piece. Head and loss are
    computed in full float32, whatever the trunk is computed in.

    Args:
        size: images that pass the trunk together; no image may see the others there, which batch
            norm lets them if its statistics are not frozen.
    """
    pieces = images.split(size)
    together = len(pieces) == 1
    with torch.set_grad_enabled(together):
        features = torch.cat([model.features(piece) for piece in pieces])
    cut = features.detach().requires_grad_()
    with full_float32(images.device):
        value = loss(model.embed(cut), labels)
        value.backward()
    assert cut.grad is not None
    if any(parameter.requires_grad for parameter in model.trunk.parameters()):
        for piece, gradient in zip(pieces, cut.grad.split(size), strict=True):
            (features if together else model.features(piece)).backward(gradient)
    return value
