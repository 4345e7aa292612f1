"""A small network for small grey images, trained on characters that `glyphs` does not have.

`pretraining/glyphnet.py` made its weights, which come with the package.
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor, nn

from harness.trunks.trunk import Trunk
from harness.trunks.weights import check_digest, load_into

# Features, side of the kernel, stride, padding: of a side of 24 are left 12, 6, 3 and 1.
LAYERS = ((16, 5, 2, 2), (32, 3, 2, 1), (64, 3, 2, 1), (128, 3, 1, 0))
SMALLEST = 17  # pixels of a side, of which the last layer still makes something


class GlyphNet(nn.Module):
    """Four convolutions, the first three of which halve the side. No batch norm.

    Strides instead of pooling: a step takes a third of the time of one of `convnet`.
    """

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 1
        for features, kernel, stride, padding in LAYERS:
            layers += [nn.Conv2d(channels, features, kernel, stride, padding), nn.ReLU()]
            channels = features
        self.layers = nn.Sequential(*layers)
        self.out_features = channels

    def forward(self, images: Tensor) -> Tensor:
        """(n, 1, side, side) -> (n, 128, about side / 8 - 2, the same)."""
        return self.layers(images)


class Shipped:
    """Weights that come with the package."""

    sha256 = "0cbd4283b6760a3ecee5d1d8e8b5ac5c4fe9a75c2e0f39d80047fcefed210304"

    def find(self) -> Path:
        file = Path(__file__).with_suffix(".pt")
        check_digest(file, self.sha256, "install metric-harness again")
        return file


def glyphnet(channels: int, file: Path | None) -> GlyphNet:
    if channels != 1:
        raise ValueError(f"trunk glyphnet takes grey images, of 1 channel, got {channels}")
    network = GlyphNet()
    if file is not None:
        load_into(network, file)
    return network


def check_side(side: int) -> None:
    if side < SMALLEST:
        raise ValueError(f"trunk glyphnet takes images of {SMALLEST} px or more, got {side}")


TRUNKS = (
    Trunk(
        "glyphnet",
        "four layers, 16-32-64-128 channels, from characters that glyphs does not have",
        glyphnet,
        Shipped(),
        channels=None,
        check_side=check_side,
        own_side=24,
        mean=(0.5,),
        std=(0.5,),
    ),
)
