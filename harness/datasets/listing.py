"""Dataset and Listing: what a data set says about its images, and nothing else."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image


def decode_rgb(encoded: bytes) -> Image.Image:
    """The image in an encoded file, as RGB."""
    return Image.open(io.BytesIO(encoded)).convert("RGB")


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
        superclasses: (classes,) int64 where there is a human-made hierarchy.
        given_trainval: the training classes, where the data set comes split.
    """

    names: tuple[str, ...]
    labels: np.ndarray
    class_names: tuple[str, ...]
    read: Callable[[int], bytes]
    stamp: Callable[[int], str]
    decode: Callable[[bytes], Image.Image] = decode_rgb
    mode: str = "RGB"
    superclasses: np.ndarray | None = None
    given_trainval: tuple[int, ...] | None = None
    queries: np.ndarray | None = None
    missing: tuple[int, ...] = ()

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
        list_images: root folder -> Listing; raises ValueError that says what is missing. The
            root is None for a data set that needs no files.
        needs_root: whether it reads files that the user must supply.
    """

    name: str
    summary: str
    list_images: Callable[[Path | None], Listing]
    needs_root: bool = True
