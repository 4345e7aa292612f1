"""Any folder of class folders, in the order of their names: `--dataset folder:PATH`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from harness.datasets.dataset import Dataset, Listing, files_in, list_files

LAYOUT = "PATH/<class name>/<image>, one folder per class"


def list_images(root: Path | None) -> Listing:
    if root is None:
        raise ValueError(f"data set 'folder' needs a path: --dataset folder:PATH\n  {LAYOUT}")
    if not root.is_dir():
        raise ValueError(f"no folder at {root}\n  expected: {LAYOUT}")
    return list_class_folders(root)


def list_class_folders(root: Path) -> Listing:
    """Every image in the folders of `root`; folders without one are no classes."""
    Image.init()  # so that the extensions of all formats are known
    found: dict[str, list[str]] = {}
    for folder in sorted(path for path in root.iterdir() if path.is_dir()):
        images = [n for n in files_in(str(folder)) if Path(n).suffix.lower() in Image.EXTENSION]
        if images:
            found[folder.name] = sorted(images)
    if not found:
        raise ValueError(f"no images in the folders of {root}\n  expected: {LAYOUT}")
    names = [f"{folder}/{image}" for folder, images in found.items() for image in images]
    counts = [len(images) for images in found.values()]
    labels = np.repeat(np.arange(len(found)), counts)
    paths = [f"{root}/{name}" for name in names]
    return list_files(names, paths, labels, list(found), seen=True)


DATASETS = (Dataset("folder", "your images: a folder of class folders, folder:PATH", list_images),)
