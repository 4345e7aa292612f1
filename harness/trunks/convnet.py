"""A small network that trains from scratch in seconds, for small images."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from torch import Tensor, nn

from harness.trunks.trunk import Trunk
from harness.trunks.weights import load_into

WIDTHS = (16, 32, 64)


class ConvNet(nn.Module):
    """Three convolutions with batch norm, each after the first at half the resolution."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        sizes = (channels, *WIDTHS)
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(before, after, 3, padding=1, bias=False),
                nn.BatchNorm2d(after),
                nn.ReLU(inplace=True),
            )
            for before, after in pairwise(sizes)
        )
        self.pool = nn.MaxPool2d(2)
        self.out_features = WIDTHS[-1]

    def forward(self, images: Tensor) -> Tensor:
        """(n, channels, side, side) -> (n, 64, side / 4, side / 4)."""
        features = self.layers[0](images)
        for layer in self.layers[1:]:
            features = layer(self.pool(features))
        return features


def convnet(channels: int, file: Path | None) -> ConvNet:
    network = ConvNet(channels)
    if file is not None:
        load_into(network, file)
    return network


TRUNKS = (
    Trunk(
        "convnet",
        "three layers, 16-32-64 channels, from scratch",
        convnet,
        channels=None,
        mean=(0.5,),
        std=(0.5,),
    ),
)
