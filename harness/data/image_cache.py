"""Decoded images: resized once into a memory-mapped cache that all folds and workers share."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypedDict

import numpy as np
from PIL import Image

from harness.data.arrays import load_array
from harness.data.mapped_file import ChecksummingWriter, MappedFile
from harness.data.staging import open_cache
from harness.datasets.dataset import Listing, check_size
from harness.errors import EnvironmentFault, HarnessError, MachineError
from harness.system.files import ELSEWHERE, check_room, read_json, write_json
from harness.system.workers import cores
from harness.typed import convert

CACHE_VERSION = 3  # of the format below: raises when cached pixels would differ
BLOCK = 256  # images decoded before they are written
SAMPLE = 64  # images whose size is looked at to estimate that of the cache
SHOWN = 5  # broken images named in a message
DIGESTS = "digests.npy"  # SHA-256 of each readable image as its file has it
MAX_RESIZED = 2**25  # pixels of a resized image: 100 MB; a thin one becomes large

OnProgress = Callable[[int, int], None]


def no_progress(done: int, total: int) -> None:
    """The report of who does not listen."""


class _Meta(TypedDict):
    """What meta.json says of a part.

    Attributes:
        broken: name of an image -> why it cannot be decoded.
    """

    fingerprint: str
    broken: dict[str, str]


class ImageStore(Protocol):
    """Images of one part of a data set, addressed by listing index.

    Attributes:
        fingerprint: hash of the names, labels and encoded bytes of the part.
        indices: the listing indices it has.
        digests: (n, 32) SHA-256 of the encoded image of each index; None in an older cache.
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

    @property
    def digests(self) -> np.ndarray | None: ...

    def check_stored(self, mapped_only: bool = False) -> None:
        """Check as Source.check_stored does."""
        ...


@dataclass(frozen=True)
class CachedImages:
    """An ImageStore over the cache.

    Attributes:
        position: listing index -> row of `index`.
        index: (n, 3) offset, height and width of each image in `pixels`.
        file: that `pixels` are mapped from; None if there are none.
    """

    fingerprint: str
    position: dict[int, int]
    index: np.ndarray
    pixels: np.ndarray
    channels: int
    digests: np.ndarray | None
    file: MappedFile | None

    @property
    def indices(self) -> Sequence[int]:
        return list(self.position)

    def image(self, listing_index: int) -> np.ndarray:
        """A view of the cache."""
        offset, height, width = self.index[self.position[listing_index]]
        size = height * width * self.channels
        return self.pixels[offset : offset + size].reshape(height, width, self.channels)

    def check_stored(self, mapped_only: bool = False) -> None:
        del mapped_only  # all of it is mapped
        if self.file is not None:
            self.file.check()


@dataclass(frozen=True)
class ImageFiles:
    """An ImageStore that decodes an image every time it is asked for: `--cache off`.

    Attributes:
        short_side: None leaves images as large as they are.
        digests: compared every time an image is read.
    """

    fingerprint: str
    indices: Sequence[int]
    listing: Listing
    short_side: int | None
    digests: np.ndarray | None = None

    @property
    def channels(self) -> int:
        return self.listing.channels

    @cached_property
    def _expected(self) -> dict[int, bytes]:
        """Listing index -> SHA-256 of the encoded image."""
        rows = () if self.digests is None else self.digests
        return {i: row.tobytes() for i, row in zip(self.indices, rows, strict=False)}

    def _read(self, listing_index: int) -> bytes:
        try:
            encoded = self.listing.read(listing_index)
        except OSError as error:
            raise _unread(self.listing, listing_index, error) from error
        expected = self._expected.get(listing_index)
        if expected is not None and hashlib.sha256(encoded).digest() != expected:
            raise MachineError(_changed(self.listing.names[listing_index]))
        return encoded

    def image(self, listing_index: int) -> np.ndarray:
        encoded = self._read(listing_index)
        try:
            return _pixels(self.listing, encoded, self.short_side)
        except UNDECODABLE as error:
            name = self.listing.names[listing_index]
            raise MachineError(f"cannot decode image '{name}': {error}") from error

    def check_stored(self, mapped_only: bool = False) -> None:
        """Read every image again; if the cache is older than the digests, compare all at once."""
        if mapped_only:
            return

        def find(listing_index: int) -> tuple[bytes, str]:
            try:
                return hashlib.sha256(self._read(listing_index)).digest(), ""
            except MachineError as error:
                return b"", str(error)

        with ThreadPoolExecutor(cores()) as pool:
            found = list(pool.map(find, self.indices))
        problems = [problem for _, problem in found if problem]
        contents = zip(self.indices, (digest for digest, _ in found), strict=True)
        if not problems and self._fingerprint_of(contents) != self.fingerprint:
            problems = ["the images are not those that the work began with"]
        if problems:
            more = f"\n  and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
            raise EnvironmentFault(
                "\n  ".join(problems[:SHOWN]) + more + "\n  restore the images of the data set, "
                "then repeat the command to go on; or give another --runs-dir to begin again"
            )

    def _fingerprint_of(self, contents: Iterable[tuple[int, bytes]]) -> str:
        fingerprint = _Fingerprint(self.listing)
        for listing_index, content in contents:
            fingerprint.add(listing_index, content)
        return fingerprint.value


