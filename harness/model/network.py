"""From a trunk's features to embeddings: pooling, norm, head; and normalisers at evaluation."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from harness.losses._tools.ball import ball_normalize

POOLINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "avg": lambda features: features.mean(dim=(2, 3)),
    "max": lambda features: features.amax(dim=(2, 3)),
    "avg+max": lambda features: features.mean(dim=(2, 3)) + features.amax(dim=(2, 3)),
}


def pooling(name: str) -> Callable[[Tensor], Tensor]:
    """(n, features, height, width) -> (n, features), by a name that a protocol allows."""
    return POOLINGS[name] if name in POOLINGS else partial(k_max, k=int(name.split("-")[0]))


def k_max(features: Tensor, k: int) -> Tensor:
    """Mean of the k largest values of each channel; of all, where there are fewer."""
    places = features.flatten(2)
    return places.topk(min(k, places.shape[2]), dim=2, sorted=False).values.mean(dim=2)


# Applied to embeddings at evaluation. "ball" is CCP's: only vectors longer than 1 are scaled.
NORMALIZERS: dict[str, Callable[[Tensor], Tensor]] = {
    "l2": lambda v: nn.functional.normalize(v, dim=1),
    "ball": ball_normalize,
}


class PooledTrunk(nn.Module):
    """uint8 images -> (n, features): normalised, through the network, pooled."""

    def __init__(self, network: nn.Module, normalize: nn.Module, pool: str) -> None:
        super().__init__()
        self.network = network
        self.normalize = normalize
        self.pool = pooling(pool)
        self.out_features: int = network.out_features  # type: ignore[assignment]

    def forward(self, images: Tensor) -> Tensor:
        pooled = self.pool(self.network(self.normalize(images)))
        finish = getattr(self.network, "after_pooling", None)
        return pooled if finish is None else finish(pooled)


class FrozenTrunk(nn.Identity):
    """Stands where the trunk would: its inputs are features that were computed before."""

    def __init__(self, out_features: int) -> None:
        super().__init__()
        self.out_features = out_features


class Model(nn.Module):
    """Trunk, norm and head.

    Args:
        precision: "bf16" computes the trunk in bfloat16, and the head if it is a single layer;
            features and embeddings are float32 numbers all the same.
    """

    def __init__(
        self,
        trunk: PooledTrunk | FrozenTrunk,
        norm: str,
        head: nn.Module,
        precision: str = "fp32",
    ) -> None:
        super().__init__()
        self.trunk = trunk
        self.precision = precision
        if precision != "fp32":  # the order of channels that tensor cores compute in
            self.trunk.to(memory_format=torch.channels_last)
        # Without affine, so that it has no parameters of its own.
        self.norm = (
            nn.LayerNorm(trunk.out_features, elementwise_affine=False)
            if norm == "layer"
            else nn.Identity()
        )
        self.head = head

    def forward(self, inputs: Tensor) -> Tensor:
        """(n, embedding size), not normalised."""
        return self.embed(self.features(inputs))

    def features(self, inputs: Tensor) -> Tensor:
        """(n, features) of the trunk, pooled."""
        if self.precision != "bf16":
            return self.trunk(inputs)
        with torch.autocast(inputs.device.type, torch.bfloat16):
            return self.trunk(inputs.contiguous(memory_format=torch.channels_last)).float()

    def embed(self, features: Tensor) -> Tensor:
        """Embeddings of pooled features. Heads of several layers know their own precision."""
        if self.precision != "bf16" or not isinstance(self.head, nn.Linear):
            return self.head(self.norm(features))
        with torch.autocast(features.device.type, torch.bfloat16):
            return self.head(self.norm(features)).float()


def freeze_batchnorm(trunk: nn.Module) -> None:
    """Stop batch norm from updating its statistics; scale and shift still train.

    Call it after every `train()`, which undoes it.
    """
    for module in trunk.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()


def freeze_affine(trunk: nn.Module) -> None:
    """Keep scale and shift of batch norm from training; for good."""
    for module in trunk.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.requires_grad_(False)
