"""What is in a data set: counts, files that are missing or broken, odd formats, duplicates."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from harness import registry
from harness.data.duplicates import alike_groups, equal_groups, thumbnail
from harness.data.image_cache import check_resized
from harness.datasets.dataset import Dataset, Listing, decode_rgb, open_image
from harness.errors import HarnessError
from harness.system.progress import Listener, Prepared, ignore
from harness.system.workers import cores

PROTOCOL = "mlrc"  # to whose size images must be resizable
BLOCK = 1000  # images handed to the threads at once, so that Ctrl-C need not wait for all

GREY = {"1", "L", "LA", "La", "I;16", "I;16B", "I;16L", "I;16N"}
PALETTE = {"P", "PA"}
ALPHA = {"RGBA", "RGBa", "LA", "La", "PA"}
MODES = ("grey", "CMYK", "palette", "transparent")


@dataclass(frozen=True)
class Finding:
    """What one file turned out to be.

    Attributes:
        digest: SHA-256 of its bytes; empty if they cannot be had.
        thumbnail: its picture, small; empty if it does not decode.
        modes: which of MODES it is; an image may be two.
        problem: why it does not decode.
    """

    digest: bytes = b""
    thumbnail: bytes = b""
    modes: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True)
class Duplicates:
    """Groups of names of images that are the same.

    Attributes:
        groups: those across training and test classes first, then those across other classes.
        across_classes, across_split: how many groups hold more than one class, and both training
            and test classes.
    """

    groups: tuple[tuple[str, ...], ...]
    across_classes: int
    across_split: int


@dataclass(frozen=True)
class DatasetCheck:
    """What `data check` found out.

    Attributes:
        counts: by the names of Dataset.expected, and what was published of them.
        smallest, largest: name and number of images of a class.
        broken: name and reason of every file that does not decode.
        modes: names of the images of each of MODES.
        same_files: equal byte by byte.
        same_pictures: equal in small, the same files among them.
        checksum: SHA-256 of names, labels and contents, to compare with another machine's.
    """

    dataset: str
    counts: Mapping[str, int]
    expected: Mapping[str, int]
    smallest: tuple[str, int]
    largest: tuple[str, int]
    superclasses: int
    missing: tuple[str, ...]
    broken: tuple[tuple[str, str], ...]
    modes: Mapping[str, tuple[str, ...]]
    same_files: Duplicates
    same_pictures: Duplicates
    checksum: str

    @property
    def wrong_counts(self) -> dict[str, tuple[int, int]]:
        """Found and published number, where they differ."""
        return {
            name: (self.counts[name], number)
            for name, number in self.expected.items()
            if self.counts[name] != number
        }

    @property
    def usable(self) -> bool:
        return not (self.wrong_counts or self.missing or self.broken)


def check(spec: str, data_root: str = "", listener: Listener = ignore) -> DatasetCheck:
    """Open and decode every image of a data set, those of test classes too; nothing is scored.

    Args:
        spec: name, or folder:PATH.
        data_root: as in RunConfig.
        listener: told how many images are done.
    """
    dataset, path = registry.load_dataset(spec)
    listing = registry.list_images(dataset, path, data_root)
    if listing.features is not None:
        raise HarnessError(
            f"data set '{dataset.name}' has features and no images; they were checked when they "
            "were imported, and their SHA-256 is checked whenever they are used"
        )
    short_side = registry.load_protocol(PROTOCOL, dataset.name).resize
    findings = list(_examine_all(dataset.name, listing, short_side, listener))
    return _report(dataset, listing, findings)


def _examine_all(
    name: str, listing: Listing, short_side: int, listener: Listener
) -> Iterator[Finding]:
    """One finding per image, in the order of the listing; none of a missing file is known."""
    missing, total = set(listing.missing), len(listing.names)

    def examine(index: int) -> Finding:
        return Finding() if index in missing else _examine(listing, index, short_side)

    # Threads suffice: Pillow's decoders and hashlib let the others run meanwhile.
    with ThreadPoolExecutor(cores()) as pool:
        for start in range(0, total, BLOCK):
            block = range(start, min(start + BLOCK, total))
            yield from pool.map(examine, block)
            listener(Prepared(dataset=name, action="decoding", done=block.stop, total=total))


def _examine(listing: Listing, index: int, short_side: int) -> Finding:
    encoded = b""
    try:
        encoded = listing.read(index)
        image = listing.decode(encoded)
        check_resized(image, short_side)
        modes = _modes(encoded) if listing.decode is decode_rgb else ()
    except Exception as error:  # whatever a decoder stumbles over, the file is at fault
        digest = hashlib.sha256(encoded).digest() if encoded else b""
        return Finding(digest, problem=str(error) or type(error).__name__)
    return Finding(hashlib.sha256(encoded).digest(), thumbnail(image), modes)


def _modes(encoded: bytes) -> tuple[str, ...]:
    with open_image(encoded) as image:
        mode, transparent = image.mode, "transparency" in image.info
    are = (mode in GREY, mode == "CMYK", mode in PALETTE, mode in ALPHA or transparent)
    return tuple(mode for mode, is_so in zip(MODES, are, strict=True) if is_so)


def _report(dataset: Dataset, listing: Listing, findings: Sequence[Finding]) -> DatasetCheck:
    train = _training_classes(dataset, listing)
    sizes = np.bincount(listing.labels, minlength=listing.num_classes)
    smallest, largest = int(sizes.argmin()), int(sizes.argmax())
    names, superclasses = listing.names, listing.superclasses
    return DatasetCheck(
        dataset=dataset.name,
        counts=_counts(listing, train),
        expected=dataset.expected,
        smallest=(listing.class_names[smallest], int(sizes[smallest])),
        largest=(listing.class_names[largest], int(sizes[largest])),
        superclasses=0 if superclasses is None else len(np.unique(superclasses)),
        missing=tuple(names[i] for i in listing.missing),
        broken=tuple((names[i], f.problem) for i, f in enumerate(findings) if f.problem),
        modes={
            mode: tuple(names[i] for i, f in enumerate(findings) if mode in f.modes)
            for mode in MODES
        },
        same_files=_duplicates(listing, train, equal_groups([f.digest for f in findings])),
        same_pictures=_duplicates(listing, train, alike_groups([f.thumbnail for f in findings])),
        checksum=_checksum(listing, findings),
    )


def _training_classes(dataset: Dataset, listing: Listing) -> np.ndarray:
    """Those of the data set's own split, or else of the usual one: the first classes."""
    if listing.given_trainval is not None:
        return np.array(listing.given_trainval)
    half = listing.num_classes - listing.num_classes // 2
    return np.arange(min(dataset.expected.get("train_classes", half), listing.num_classes))


