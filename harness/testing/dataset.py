"""The contract of a data set: what may be handed to `--dataset`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from harness import registry
from harness.datasets.dataset import Dataset, Listing
from harness.testing.expect import expect, expect_no_error
from harness.testing.exported import items_of

# Names of published counts.
COUNTS = {
    *("images", "classes", "train_classes", "train_images", "test_images"),
    *("query_images", "gallery_images"),
}


def check_dataset(dataset: Dataset | str | Path, root: Path | str | None = None) -> None:
    """Raise AssertionError unless a data set keeps its contract.

    Args:
        dataset: itself, its name, or the path of a file that exports DATASETS.
        root: folder with its files: all of them, or a small copy in the same layout. None for a
            data set that needs no files.
    """
    for one in items_of(dataset, "dataset", Dataset, lambda name: registry.load_dataset(name)[0]):
        copy = Copy(one, None if root is None else Path(root))
        for check in DATASET_CHECKS:
            check(copy)


@dataclass(frozen=True)
class Copy:
    """A data set and a folder that has its files."""

    dataset: Dataset
    root: Path | None

    @property
    def name(self) -> str:
        return self.dataset.name

    @cached_property
    def listing(self) -> Listing:
        with expect_no_error(f"listing {self.name} in {self.root}"):
            return self.dataset.list_images(self.root)


def name_can_be_typed_and_be_part_of_a_folder(copy: Copy) -> None:
    """Tables lie in DATASET-TRUNK, and `folder:PATH` has a colon."""
    expect(
        re.fullmatch(r"[a-z0-9_]+", copy.name) is not None,
        f"the name '{copy.name}' must consist of a-z, 0-9 and _",
    )
    expect(bool(copy.dataset.summary), f"{copy.name} has no summary, which `harness list` shows")


def labels_count_up_from_zero(copy: Copy) -> None:
    """One label per image, no class without an image, one name per class."""
    name, listing = copy.name, copy.listing
    expect(listing.labels.dtype == np.int64, f"labels of {name} must be int64")
    found = np.unique(listing.labels)
    expect(
        np.array_equal(found, np.arange(listing.num_classes)),
        f"labels of {name} must be 0 to {listing.num_classes - 1}, each of some image",
    )
    expect(
        len(set(listing.class_names)) == listing.num_classes, f"two classes of {name} share a name"
    )


def names_are_the_same_on_every_machine(copy: Copy) -> None:
    """They are part of what identifies the data: unique, and without the folder of one user."""
    name, listing = copy.name, copy.listing
    expect(len(listing.names) == len(listing.labels), f"{name} must have one name per image")
    expect(len(set(listing.names)) == len(listing.names), f"two images of {name} share a name")
    root = str(copy.root)
    wrong = [image for image in listing.names if image.startswith("/") or root in image]
    expect(not wrong, f"'{wrong[:1]}' of {name} must be relative to its folder, wherever that lies")


def listing_is_the_same_every_time(copy: Copy) -> None:
    """The order of images and classes decides the split; a set or os.listdir has none."""
    again = copy.dataset.list_images(copy.root)
    same = (
        again.names == copy.listing.names
        and again.class_names == copy.listing.class_names
        and np.array_equal(again.labels, copy.listing.labels)
    )
    expect(same, f"{copy.name} lists its images otherwise the second time")


def images_decode_to_their_mode(copy: Copy) -> None:
    """Of each class the first; their bytes are the same every time."""
    name, listing = copy.name, copy.listing
    expect(listing.mode in ("RGB", "L"), f"the mode of {name} must be RGB or L, got {listing.mode}")
    for index in np.unique(listing.labels, return_index=True)[1].tolist():
        image = f"image '{listing.names[index]}' of {name}"
        with expect_no_error(f"decoding {image}"):
            encoded = listing.read(index)
            mode = listing.decode(encoded).mode
        expect(mode == listing.mode, f"{image} decodes to {mode} and not to {listing.mode}")
        expect(listing.read(index) == encoded, f"{image} has other bytes the second time")


def stamps_are_texts_that_stay(copy: Copy) -> None:
    """By them a cache knows that no file has changed."""
    listing = copy.listing
    stamps = [(listing.stamp(i), listing.stamp(i)) for i in (0, len(listing.names) - 1)]
    for first, again in stamps:
        expect(isinstance(first, str) and first != "", f"a stamp of {copy.name} is {first!r}")
        expect(first == again, f"a stamp of {copy.name} changes by itself: {first}, {again}")


def no_file_is_missing(copy: Copy) -> None:
    """From a whole copy: else files are looked for where they are not."""
    listing = copy.listing
    missing = [listing.names[index] for index in listing.missing]
    expect(not missing, f"{len(missing)} files of {copy.name} are missing, as {missing[:1]}")


def given_split_leaves_classes_to_test(copy: Copy) -> None:
    """Where the data set comes split; protocols split all others."""
    given = copy.listing.given_trainval
    if given is not None:
        expect(len(set(given)) == len(given), f"given_trainval of {copy.name} has a class twice")
        known = set(range(copy.listing.num_classes))
        expect(
            set(given) < known and len(given) > 0,
            f"given_trainval of {copy.name} must be some of its classes, and not all",
        )


def roles_are_of_test_images(copy: Copy) -> None:
    """Queries search a gallery among the test classes; training images have no role."""
    name, listing = copy.name, copy.listing
    if listing.queries is not None:
        expect(
            listing.queries.shape == listing.labels.shape and listing.queries.dtype == bool,
            f"queries of {name} must be one bool per image",
        )
        expect(listing.given_trainval is not None, f"{name} has queries but no given_trainval")
        in_training = np.isin(listing.labels, listing.given_trainval or ())
        expect(not listing.queries[in_training].any(), f"a training image of {name} is a query")
        expect(bool(listing.queries.any()), f"no image of {name} is a query")


def superclasses_group_the_classes(copy: Copy) -> None:
    """One per class, from 0; neither all the same nor all their own."""
    name, groups = copy.name, copy.listing.superclasses
    if groups is not None:
        expect(
            groups.shape == (copy.listing.num_classes,), f"{name} must have a superclass per class"
        )
        found = np.unique(groups)
        expect(
            np.array_equal(found, np.arange(len(found))), f"superclasses of {name} count up from 0"
        )
        expect(
            1 < len(found) < copy.listing.num_classes,
            f"{len(found)} superclasses of {copy.listing.num_classes} classes say nothing",
        )
        names = copy.listing.superclass_names
        expect(
            not names or len(names) == len(found),
            f"{name} has {len(found)} superclasses and {len(names)} names of them",
        )


def published_counts_agree(copy: Copy) -> None:
    """Among themselves: a small copy has its own."""
    expected = copy.dataset.expected
    unknown = sorted(set(expected) - COUNTS)
    expect(not unknown, f"{copy.name} expects {unknown[:1]}; known are {', '.join(sorted(COUNTS))}")
    for whole, *parts in (
        ("images", "train_images", "test_images"),
        ("test_images", "query_images", "gallery_images"),
    ):
        if all(name in expected for name in (whole, *parts)):
            total = sum(expected[name] for name in parts)
            expect(
                total == expected[whole],
                f"{copy.name} expects {expected[whole]} {whole}, but {' and '.join(parts)} "
                f"are {total}",
            )


def without_its_files_it_says_so(copy: Copy) -> None:
    """With a ValueError, which the user is shown; and a data set without files asks for none."""
    if not copy.dataset.needs_root:
        with expect_no_error(f"listing {copy.name} without a folder"):
            copy.dataset.list_images(None)
        return
    for root in (None, Path("no/such/folder")):
        try:
            copy.dataset.list_images(root)
        except ValueError as error:
            expect(bool(str(error)), f"{copy.name} in {root}: the ValueError says nothing")
        except Exception as error:
            raise AssertionError(
                f"{copy.name} in {root}: {type(error).__name__} instead of a ValueError"
            ) from error
        else:
            raise AssertionError(f"{copy.name} lists images in {root}, where there are none")


DATASET_CHECKS = (
    name_can_be_typed_and_be_part_of_a_folder,
    labels_count_up_from_zero,
    names_are_the_same_on_every_machine,
    listing_is_the_same_every_time,
    images_decode_to_their_mode,
    stamps_are_texts_that_stay,
    no_file_is_missing,
    given_split_leaves_classes_to_test,
    roles_are_of_test_images,
    superclasses_group_the_classes,
    published_counts_agree,
    without_its_files_it_says_so,
)
