"""Embeddings of stored images, and of several fold models side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from harness.heads import NORMALIZERS
from harness.images import ImageStore, centre_batch

BATCH_SIZE = 256


@torch.no_grad()
def embed(
    encode: Callable[[Tensor], Tensor],
    store: ImageStore,
    indices: Sequence[int],
    crop: int,
    device: torch.device,
) -> Tensor:
    """(n, size) float32 on `device`: what `encode` makes of the middle of each image."""
    parts = []
    for start in range(0, len(indices), BATCH_SIZE):
        images = centre_batch(store, indices[start : start + BATCH_SIZE], crop)
        parts.append(encode(images.to(device, non_blocking=True)).float())
    return torch.cat(parts)


def embed_with(
    model: nn.Module,
    store: ImageStore,
    indices: Sequence[int],
    crop: int,
    device: torch.device,
    normalizer: str,
) -> Tensor:
    """Normalised embeddings in inference mode; the mode of every module is left as it was."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        return NORMALIZERS[normalizer](embed(model, store, indices, crop, device))
    finally:
        for module, training in modes:
            module.training = training


def concatenate(embeddings: Sequence[Tensor], normalizer: str) -> Tensor:
    """The embeddings of several models as one, normalised again."""
    return NORMALIZERS[normalizer](torch.cat(list(embeddings), dim=1))
