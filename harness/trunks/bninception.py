"""Inception with batch norm (Ioffe and Szegedy, 2015): the trunk of the reality check.

The Caffe model as it was converted to PyTorch: its layers have the names and sizes of that weight
file, which expects pixels from 0 to 255 in the order blue, green, red.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from harness.trunks.trunk import Trunk
from harness.trunks.weights import Download, load_into


class Block(NamedTuple):
    """Output channels of the branches of an inception block.

    Attributes:
        one: of the 1x1 convolution.
        three: of a 1x1 and the 3x3 convolution behind it.
        double: of a 1x1 and of each of the two 3x3 convolutions behind it.
        pool: what the last branch pools with.
        projection: of the 1x1 convolution behind the pooling.

    A block that halves the resolution has neither `one` nor `projection`.
    """

    one: int
    three: tuple[int, int]
    double: tuple[int, int]
    pool: str
    projection: int

    @property
    def halves(self) -> bool:
        return not self.one


BLOCKS = {
    "inception_3a": Block(64, (64, 64), (64, 96), "avg", 32),
    "inception_3b": Block(64, (64, 96), (64, 96), "avg", 64),
    "inception_3c": Block(0, (128, 160), (64, 96), "max", 0),
    "inception_4a": Block(224, (64, 96), (96, 128), "avg", 128),
    "inception_4b": Block(192, (96, 128), (96, 128), "avg", 128),
    "inception_4c": Block(160, (128, 160), (128, 160), "avg", 128),
    "inception_4d": Block(96, (128, 192), (160, 192), "avg", 128),
    "inception_4e": Block(0, (128, 192), (192, 256), "max", 0),
    "inception_5a": Block(352, (192, 320), (160, 224), "avg", 128),
    "inception_5b": Block(352, (192, 320), (192, 224), "max", 128),
}

POOLINGS: dict[str, Callable[..., Tensor]] = {
    "avg": functional.avg_pool2d,
    "max": functional.max_pool2d,
}


class BNInception(nn.Module):
    """Two convolutions and ten inception blocks, down to 1/32 of the resolution."""

    def __init__(self) -> None:
        super().__init__()
        self._add("conv1_7x7_s2", 3, 64, 7, stride=2)
        self._add("conv2_3x3_reduce", 64, 64, 1)
        self._add("conv2_3x3", 64, 192, 3)
        features = 192
        for name, block in BLOCKS.items():
            features = self._add_block(name, block, features)
        self.out_features = features

    def _add(self, name: str, before: int, after: int, kernel: int, stride: int = 1) -> None:
        self.add_module(name, nn.Conv2d(before, after, kernel, stride, padding=kernel // 2))
        self.add_module(f"{name}_bn", nn.BatchNorm2d(after))

    def _add_block(self, name: str, block: Block, before: int) -> int:
        """Add the layers of a block; the number of its output channels."""
        stride = 2 if block.halves else 1
        (reduced, three), (double_reduced, double) = block.three, block.double
        self._add(f"{name}_3x3_reduce", before, reduced, 1)
        self._add(f"{name}_3x3", reduced, three, 3, stride)
        self._add(f"{name}_double_3x3_reduce", before, double_reduced, 1)
        self._add(f"{name}_double_3x3_1", double_reduced, double, 3)
        self._add(f"{name}_double_3x3_2", double, double, 3, stride)
        if block.halves:
            return three + double + before
        self._add(f"{name}_1x1", before, block.one, 1)
        self._add(f"{name}_pool_proj", before, block.projection, 1)
        return block.one + three + double + block.projection

    def forward(self, images: Tensor) -> Tensor:
        """(n, 3, side, side) -> (n, 1024, side / 32, side / 32), rounded up."""
        features = _halve(self._run(images, "conv1_7x7_s2"))
        features = _halve(self._run(features, "conv2_3x3_reduce", "conv2_3x3"))
        for name, block in BLOCKS.items():
            features = self._run_block(features, name, block)
        return features

    def _run(self, features: Tensor, *names: str) -> Tensor:
        for name in names:
            convolution, norm = self.get_submodule(name), self.get_submodule(f"{name}_bn")
            features = functional.relu(norm(convolution(features)), inplace=True)
        return features

    def _run_block(self, features: Tensor, name: str, block: Block) -> Tensor:
        double = [f"{name}_double_3x3_{part}" for part in ("reduce", "1", "2")]
        middle = [
            self._run(features, f"{name}_3x3_reduce", f"{name}_3x3"),
            self._run(features, *double),
        ]
        if block.halves:
            return torch.cat([*middle, _halve(features)], dim=1)
        pooled = POOLINGS[block.pool](features, 3, stride=1, padding=1)
        first, last = self._run(features, f"{name}_1x1"), self._run(pooled, f"{name}_pool_proj")
        return torch.cat([first, *middle, last], dim=1)


def _halve(features: Tensor) -> Tensor:
    # Rounded up, as Caffe does.
    return functional.max_pool2d(features, 3, stride=2, ceil_mode=True)


def check_side(side: int) -> None:
    """Blocks that halve join a pooling that rounds down with convolutions that round up."""
    if side < 31 or (side + 1) % 32 > 7:
        above = max(32, (side + 32) // 32 * 32)
        raise ValueError(
            f"trunk bninception takes images of {above - 1} to {above + 6} px, and of multiples "
            f"of 32 px more or less, not of {side}\n  give a protocol with another +crop="
        )


def bninception(channels: int, file: Path | None) -> BNInception:
    network = BNInception()
    if file is not None:
        load_into(network, file, without=("last_linear.",))
    return network


TRUNKS = (
    Trunk(
        "bninception",
        "Inception with batch norm, 1024 features, ImageNet weights; the reality check's",
        bninception,
        Download(
            "http://data.lip6.fr/cadene/pretrainedmodels/bn_inception-52deb4733.pth",
            "52deb473314542a5c2f87e9e6f26f4ca42fe863d15f986414dbae8c2dfdd2353",
        ),
        check_side=check_side,
        mean=(104.0, 117.0, 128.0),
        std=(1.0,),
        scale=255.0,
        bgr=True,
    ),
)
