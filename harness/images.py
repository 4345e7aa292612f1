"""Pixels: decoded once into a shared cache, then cropped into batches that a seed determines."""

from __future__ import annotations

import hashlib
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from filelock import FileLock
from PIL import Image
from torch import Tensor

from harness.datasets.listing import Listing
from harness.errors import HarnessError
from harness.files import read_json, sync_folder, write_json
from harness.seeds import derive_seed

TRIES = 10  # to draw a box that fits into the image

CACHE_VERSION = 1  # of the format below: raises when cached pixels would differ


@dataclass(frozen=True)
class ImageStore:
    """Decoded images of one part of a data set, memory-mapped, addressed by listing index.

    Attributes:
        fingerprint: hash of the names, labels and encoded bytes of the part.
        position: listing index -> row of `index`.
        index: (n, 3) offset, height and width of each image in `pixels`.
    """

    fingerprint: str
    position: dict[int, int]
    index: np.ndarray
    pixels: np.ndarray
    channels: int

    def image(self, listing_index: int) -> np.ndarray:
        """(height, width, channels) uint8 view of one image."""
        offset, height, width = self.index[self.position[listing_index]]
        size = height * width * self.channels
        return self.pixels[offset : offset + size].reshape(height, width, self.channels)


def open_store(
    listing: Listing,
    indices: Sequence[int],
    short_side: int,
    cache_dir: Path,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> ImageStore:
    """The decoded images of `indices`, from the cache or built into it now.

    Only the images asked for are opened, so a store of training classes never sees a test image.
    """
    folder = cache_dir / _cache_key(listing, indices, short_side)
    if not (folder / "meta.json").exists():
        cache_dir.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{folder}.lock"):  # two processes build it once
            if not (folder / "meta.json").exists():
                _build(listing, indices, short_side, folder, report)
    return ImageStore(
        fingerprint=read_json(folder / "meta.json")["fingerprint"],
        position={listing_index: row for row, listing_index in enumerate(indices)},
        index=np.load(folder / "index.npy"),
        # As a plain array: slicing a memmap object costs six times as much.
        pixels=np.asarray(np.memmap(folder / "pixels.u8", dtype=np.uint8, mode="r")),
        channels=listing.channels,
    )


def _cache_key(listing: Listing, indices: Sequence[int], short_side: int) -> str:
    digest = hashlib.sha256(f"{CACHE_VERSION} {short_side} {listing.mode}".encode())
    for i in indices:
        digest.update(f"{listing.names[i]}\0{listing.labels[i]}\0{listing.stamp(i)}\n".encode())
    return digest.hexdigest()[:24]


def _build(
    listing: Listing,
    indices: Sequence[int],
    short_side: int,
    folder: Path,
    report: Callable[[int, int], None],
) -> None:
    """Decode into a folder beside the final one, then rename: complete or absent."""
    work = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        digest = hashlib.sha256()
        rows = []
        offset = 0
        with open(work / "pixels.u8", "wb") as file:
            for done, i in enumerate(indices):
                encoded = listing.read(i)
                digest.update(f"{listing.names[i]}\0{listing.labels[i]}\0".encode())
                digest.update(hashlib.sha256(encoded).digest())
                pixels = np.asarray(_resize(_decode(listing, i, encoded), short_side))
                rows.append((offset, *pixels.shape[:2]))
                offset += file.write(pixels.tobytes())
                report(done + 1, len(indices))
            file.flush()
            os.fsync(file.fileno())
        np.save(work / "index.npy", np.array(rows, dtype=np.int64))
        write_json(work / "meta.json", {"fingerprint": digest.hexdigest()[:24]})
        os.replace(work, folder)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    sync_folder(folder.parent)


def _decode(listing: Listing, index: int, encoded: bytes) -> Image.Image:
    try:
        return listing.decode(encoded)
    except (OSError, ValueError, SyntaxError) as error:
        raise HarnessError(
            f"cannot decode image '{listing.names[index]}': {error}\n"
            "  replace the file, or remove it from the data set"
        ) from error


def _resize(image: Image.Image, short_side: int) -> Image.Image:
    """As torchvision's Resize(short_side): the long side is truncated, not rounded."""
    width, height = image.size
    if min(width, height) == short_side:
        return image
    if width <= height:
        size = (short_side, int(short_side * height / width))
    else:
        size = (int(short_side * width / height), short_side)
    return image.resize(size, Image.Resampling.BILINEAR)


@dataclass(frozen=True)
class CropSettings:
    """How a square is cut from an image; the fields of EvaluationProtocol that say it."""

    crop: int
    crop_scale: tuple[float, float] | None
    crop_ratio: tuple[float, float]
    flip: bool


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
) -> Tensor:
    """(n, channels, crop, crop) uint8: a random crop of each image, perhaps flipped."""
    crop = settings.crop
    images = [store.image(i) for i in indices]
    boxes = draw_boxes(np.array([image.shape[:2] for image in images]), settings, rng)
    flipped = rng.random(len(images)) < 0.5 if settings.flip else np.zeros(len(images), dtype=bool)
    batch = np.empty((len(images), crop, crop, store.channels), dtype=np.uint8)
    for row, (image, (top, left, height, width)) in enumerate(
        zip(images, boxes.tolist(), strict=True)
    ):
        box = image[top : top + height, left : left + width]
        if (height, width) != (crop, crop):
            picture = Image.fromarray(box.squeeze(2) if store.channels == 1 else box)
            resized = picture.resize((crop, crop), Image.Resampling.BILINEAR)
            box = np.asarray(resized).reshape(crop, crop, store.channels)
        batch[row] = box[:, ::-1] if flipped[row] else box
    return torch.from_numpy(batch).permute(0, 3, 1, 2)


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


