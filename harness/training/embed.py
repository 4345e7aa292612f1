"""Embeddings of stored images, and of several fold models side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from harness.data.batches import Blocks, Source
from harness.data.loading import Loader
from harness.model.network import NORMALIZERS, Model
from harness.system.precision import training_precision

# Numbers that are encoded at once, 64 images of 227 px: more are no faster on a CPU, and 256 take
# EfficientNet-Lite0 4.6 GB instead of 1.2.
AT_ONCE = 10_000_000


@torch.no_grad()
def embed(encode: Callable[[Tensor], Tensor], blocks: Blocks, loader: Loader) -> Tensor:
    """(n, size) float32 on the loader's device: what `encode` makes of each image."""
    return torch.cat(
        [
            encode(some).float()
            for images in loader.load(blocks)
            for some in images.split(max(1, AT_ONCE // images[0].numel()))
        ]
    )


def embed_with(
    model: Model,
    source: Source,
    indices: Sequence[int],
    loader: Loader,
    normalizer: str,
) -> Tensor:
    """Normalised embeddings in inference mode; the mode of every module is left as it was."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with training_precision(model.precision, loader.device):
            embeddings = embed(model, Blocks(source, indices), loader)
        return NORMALIZERS[normalizer](embeddings)
    finally:
        for module, training in modes:
            module.training = training


def concatenate(embeddings: Sequence[Tensor], normalizer: str) -> Tensor:
    """The embeddings of several models as one, normalised again."""
    return NORMALIZERS[normalizer](torch.cat(list(embeddings), dim=1))
