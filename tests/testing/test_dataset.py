"""The contract of a data set finds what is wrong with one, and nothing in one that is right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import write_images

from harness.datasets import folder
from harness.datasets.dataset import Dataset, Listing
from harness.errors import HarnessError
from harness.testing import check_dataset

SOUND = Dataset("sound", "a folder of class folders", folder.list_images)

FILE = """
from harness.datasets.dataset import Dataset
from harness.datasets.folder import list_images

DATASETS = (Dataset("mine", "my images", list_images{more}),)
"""


def listing_with(change: Callable[[Listing], dict[str, Any]]) -> Dataset:
    """The sound data set with some fields of its listing changed."""

    def list_images(root: Path | None) -> Listing:
        listing = folder.list_images(root)
        values = {name: getattr(listing, name) for name in Listing.__dataclass_fields__}
        changed = object.__new__(Listing)  # past its own checks
        for name, value in {**values, **change(listing)}.items():
            object.__setattr__(changed, name, value)
        return changed

    return replace(SOUND, list_images=list_images)


def lists_nothing(root: Path | None) -> Listing:
    raise OSError("the disk is gone")


def lists_what_is_not_asked_for(root: Path | None) -> Listing:
    if root is None:
        raise KeyError("root")
    return folder.list_images(root)


def ticking() -> Callable[[int], str]:
    ticks = count()
    return lambda index: str(next(ticks))


def test_a_sound_data_set_passes(image_folder: Path) -> None:
    check_dataset(SOUND, image_folder)


def test_a_data_set_is_found_by_its_name() -> None:
    check_dataset("glyphs")


def test_a_file_can_be_checked(tmp_path: Path, image_folder: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(FILE.format(more=""))
    check_dataset(path, image_folder)
    path.write_text(FILE.format(more=", expected={'pictures': 80}"))
    with pytest.raises(AssertionError, match="mine expects \\['pictures'\\]"):
        check_dataset(path, image_folder)


def test_a_file_without_a_data_set_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("DATASETS = ()")
    with pytest.raises(HarnessError, match="exports no DATASETS"):
        check_dataset(path)


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (replace(SOUND, name="My-Set"), "the name 'My-Set' must consist of"),
        (replace(SOUND, summary=""), "sound has no summary"),
        (replace(SOUND, list_images=lists_nothing), "listing sound in .*: OSError: the disk"),
        (listing_with(lambda given: {"labels": given.labels.astype(np.int32)}), "must be int64"),
        (listing_with(lambda given: {"labels": given.labels + 1}), "must be 0 to 15"),
        (listing_with(lambda given: {"class_names": ("same",) * 16}), "two classes .* share a"),
        (listing_with(lambda given: {"names": given.names[1:]}), "one name per image"),
        (listing_with(lambda given: {"names": given.names[:1] * 80}), "two images .* share a"),
        (
            listing_with(lambda given: {"names": tuple(f"/data/{n}" for n in given.names)}),
            "must be relative to its folder",
        ),
        (listing_with(lambda given: {"mode": "L"}), "decodes to RGB and not to L"),
        (listing_with(lambda given: {"mode": "CMYK"}), "must be RGB or L, got CMYK"),
        (listing_with(lambda given: {"read": lambda index: b""}), "decoding image .*is empty"),
        (listing_with(lambda given: {"stamp": lambda index: ""}), "a stamp of sound is ''"),
        (listing_with(lambda given: {"stamp": ticking()}), "changes by itself: 0, 1"),
        (listing_with(lambda given: {"missing": (3,)}), "1 files of sound are missing"),
        (listing_with(lambda given: {"given_trainval": tuple(range(16))}), "and not all"),
        (listing_with(lambda given: {"given_trainval": (0, 0)}), "has a class twice"),
        (listing_with(lambda given: {"queries": np.ones(80, bool)}), "no given_trainval"),
        (
            listing_with(lambda given: {"queries": np.ones(80, bool), "given_trainval": (0, 1)}),
            "a training image of sound is a query",
        ),
        (
            listing_with(lambda given: {"superclasses": np.zeros(16, np.int64)}),
            "1 superclasses of 16 classes say nothing",
        ),
        (listing_with(lambda given: {"superclasses": np.arange(3)}), "a superclass per class"),
        (
            listing_with(
                lambda given: {
                    "superclasses": np.arange(16) // 8,
                    "superclass_names": ("one", "two", "three"),
                }
            ),
            "has 2 superclasses and 3 names of them",
        ),
        (
            replace(SOUND, expected={"images": 9, "train_images": 4, "test_images": 4}),
            "expects 9 images, but train_images and test_images are 8",
        ),
        (
            replace(SOUND, list_images=lists_what_is_not_asked_for),
            "sound in None: KeyError instead of a ValueError",
        ),
        (replace(SOUND, needs_root=False), "listing sound without a folder: ValueError"),
    ],
)
def test_what_breaks_the_contract_is_named(
    dataset: Dataset, message: str, image_folder: Path
) -> None:
    with pytest.raises(AssertionError, match=message):
        check_dataset(dataset, image_folder)


def test_a_listing_in_the_order_of_the_moment_is_found(tmp_path: Path) -> None:
    for number in range(2):
        write_images(tmp_path / str(number), num_classes=2 + number, per_class=1)
    turns = count()

    def list_images(root: Path | None) -> Listing:
        return folder.list_images(tmp_path / str(next(turns) % 2))

    with pytest.raises(AssertionError, match="lists its images otherwise the second time"):
        check_dataset(replace(SOUND, list_images=list_images), tmp_path)
