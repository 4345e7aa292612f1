"""Trunk: a network from images to features, and how it wants its pixels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Trunk:
    """One name of `--trunk`.

    Attributes:
        build: number of input channels -> module that maps normalised images to (n, features,
            height, width) and has `out_features`.
        channels: input channels it needs, or None to take what the data set has.
        pretrained: whether its weights come from another data set.
        mean, std: of pixels scaled to 0..`scale`, one value or one per channel.
        bgr: whether channels are reversed.
    """

    name: str
    summary: str
    build: Callable[[int], nn.Module]
    channels: int | None = 3
    pretrained: bool = True
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    scale: float = 1.0
    bgr: bool = False

    def normalize(self, images: Tensor) -> Tensor:
        """uint8 images on the device of training -> what the network takes."""
        if self.channels is not None and images.shape[1] == 1:
            images = images.expand(-1, self.channels, -1, -1)
        if self.bgr:
            images = images.flip(1)
        pixels = images.float() * (self.scale / 255)
        mean = torch.tensor(self.mean, device=images.device).view(-1, 1, 1)
        std = torch.tensor(self.std, device=images.device).view(-1, 1, 1)
        return (pixels - mean) / std
