"""Embeddings of stored images, and of several fold models side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from harness.batches import Source
from harness.heads import NORMALIZERS

BATCH_SIZE = 256


@torch.no_grad()
def embed(
    encode: Callable[[Tensor], Tensor],
    source: Source,
    indices: Sequence[int],
    device: torch.device,
) -> Tensor:
    """(n, size) float32 on `device`: what `encode` makes of each image."""
    parts = []
    for start in range(0, len(indices), BATCH_SIZE):
        inputs = source.for_evaluation(indices[start : start + BATCH_SIZE])
        parts.append(encode(inputs.to(device, non_blocking=True)).float())
    return torch.cat(parts)


def embed_with(
    model: nn.Module,
    source: Source,
    indices: Sequence[int],
    device: torch.device,
    normalizer: str,
) -> Tensor:
    """Normalised embeddings in inference mode; the mode of every module is left as it was."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        return NORMALIZERS[normalizer](embed(model, source, indices, device))
    finally:
        for module, training in modes:
            module.training = training


def concatenate(embeddings: Sequence[Tensor], normalizer: str) -> Tensor:
    """The embeddings of several models as one, normalised again."""
    return NORMALIZERS[normalizer](torch.cat(list(embeddings), dim=1))
