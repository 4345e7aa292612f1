"""Anybody's images as an exported model takes them: the same pixels as in the harness."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from harness.data.crops import CropSettings, Images
from harness.data.image_cache import ImageFiles
from harness.datasets.dataset import Listing, decode_rgb, list_files
from harness.datasets.walk import images_below
from harness.errors import HarnessError, convert_value_errors
from harness.exported.description import Preprocessing
from harness.system.workers import cores


def find_images(folder: Path) -> list[Path]:
    """Every image in a folder and in those within it, in the order of their names."""
    try:
        found = [folder / name for name in images_below(folder)] if folder.is_dir() else []
    except OSError as error:
        raise HarnessError(f"cannot read {error.filename or folder}: {error.strerror}") from None
    if not found:
        raise HarnessError(f"no images in {folder}; give a folder that contains image files")
    return found


def list_paths(paths: Sequence[str | Path], mode: str = "RGB") -> Listing:
    """A listing of image files, whose classes are the folders that they are in."""
    files = [os.fspath(path) for path in paths]
    folders, labels = np.unique([os.path.dirname(file) for file in files], return_inverse=True)
    with convert_value_errors():
        return list_files(
            files,
            files,
            labels,
            folders.tolist(),
            missing=(),  # found out when they are read
            decode=partial(_decode, mode=mode),
            mode=mode,
        )


def open_listing(listing: Listing, preprocessing: Preprocessing) -> Images:
    """The images of a listing, resized and cropped when they are asked for."""
    settings = CropSettings(preprocessing.crop, None, (1.0, 1.0), flip=False)
    indices = range(len(listing.names))
    return Images(ImageFiles("", indices, listing, preprocessing.resize), settings)


def batches(images: Images, size: int) -> Iterator[Tensor]:
    """All images in batches, decoded by several threads, one batch ahead."""

    def crop(index: int) -> Tensor:
        return images.for_evaluation([index])

    count = len(images.indices)
    parts = [range(first, min(first + size, count)) for first in range(0, count, size)]
    with ThreadPoolExecutor(cores()) as pool:  # Pillow decodes without Python's lock
        waiting = pool.map(crop, parts[0] if parts else ())
        for following in [*parts[1:], range(0)] if parts else ():
            current, waiting = waiting, pool.map(crop, following)
            yield torch.cat(list(current))


def _decode(encoded: bytes, mode: str) -> Image.Image:
    return decode_rgb(encoded).convert(mode)
