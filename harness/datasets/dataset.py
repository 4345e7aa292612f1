"""Dataset and Listing: what a data set says about its images, and nothing else."""

from __future__ import annotations

import io
import os
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError

# Those that photographs come in. Pillow knows thirty more, some of which run other programs.
FORMATS = ("AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")

MAX_PIXELS = 2**27  # of an image as its file has it: 400 MB in memory


def open_image(encoded: bytes) -> Image.Image:
    """The image in an encoded file, of one of FORMATS and of a size that can be decoded."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # we say what is too large
        try:
            image = Image.open(io.BytesIO(encoded), formats=_formats())
        except UnidentifiedImageError:  # whose text is about our buffer
            known = ", ".join(FORMATS)
            said = f"no image of a known format ({known})" if encoded else "the file is empty"
            raise ValueError(said) from None
        except Image.DecompressionBombError:
            raise ValueError(f"it has more than {MAX_PIXELS:,} pixels") from None
    check_size(*image.size, MAX_PIXELS)
    return image


@cache
def _formats() -> tuple[str, ...]:
    """Those of FORMATS that this build of Pillow has."""
    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)


def check_size(width: int, height: int, most: int, what: str = "it") -> None:
    """Refuse a picture that would take all of the memory."""
    if width * height > most:
        raise ValueError(f"{what} has {width:,} x {height:,} pixels, more than {most:,}")


def is_image_name(name: str) -> bool:
    """Whether a file is named as images of FORMATS are."""
    known = Image.registered_extensions()
    return known.get(os.path.splitext(name)[1].lower()) in FORMATS


def decode_rgb(encoded: bytes) -> Image.Image:
    """The image in an encoded file, as RGB."""
    image = open_image(encoded)
    if image.mode in ("I", "F"):
        raise ValueError("its values have no known range; save it with 8 bits per channel")
    if image.mode.startswith("I;16"):  # which convert would clip at 255, not scale
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    return image.convert("RGB")


@dataclass(frozen=True)
class ComputedFeatures:
    """Features that somebody computed, in the place of images.

    Attributes:
        computed_by: name of the network, for tables.
        file: of numpy, (n, width) float32, one row for each name of the listing.
        sha256: of the file.
        width: number of features.
    """

    computed_by: str
    file: Path
    sha256: str
    width: int


@dataclass(frozen=True)
class Listing:
    """Images of a data set by index.

    Attributes:
        names: one per image, the same on every machine.
        labels: (n,) int64, contiguous from 0; classes are ordered as the data set orders them.
        class_names: one per class.
        read: index -> encoded bytes.
        stamp: index -> a text that changes when the bytes do, had without opening the image.
        decode: encoded bytes -> image of `mode`.
        mode: Pillow's name of the pixel format, "RGB" or "L".
        superclasses: (classes,) int64 from 0, where there is a human-made hierarchy.
        superclass_names: one per superclass, where there are any.
        given_trainval: the training classes, where the data set comes split.
        official_trainval: those of the split that was published with it, where the usual one is
            into halves nevertheless (SOP).
        queries: (n,) bool where test images have roles: True for those that search, False for
            the gallery that they search in (and for training images). None: every test image
            searches all others.
        missing: images that are listed but whose file is not there.
        features: of a data set that has features and no images; nothing can be read from it.
    """

    names: tuple[str, ...]
    labels: np.ndarray
    class_names: tuple[str, ...]
    read: Callable[[int], bytes]
    stamp: Callable[[int], str]
    decode: Callable[[bytes], Image.Image] = decode_rgb
    mode: str = "RGB"
    superclasses: np.ndarray | None = None
    superclass_names: tuple[str, ...] = ()
    given_trainval: tuple[int, ...] | None = None
    official_trainval: tuple[int, ...] | None = None
    queries: np.ndarray | None = None
    missing: tuple[int, ...] = ()
    features: ComputedFeatures | None = None

    def __post_init__(self) -> None:
        assert len(self.names) == len(self.labels), "one label per image"
        present = np.unique(self.labels)
        assert np.array_equal(present, np.arange(self.num_classes)), "labels count up from 0"

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def channels(self) -> int:
        return len(self.mode)


@dataclass(frozen=True)
class Dataset:
    """One name of `--dataset`.

    Attributes:
        list_images: root folder -> Listing; raises ValueError that says what is missing, or the
            OSError of what cannot be read. The root is None for a data set that needs no files.
        needs_root: whether it reads files that the user must supply.
        expected: published counts, by any of the names "images", "classes", "train_classes",
            "train_images", "test_images", "query_images", "gallery_images". The training
            classes are the given ones, or else the first of the listing.
        closed: it tests on other images of the classes that it trains on, each of which is
            listed twice. Nothing on it may be ranked.
    """

    name: str
    summary: str
    list_images: Callable[[Path | None], Listing]
    needs_root: bool = True
    expected: Mapping[str, int] = field(default_factory=dict)
    closed: bool = False


def published_listing(dataset: Dataset) -> Listing:
    """As many classes and images as were published, without files: to plan what to do with them.

    The classes of each part have equally many images.
    """
    classes, images = dataset.expected["classes"], dataset.expected["images"]
    train = dataset.expected.get("train_classes", classes // 2)
    train_images = dataset.expected.get("train_images", images * train // classes)
    labels = np.concatenate(
        [
            np.arange(train_images) % train,
            train + np.arange(images - train_images) % (classes - train),
        ]
    )
    return Listing(
        names=tuple(map(str, range(images))),
        labels=labels,
        class_names=tuple(map(str, range(classes))),
        read=lambda index: b"",
        stamp=lambda index: "",
        # SOP, which is published with one training class more than half, is cut into halves.
        given_trainval=tuple(range(train)) if train > classes // 2 + 1 else None,
        official_trainval=tuple(range(train)),
    )


def list_files(
    names: Sequence[str],
    paths: Sequence[str],
    labels: np.ndarray,
    class_names: Sequence[str],
    missing: tuple[int, ...] | None = None,
    **facts: Any,
) -> Listing:
    """A listing of image files; those that are not there are listed as missing.

    Args:
        names: as in Listing, one per path.
        paths: of the files on this machine.
        labels: as in Listing.
        class_names: as in Listing.
        missing: as in Listing, from who has read the folders, which are then not read again.
        facts: other fields of Listing.
    """

    check_names([*names, *class_names])

    def read(index: int) -> bytes:
        return Path(paths[index]).read_bytes()

    def stamp(index: int) -> str:
        status = os.stat(paths[index])
        return f"{status.st_size}:{status.st_mtime_ns}"

    return Listing(
        names=tuple(names),
        labels=labels.astype(np.int64),
        class_names=tuple(class_names),
        read=read,
        stamp=stamp,
        missing=_missing(paths) if missing is None else missing,
        **facts,
    )


def check_names(names: Sequence[str]) -> None:
    """Refuse names that could not be written down: they are hashed, listed and shown."""
    for name in names:
        if not name.isprintable() and (any(c in name for c in "\n\r\0") or not _is_utf8(name)):
            raise ValueError(
                f"{name!r} has line breaks, or is not UTF-8: rename it, as its name stands in "
                "results"
            )


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _missing(paths: Sequence[str]) -> tuple[int, ...]:
    """Positions of paths without a file, by reading each folder once instead of each file."""
    by_folder: dict[str, list[int]] = defaultdict(list)
    for position, path in enumerate(paths):
        by_folder[os.path.dirname(path)].append(position)
    missing: list[int] = []
    for folder, positions in by_folder.items():
        present = files_in(folder)
        missing += [i for i in positions if os.path.basename(paths[i]) not in present]
    return tuple(sorted(missing))


def files_in(folder: str) -> set[str]:
    """Names of the files in a folder, none if it is not there; a link counts by its target."""
    try:
        with os.scandir(folder) as entries:
            return {entry.name for entry in entries if entry.is_file()}
    except (FileNotFoundError, NotADirectoryError):
        return set()


def superclasses_of(words: Sequence[Any], names: Sequence[str] | None = None) -> dict[str, Any]:
    """The superclasses of a listing, in the order of one word or number per class.

    Args:
        names: of the superclass of each class, where they are not the words themselves.
    """
    _, first, groups = np.unique(np.array(words), return_index=True, return_inverse=True)
    titles = words if names is None else names
    return {
        "superclasses": groups.astype(np.int64),
        "superclass_names": tuple(str(titles[i]) for i in first),
    }
