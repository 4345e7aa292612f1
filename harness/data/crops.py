"""Pixels for training and evaluation: crops as torchvision makes them, drawn from a generator."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from harness.data.image_cache import ImageStore

TRIES = 10  # to draw a box that fits into the image


@dataclass(frozen=True)
class CropSettings:
    """How a square is cut from an image; the fields of EvaluationProtocol that say it.

    Attributes:
        late: resized on the device of training, not before.
    """

    crop: int
    crop_scale: tuple[float, float] | None
    crop_ratio: tuple[float, float]
    flip: bool
    late: bool = False


@dataclass(frozen=True)
class Images:
    """The source of a network that trains on pixels.

    Attributes:
        store: the resized images.
        originals: the images as they are, where training crops are cut from those.
    """

    store: ImageStore
    settings: CropSettings
    originals: ImageStore | None = None

    @property
    def fingerprint(self) -> str:
        return self.store.fingerprint

    @property
    def indices(self) -> Sequence[int]:
        return self.store.indices

    def for_training(self, indices: Sequence[int], rng: np.random.Generator) -> Tensor | Boxes:
        return random_batch(self.originals or self.store, indices, self.settings, rng)

    def for_evaluation(self, indices: Sequence[int]) -> Tensor:
        return centre_batch(self.store, indices, self.settings.crop)

    def check_stored(self, mapped_only: bool = False) -> None:
        for store in (self.store, self.originals):
            if store is not None:
                store.check_stored(mapped_only)


def centre_batch(store: ImageStore, indices: Sequence[int], crop: int) -> Tensor:
    """(n, channels, crop, crop) uint8: the middle of each image, as torchvision's CenterCrop."""
    batch = np.empty((len(indices), crop, crop, store.channels), dtype=np.uint8)
    for row, i in enumerate(indices):
        pixels = store.image(i)
        top = round((pixels.shape[0] - crop) / 2)
        left = round((pixels.shape[1] - crop) / 2)
        batch[row] = pixels[top : top + crop, left : left + crop]
    return torch.from_numpy(batch).permute(0, 3, 1, 2)


def random_batch(
    store: ImageStore, indices: Sequence[int], settings: CropSettings, rng: np.random.Generator
) -> Tensor | Boxes:
    """(n, channels, crop, crop) uint8: a random crop of each image, perhaps flipped."""
    crop = settings.crop
    images = [store.image(i) for i in indices]
    boxes = draw_boxes(np.array([image.shape[:2] for image in images]), settings, rng)
    flipped = rng.random(len(images)) < 0.5 if settings.flip else np.zeros(len(images), dtype=bool)
    parts = [
        image[top : top + height, left : left + width]
        for image, (top, left, height, width) in zip(images, boxes.tolist(), strict=True)
    ]
    if settings.late:
        together = torch.from_numpy(np.concatenate([part.ravel() for part in parts]))
        return Boxes(together, [part.shape for part in parts], flipped.tolist(), crop)
    if settings.crop_scale is None and not settings.flip:  # all as they come, in one go
        return torch.from_numpy(np.stack(parts)).permute(0, 3, 1, 2).contiguous()
    batch = torch.empty((len(images), store.channels, crop, crop), dtype=torch.uint8)
    for row, part in enumerate(parts):
        # A copy, for the cache is read-only, which tensors cannot be.
        square = _resized(torch.from_numpy(part.copy()).permute(2, 0, 1), crop)
        batch[row] = square.flip(2) if flipped[row] else square
    return batch


@dataclass(frozen=True)
class Boxes:
    """Parts of images that become crops where they are sent to.

    Attributes:
        pixels: of all parts, one after the other.
        shapes: (height, width, channels) of each.
        flipped: whether to flip each.
        crop: side of the crops.
    """

    pixels: Tensor
    shapes: list[tuple[int, ...]]
    flipped: list[bool]
    crop: int

    def pin_memory(self, device: Any = None) -> Boxes:
        return replace(self, pixels=self.pixels.pin_memory())

    def to(self, device: torch.device, non_blocking: bool = False) -> Tensor:
        """(n, channels, crop, crop) uint8 on a device: float32 in between, rounded once."""
        there = self.pixels.to(device, non_blocking=non_blocking)
        squares = []
        sizes = [math.prod(shape) for shape in self.shapes]
        for part, shape, flip in zip(there.split(sizes), self.shapes, self.flipped, strict=True):
            square = _resized(part.view(shape).permute(2, 0, 1).float(), self.crop)
            squares.append(square.flip(2) if flip else square)
        return torch.stack(squares).round_().clamp_(0, 255).to(torch.uint8)


def _resized(box: Tensor, side: int) -> Tensor:
    """As Pillow does it but for the last of 255 steps, in a third of the time."""
    if box.shape[1:] == (side, side):
        return box
    square = interpolate(box.unsqueeze(0), (side, side), mode="bilinear", antialias=True)
    return square.squeeze(0)


def draw_boxes(sizes: np.ndarray, settings: CropSettings, rng: np.random.Generator) -> np.ndarray:
    """(n, 4) top, left, height, width for (n, 2) heights and widths.

    With a scale, as torchvision's RandomResizedCrop draws: area and ratio up to ten times, until
    the box fits; else the largest middle part that has the ratio.
    """
    if settings.crop_scale is None:
        boxes = np.full_like(sizes, settings.crop)
        return np.hstack([rng.integers(0, sizes - boxes + 1), boxes])
    count = len(sizes)
    area = sizes.prod(axis=1) * rng.uniform(*settings.crop_scale, (TRIES, count))
    low, high = np.log(settings.crop_ratio)
    ratio = np.exp(rng.uniform(low, high, (TRIES, count)))
    drawn = np.sqrt(np.stack([area / ratio, area * ratio], axis=2)).round().astype(np.int64)
    fits = ((drawn > 0) & (drawn <= sizes)).all(axis=2)
    boxes = drawn[fits.argmax(axis=0), np.arange(count)]
    corners = rng.integers(0, np.maximum(sizes - boxes, 0) + 1)
    for row in np.flatnonzero(~fits.any(axis=0)):
        height, width = sizes[row]
        boxes[row] = (
            min(height, round(width / settings.crop_ratio[0])),
            min(width, round(height * settings.crop_ratio[1])),
        )
        corners[row] = (sizes[row] - boxes[row]) // 2
    return np.hstack([corners, boxes])