def _counts(listing: Listing, train: np.ndarray) -> dict[str, int]:
    in_train = np.isin(listing.labels, train)
    counts = {
        "images": len(listing.names),
        "classes": listing.num_classes,
        "train_classes": len(train),
        "train_images": int(in_train.sum()),
        "test_images": int((~in_train).sum()),
    }
    if listing.queries is not None:
        counts["query_images"] = int(listing.queries.sum())
        counts["gallery_images"] = counts["test_images"] - counts["query_images"]
    return counts


def _duplicates(listing: Listing, train: np.ndarray, groups: list[list[int]]) -> Duplicates:
    labels = [np.unique(listing.labels[group]) for group in groups]
    across_classes = [len(classes) > 1 for classes in labels]
    across_split = [0 < np.isin(classes, train).sum() < len(classes) for classes in labels]
    order = sorted(
        range(len(groups)), key=lambda i: (not across_split[i], not across_classes[i], groups[i])
    )
    return Duplicates(
        groups=tuple(tuple(listing.names[image] for image in groups[i]) for i in order),
        across_classes=sum(across_classes),
        across_split=int(sum(across_split)),
    )


def _checksum(listing: Listing, findings: Sequence[Finding]) -> str:
    checksum = hashlib.sha256()
    for name, label, finding in zip(listing.names, listing.labels, findings, strict=True):
        checksum.update(f"{name}\0{label}\0{finding.digest.hex()}\n".encode())
    return checksum.hexdigest()