@dataclass(frozen=True)
class TrainBatches:
    """The batches of one run. Batch `step` is a function of the seed and the step alone.

    So any step can be drawn again: by any number of loader processes, and after an interruption.

    Attributes:
        indices: listing indices of each class, in the order of the fold's own labels.
    """

    store: ImageStore
    indices: tuple[np.ndarray, ...]
    batch_size: int
    samples_per_class: int
    settings: CropSettings
    seed: int

    def __len__(self) -> int:
        return 2**31  # for a DataLoader: there is always a next batch

    def __getitem__(self, step: int) -> tuple[Tensor, Tensor]:
        """uint8 images and the fold's labels of one step."""
        rng = np.random.default_rng([self.seed, step])
        labels = self._draw_classes(rng)
        chosen = np.empty(len(labels), dtype=np.int64)
        for label in np.unique(labels):
            rows = np.flatnonzero(labels == label)
            members = self.indices[label]
            chosen[rows] = rng.choice(members, len(rows), replace=len(rows) > len(members))
        images = random_batch(self.store, chosen.tolist(), self.settings, rng)
        return images, torch.from_numpy(labels)

    def _draw_classes(self, rng: np.random.Generator) -> np.ndarray:
        """Distinct classes while there are enough; then all of them again, as often as needed."""
        needed = math.ceil(self.batch_size / self.samples_per_class)
        rounds = math.ceil(needed / len(self.indices))
        order = np.concatenate([rng.permutation(len(self.indices)) for _ in range(rounds)])
        return np.repeat(order[:needed], self.samples_per_class)[: self.batch_size]

    def class_pool(self, images_per_class: int, draw: int) -> Tensor:
        """Images of every class, class by class, from a stream beside that of training.

        A class gives each of its images once before any is repeated.
        """
        rng = np.random.default_rng([self.seed, derive_seed("class pool"), draw])
        chosen: list[int] = []
        for members in self.indices:
            rounds = math.ceil(images_per_class / len(members))
            order = np.concatenate([rng.permutation(members) for _ in range(rounds)])
            chosen.extend(order[:images_per_class].tolist())
        return random_batch(self.store, chosen, self.settings, rng)