class _Fingerprint:
    """Hash of the names, labels and encoded bytes of images."""

    def __init__(self, listing: Listing) -> None:
        self.listing = listing
        self._hash = hashlib.sha256()

    def add(self, listing_index: int, content: bytes) -> None:
        """Add an image.

        Args:
            content: SHA-256 of its encoded bytes.
        """
        name, label = self.listing.names[listing_index], self.listing.labels[listing_index]
        self._hash.update(f"{name}\0{label}\0".encode())
        self._hash.update(content)

    @property
    def value(self) -> str:
        return self._hash.hexdigest()[:24]


# What Pillow raises for files that are no images, cut short or too large.
UNDECODABLE = (OSError, ValueError, SyntaxError, Image.DecompressionBombError)

# What is a matter of one file, and not of the disk.
UNREADABLE = (FileNotFoundError, PermissionError, IsADirectoryError)


def _changed(name: str) -> str:
    return f"image '{name}' changed while it was in use"


def _unread(listing: Listing, index: int, error: OSError) -> MachineError:
    return MachineError(f"cannot read image '{listing.names[index]}': {error.strerror or error}")


def open_store(
    listing: Listing,
    indices: Sequence[int],
    short_side: int,
    cache_dir: Path,
    *,
    allow_broken: bool = False,
    decoded: bool = True,
    depends_on: Mapping[str, Any] | None = None,
    on_progress: OnProgress = no_progress,
    stage: Path | None = None,
) -> ImageStore:
    """The images of `indices`, from the cache or built into it now.

    Only the images asked for are opened, so a store of training classes never sees a test image.

    Args:
        depends_on: protocol field -> value, of all fields that the pixels depend on. Default: the
            short side alone.
        allow_broken: go on without images that cannot be decoded.
        decoded: keep decoded pixels; else the cache only says what was found.
        stage: folder on a local disk; decoded pixels are read from a copy in it.
    """

    def build(work: Path) -> None:
        if decoded:
            _check_space(listing, indices, short_side, work)
        images = _decoded(listing, indices, short_side, allow_broken)
        _write(listing, indices, images, decoded, work, on_progress)

    settings = depends_on or {"resize": short_side}
    folder = cache_dir / store_key(listing, indices, settings, decoded)
    found = open_cache(
        folder,
        build,
        lambda folder: _read(folder, listing, indices, decoded),
        stage if decoded else None,
    )
    if found.broken and not allow_broken:
        raise HarnessError(_broken_message(found.broken))
    if not decoded:
        return ImageFiles(
            found.fingerprint, found.readable, listing, short_side, digests=found.digests
        )
    return CachedImages(
        fingerprint=found.fingerprint,
        position={listing_index: row for row, listing_index in enumerate(found.readable)},
        index=found.index,
        pixels=found.pixels,
        channels=listing.channels,
        digests=found.digests,
        file=found.file,
    )


@dataclass(frozen=True)
class _Found:
    """What a folder of the cache holds; index and pixels are empty where they are not kept."""

    fingerprint: str
    broken: dict[str, str]
    readable: list[int]
    index: np.ndarray
    pixels: np.ndarray
    digests: np.ndarray | None
    file: MappedFile | None


def _read(folder: Path, listing: Listing, indices: Sequence[int], decoded: bool) -> _Found:
    """Open a folder of the cache; one whose files do not fit each other is damaged."""
    meta = convert(read_json(folder / "meta.json"), _Meta, "meta.json")
    readable = [i for i in indices if listing.names[i] not in meta["broken"]]
    index = load_array(folder / "index.npy", np.int64).reshape(-1, 3)
    pixels = _mapped(folder / "pixels.u8")
    sizes = index[:, 1] * index[:, 2] * listing.channels
    ends = np.cumsum(sizes)
    if len(index) != (len(readable) if decoded else 0) or (index[:, 1:] < 1).any():
        raise ValueError(f"index.npy has {len(index)} images of {len(readable)}")
    if not np.array_equal(index[:, 0], ends - sizes) or pixels.size != sizes.sum():
        raise ValueError(f"pixels.u8 has {pixels.size} bytes instead of {sizes.sum()}")
    try:
        digests = load_array(folder / DIGESTS, np.uint8).reshape(-1, 32)
    except FileNotFoundError:  # the cache is older than they are
        digests = None
    if digests is not None and len(digests) != len(readable):
        raise ValueError(f"{DIGESTS} has {len(digests)} images of {len(readable)}")
    file = MappedFile.describe(folder / "pixels.u8", folder / "meta.json") if pixels.size else None
    return _Found(meta["fingerprint"], meta["broken"], readable, index, pixels, digests, file)


