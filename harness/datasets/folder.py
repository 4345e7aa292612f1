"""Any folder of class folders, in the order of their names: `--dataset folder:PATH`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from harness.datasets.dataset import Dataset, Listing, list_files
from harness.datasets.walk import images_and_folders, images_below

LAYOUT = "PATH/<class name>/<image>, one folder per class"
SHOWN = 5  # misplaced images named in a message


def list_images(root: Path | None) -> Listing:
    if root is None:
        raise ValueError(f"data set 'folder' needs a path: --dataset folder:PATH\n  {LAYOUT}")
    if not root.is_dir():
        raise ValueError(f"no folder at {root}\n  expected: {LAYOUT}")
    return list_class_folders(root)


def list_class_folders(root: Path) -> Listing:
    """Every image in the folders of `root`; folders without one are no classes.

    A link to nothing is listed, as missing. An image beside the class folders, or deeper than they
    are, is of no class: it is refused, not left out.
    """
    beside, classes = images_and_folders(root)
    misplaced = list(beside)
    found: dict[str, dict[str, bool]] = {}
    for name in classes:
        images, deeper = images_and_folders(root / name)
        if images:
            found[name] = images
        for folder in deeper:
            misplaced += images_below(root, f"{name}/{folder}")
    if misplaced:
        raise ValueError(_misplaced_message(root, misplaced))
    if not found:
        raise ValueError(f"no images in the folders of {root}\n  expected: {LAYOUT}")
    names = [f"{folder}/{image}" for folder, images in found.items() for image in images]
    counts = [len(images) for images in found.values()]
    labels = np.repeat(np.arange(len(found)), counts)
    paths = [f"{root}/{name}" for name in names]
    there = [is_there for images in found.values() for is_there in images.values()]
    missing = tuple(i for i, is_there in enumerate(there) if not is_there)
    return list_files(names, paths, labels, list(found), missing)


def _misplaced_message(root: Path, images: list[str]) -> str:
    more = [f"  and {len(images) - SHOWN} more"] if len(images) > SHOWN else []
    return "\n".join(
        [
            f"{len(images)} images in {root} are in no class folder:",
            *(f"  {image}" for image in images[:SHOWN]),
            *more,
            f"  expected: {LAYOUT}; move them there, or away",
        ]
    )


DATASETS = (Dataset("folder", "your images: a folder of class folders, folder:PATH", list_images),)
