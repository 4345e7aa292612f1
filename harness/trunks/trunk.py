"""Trunk: a network from images to features, its weights, and how it wants its pixels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from harness.trunks.weights import DIGITS, Weights, check_finite, digest_of_file, given_file

RANDOM = "none"  # choice of weights, and fingerprint, of random initialisation


@dataclass(frozen=True)
class Trunk:
    """One name of `--trunk`.

    Attributes:
        network: (number of input channels, file of weights or None for random ones) -> module
            that maps normalised images to (n, features, height, width) and has `out_features`;
            and `after_pooling`, if pooled features are to pass another layer.
        own_weights: those it starts from unless told otherwise; None if it starts from random.
        channels: input channels it needs, or None to take what the data set has.
        check_side: raises ValueError for a side of images, in pixels, that it cannot take.
        own_side: of the images that its weights were trained on, if that is known.
        mean, std: of pixels scaled to 0..`scale`, one value or one per channel.
        bgr: whether channels are reversed.
        licence: of its own weights, as they were published; empty if that is not known.
    """

    name: str
    summary: str
    network: Callable[[int, Path | None], nn.Module]
    own_weights: Weights | None = None
    channels: int | None = 3
    check_side: Callable[[int], None] = lambda side: None
    own_side: int | None = None
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    scale: float = 1.0
    bgr: bool = False
    licence: str = ""

    def build(self, channels: int, weights: str = "") -> nn.Module:
        """The network with its own weights (""), random ones ("none") or those of a file."""
        file = self._file(weights)
        network = self.network(channels, file)
        if file is not None:
            check_finite(network, file)
        return network

    def fingerprint(self, weights: str = "") -> str:
        """First digits of the SHA-256 of the file that `build` loads, or "none"."""
        return self.sha256(weights)[:DIGITS] or RANDOM

    def sha256(self, weights: str = "") -> str:
        """SHA-256 of the file that `build` loads; empty if the weights are random."""
        file = self._file(weights)
        return "" if file is None else digest_of_file(file)

    def label(self, weights: str = "") -> str:
        """Name in results; weights that are not its own are part of it."""
        if not weights:
            return self.name
        own = self.own_weights.sha256[:DIGITS] if self.own_weights else RANDOM
        found = self.fingerprint(weights)
        # Its own file given by hand is still its own.
        return self.name if own and found.startswith(own) else f"{self.name}@{found[:8]}"

    def _file(self, weights: str) -> Path | None:
        if weights:
            return None if weights == RANDOM else given_file(weights)
        return self.own_weights.find() if self.own_weights else None

    @property
    def normalize(self) -> Normalize:
        """A new module, to be moved to the device of training."""
        return Normalize(self)


class Normalize(nn.Module):
    """uint8 images -> what the network of a trunk takes."""

    # On the device beside the weights, where a step need not copy them to, but not among those.
    mean: Tensor
    std: Tensor

    def __init__(self, trunk: Trunk) -> None:
        super().__init__()
        self.channels, self.bgr, self.scale = trunk.channels, trunk.bgr, trunk.scale
        for name, values in (("mean", trunk.mean), ("std", trunk.std)):
            self.register_buffer(name, torch.tensor(values).view(-1, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        if self.channels is not None and images.shape[1] == 1:
            images = images.expand(-1, self.channels, -1, -1)
        if self.bgr:
            images = images.flip(1)
        return (images.float() * (self.scale / 255) - self.mean) / self.std


@dataclass(frozen=True)
class TrunkFamily:
    """Trunks that are found by name when they are asked for.

    Attributes:
        name: as it is listed, such as `timm:NAME`.
        member: what stands in the place of NAME -> its trunk; ValueError if there is none.
    """

    name: str
    summary: str
    member: Callable[[str], Trunk]
