"""Decoded images: resized once into a memory-mapped cache that all folds and workers share."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from PIL import Image

from harness.datasets.dataset import Listing
from harness.errors import HarnessError
from harness.system.files import build_cache, check_room, read_json, write_json

CACHE_VERSION = 3  # of the format below: raises when cached pixels would differ
BLOCK = 256  # images decoded before they are written
SAMPLE = 64  # images whose size is looked at to estimate that of the cache
SHOWN = 5  # broken images named in a message

OnProgress = Callable[[int, int], None]


def no_progress(done: int, total: int) -> None:
    """The report of who does not listen."""


class ImageStore(Protocol):
    """Images of one part of a data set, addressed by listing index.

    Attributes:
        fingerprint: hash of the names, labels and encoded bytes of the part.
        indices: the listing indices it has.
    """

    @property
    def fingerprint(self) -> str: ...

    @property
    def indices(self) -> Sequence[int]: ...

    @property
    def channels(self) -> int: ...

    def image(self, listing_index: int) -> np.ndarray:
        """(height, width, channels) uint8, resized."""
        ...


@dataclass(frozen=True)
class CachedImages:
    """An ImageStore over the cache.

    Attributes:
        position: listing index -> row of `index`.
        index: (n, 3) offset, height and width of each image in `pixels`.
    """

    fingerprint: str
    position: dict[int, int]
    index: np.ndarray
    pixels: np.ndarray
    channels: int

    @property
    def indices(self) -> Sequence[int]:
        return list(self.position)

    def image(self, listing_index: int) -> np.ndarray:
        """A view of the cache."""
        offset, height, width = self.index[self.position[listing_index]]
        size = height * width * self.channels
        return self.pixels[offset : offset + size].reshape(height, width, self.channels)


@dataclass(frozen=True)
class ImageFiles:
    """An ImageStore that decodes an image every time it is asked for: `--cache off`.

    Attributes:
        short_side: None leaves images as large as they are.
    """

    fingerprint: str
    indices: Sequence[int]
    listing: Listing
    short_side: int | None

    @property
    def channels(self) -> int:
        return self.listing.channels

    def image(self, listing_index: int) -> np.ndarray:
        encoded = self.listing.read(listing_index)
        try:
            return _pixels(self.listing, encoded, self.short_side)
        except UNDECODABLE as error:
            name = self.listing.names[listing_index]
            raise HarnessError(f"cannot decode image '{name}': {error}") from error


# What Pillow raises for files that are no images, cut short or too large.
UNDECODABLE = (OSError, ValueError, SyntaxError, Image.DecompressionBombError)


def open_store(
    listing: Listing,
    indices: Sequence[int],
    short_side: int,
    cache_dir: Path,
    *,
    allow_broken: bool = False,
    decoded: bool = True,
    report: OnProgress = no_progress,
) -> ImageStore:
    """The images of `indices`, from the cache or built into it now.

    Only the images asked for are opened, so a store of training classes never sees a test image.

    Args:
        allow_broken: go on without images that cannot be decoded.
        decoded: keep decoded pixels; else the cache only says what was found.
    """

    def build(work: Path) -> None:
        if decoded:
            _check_space(listing, indices, short_side, work)
        _write(listing, indices, short_side, decoded, work, report)

    folder = cache_dir / store_key(listing, indices, short_side, decoded)
    build_cache(folder, build)
    meta = read_json(folder / "meta.json")
    if meta["broken"] and not allow_broken:
        raise HarnessError(_broken_message(meta["broken"]))
    readable = [i for i in indices if listing.names[i] not in meta["broken"]]
    if not decoded:
        return ImageFiles(meta["fingerprint"], readable, listing, short_side)
    return CachedImages(
        fingerprint=meta["fingerprint"],
        position={listing_index: row for row, listing_index in enumerate(readable)},
        index=np.load(folder / "index.npy"),
        pixels=_mapped(folder / "pixels.u8"),
        channels=listing.channels,
    )


def _mapped(path: Path) -> np.ndarray:
    if path.stat().st_size == 0:  # which cannot be mapped: no image is readable
        return np.empty(0, dtype=np.uint8)
    # As a plain array: slicing a memmap object costs six times as much.
    return np.asarray(np.memmap(path, dtype=np.uint8, mode="r"))


def store_key(
    listing: Listing, indices: Sequence[int], short_side: int, decoded: bool = True
) -> str:
    """Names the cache of some images; another version of any of them gives another name."""
    digest = hashlib.sha256(f"{CACHE_VERSION} {short_side} {listing.mode} {decoded}".encode())
    for i in indices:
        digest.update(f"{listing.names[i]}\0{listing.labels[i]}\0{listing.stamp(i)}\n".encode())
    return digest.hexdigest()[:24]


def _broken_message(broken: dict[str, str]) -> str:
    lines = [f"  {name}: {reason}" for name, reason in list(broken.items())[:SHOWN]]
    more = [f"  and {len(broken) - SHOWN} more"] if len(broken) > SHOWN else []
    return "\n".join(
        [
            f"{len(broken)} images cannot be decoded:",
            *lines,
            *more,
            "  replace them, or go on without: --allow-missing",
        ]
    )


def _write(
    listing: Listing,
    indices: Sequence[int],
    short_side: int,
    keep: bool,
    work: Path,
    report: OnProgress,
) -> None:
    digest = hashlib.sha256()
    rows: list[tuple[int, int, int]] = []
    broken: dict[str, str] = {}
    offset = 0
    with open(work / "pixels.u8", "wb") as file:
        images = _decoded(listing, indices, short_side)
        for done, (i, (content, pixels, reason)) in enumerate(zip(indices, images, strict=True)):
            if reason is not None:
                broken[listing.names[i]] = reason
            else:
                digest.update(f"{listing.names[i]}\0{listing.labels[i]}\0".encode())
                digest.update(content)
            if pixels is not None and keep:
                rows.append((offset, *pixels.shape[:2]))
                offset += file.write(pixels.tobytes())
            report(done + 1, len(indices))
        file.flush()
        os.fsync(file.fileno())
    np.save(work / "index.npy", np.array(rows, dtype=np.int64))
    write_json(work / "meta.json", {"fingerprint": digest.hexdigest()[:24], "broken": broken})


Decoded = tuple[bytes, np.ndarray | None, str | None]


def _decoded(listing: Listing, indices: Sequence[int], short_side: int) -> Iterator[Decoded]:
    """Digest of each file, its pixels, and why there are none."""

    def decode(index: int) -> Decoded:
        try:
            encoded = listing.read(index)
            return hashlib.sha256(encoded).digest(), _pixels(listing, encoded, short_side), None
        except UNDECODABLE as error:
            return b"", None, str(error)

    # Pillow decodes without Python's lock.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for start in range(0, len(indices), BLOCK):
            yield from pool.map(decode, indices[start : start + BLOCK])


def _check_space(listing: Listing, indices: Sequence[int], short_side: int, work: Path) -> None:
    """Refuse a cache that would fill the disk, by the sizes of some of its images."""
    areas = []
    for i in indices[:: max(1, len(indices) // SAMPLE)]:
        try:
            width, height = resized(*listing.decode(listing.read(i)).size, short_side)
        except UNDECODABLE:
            continue
        areas.append(width * height)
    needed = int(np.mean(areas or [0])) * listing.channels * len(indices)
    check_room(
        work,
        needed,
        "the decoded images of this part",
        "\n  or decode them every time: --cache off",
    )


def _pixels(listing: Listing, encoded: bytes, short_side: int | None) -> np.ndarray:
    image = listing.decode(encoded)
    size = image.size if short_side is None else resized(*image.size, short_side)
    if size != image.size:
        image = image.resize(size, Image.Resampling.BILINEAR)
    return np.asarray(image).reshape(size[1], size[0], listing.channels)


def resized(width: int, height: int, short_side: int) -> tuple[int, int]:
    """Width and height as torchvision's Resize(short_side): the long side is truncated."""
    if width <= height:
        return short_side, int(short_side * height / width)
    return int(short_side * width / height), short_side