def _mapped(path: Path) -> np.ndarray:
    if path.stat().st_size == 0:  # which cannot be mapped: no image is readable
        return np.empty(0, dtype=np.uint8)
    # As a plain array: slicing a memmap object costs six times as much.
    return np.asarray(np.memmap(path, dtype=np.uint8, mode="r"))


def store_key(
    listing: Listing, indices: Sequence[int], settings: Mapping[str, Any], decoded: bool = True
) -> str:
    """Return the name of the cache of some images, which changes if any of them changes.

    Args:
        settings: protocol field -> value, of all fields that the pixels depend on.
    """
    # The short side was alone at first, without its name.
    said = " ".join(str(v) if k == "resize" else f"{k}={v}" for k, v in settings.items())
    digest = hashlib.sha256(f"{CACHE_VERSION} {said} {listing.mode} {decoded}".encode())
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


# Digest of a file, its pixels, and why there are none.
Decoded = tuple[bytes, np.ndarray | None, str | None]


def _write(
    listing: Listing,
    indices: Sequence[int],
    images: Iterator[Decoded],
    keep: bool,
    work: Path,
    on_progress: OnProgress,
) -> None:
    fingerprint = _Fingerprint(listing)
    rows: list[tuple[int, int, int]] = []
    digests: list[bytes] = []
    broken: dict[str, str] = {}
    offset = 0
    with open(work / "pixels.u8", "wb") as opened:
        file = ChecksummingWriter(opened)
        for done, (i, (content, pixels, reason)) in enumerate(zip(indices, images, strict=True)):
            if reason is not None:
                broken[listing.names[i]] = reason
            else:
                fingerprint.add(i, content)
                digests.append(content)
            if pixels is not None and keep:
                rows.append((offset, *pixels.shape[:2]))
                offset += file.write(pixels.tobytes())
            on_progress(done + 1, len(indices))
        file.sync()
    file.write_checksums(work)
    np.save(work / "index.npy", np.array(rows, dtype=np.int64))
    np.save(work / DIGESTS, np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(-1, 32))
    write_json(work / "meta.json", {"fingerprint": fingerprint.value, "broken": broken})


def _decoded(
    listing: Listing, indices: Sequence[int], short_side: int, allow_broken: bool
) -> Iterator[Decoded]:
    """Digest of each file, its pixels, and why there are none.

    What keeps a file from being read may be over the next time, and is not to be remembered.
    """

    def decode(index: int) -> Decoded:
        try:
            encoded = listing.read(index)
        except OSError as error:
            if not (allow_broken and isinstance(error, UNREADABLE)):
                raise _unread(listing, index, error) from error
            return b"", None, error.strerror or str(error)
        try:
            return hashlib.sha256(encoded).digest(), _pixels(listing, encoded, short_side), None
        except UNDECODABLE as error:
            return b"", None, str(error)

    # Pillow decodes without Python's lock.
    with ThreadPoolExecutor(cores()) as pool:
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
        f"{ELSEWHERE}\n  or decode them every time: --cache off",
    )


def _pixels(listing: Listing, encoded: bytes, short_side: int | None) -> np.ndarray:
    image = listing.decode(encoded)
    size = check_resized(image, short_side)
    if size != image.size:
        image = image.resize(size, Image.Resampling.BILINEAR)
    return np.asarray(image).reshape(size[1], size[0], listing.channels)


def check_resized(image: Image.Image, short_side: int | None) -> tuple[int, int]:
    """Width and height that an image is resized to; ValueError if it would take all memory."""
    if short_side is None:  # it stays as it is
        return image.size
    size = resized(*image.size, short_side)
    before = f"{image.width:,} x {image.height:,}"
    check_size(*size, MAX_RESIZED, f"resized from {before} to a short side of {short_side}, it")
    return size


def resized(width: int, height: int, short_side: int) -> tuple[int, int]:
    """Width and height as torchvision's Resize(short_side): the long side is truncated."""
    if width <= height:
        return short_side, int(short_side * height / width)
    return int(short_side * width / height), short_side
