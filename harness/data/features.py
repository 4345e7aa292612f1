"""Frozen features: what a trunk makes of every image, computed once and memory-mapped."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import numpy as np
import torch
from torch import Tensor

from harness.data.arrays import load_array
from harness.data.batches import Blocks, Source
from harness.data.image_cache import OnProgress, no_progress
from harness.data.loading import Loader
from harness.data.mapped_file import ChecksummingWriter, MappedFile
from harness.data.staging import open_cache
from harness.system.files import check_room, read_json, write_json
from harness.typed import convert

BLOCK = 64  # images per step of the trunk
CHECKED_BYTES = 2**28  # features up to so many are compared with their checksum when opened
AHEAD = 64  # batches drawn together: 0.11 ms each instead of 0.25 with those of CUB

Encode = Callable[[Tensor], Tensor]  # images for evaluation -> (n, width) features


class _Meta(TypedDict):
    """What meta.json says of the features.

    Attributes:
        crc32: of all their bytes; older ones have none.
    """

    fingerprint: str
    crc32: NotRequired[int]


@dataclass(frozen=True)
class Features:
    """The source of a head that trains on the pooled output of a frozen trunk.

    Attributes:
        indices: the listing index of each row of `values`.
        file: that `values` are mapped from; None if they are in memory.
    """

    fingerprint: str
    indices: Sequence[int]
    values: np.ndarray
    file: MappedFile | None = None

    @property
    def width(self) -> int:
        return self.values.shape[1]

    def for_training(self, indices: Sequence[int], rng: np.random.Generator) -> Tensor:
        """As for evaluation: without the trunk there is nothing to augment."""
        del rng
        return self.for_evaluation(indices)

    def for_evaluation(self, indices: Sequence[int]) -> Tensor:
        return torch.from_numpy(self.values.take(self._rows[indices], axis=0))

    def check_stored(self, mapped_only: bool = False) -> None:
        del mapped_only  # all of it is mapped
        if self.file is not None:
            self.file.check()

    @cached_property
    def _rows(self) -> np.ndarray:
        """Row of each listing index; of those that are not here, one that does not exist.

        An array, which looks up a batch in a fifth of the time of a dictionary.
        """
        rows = np.full(max(self.indices) + 1, len(self.values))
        rows[self.indices] = np.arange(len(self.values))
        return rows


def open_features(
    folder: Path,
    open_images: Callable[[], Source],
    build_encoder: Callable[[], tuple[Encode, Loader]],
    on_progress: OnProgress = no_progress,
    stage: Path | None = None,
) -> Features:
    """The features kept in `folder`, or computed into it now.

    Args:
        open_images: called only where there is something to compute.
        build_encoder: likewise; the loader brings images to where the encoder is.
        stage: folder on a local disk; the features are read from a copy in it.
    """

    def build(work: Path) -> None:
        encode, loader = build_encoder()  # before the images: it takes seconds, they may take hours
        _compute(work, open_images(), encode, loader, on_progress)

    return open_cache(folder, build, _read, stage)


def _read(folder: Path) -> Features:
    """The features in a folder; what does not fit together is damaged."""
    meta = convert(read_json(folder / "meta.json"), _Meta, "meta.json")
    indices = load_array(folder / "indices.npy", np.int64)
    values = load_array(folder / "features.npy", np.float32)
    if values.ndim != 2 or indices.shape != values.shape[:1]:
        raise ValueError("features.npy and indices.npy do not fit each other")
    checked = "crc32" in meta and values.nbytes <= CHECKED_BYTES
    if checked and meta["crc32"] != _checksum(indices, values):
        raise ValueError("the checksum of features.npy is another")
    file = MappedFile.describe(folder / "features.npy", folder / "meta.json")
    return Features(meta["fingerprint"], indices.tolist(), values, file)


def _checksum(indices: np.ndarray, values: np.ndarray) -> int:
    return zlib.crc32(values.data, zlib.crc32(indices.astype("<i8").tobytes()))


@torch.no_grad()
def _compute(
    work: Path, images: Source, encode: Encode, loader: Loader, on_progress: OnProgress
) -> None:
    indices = np.array(images.indices)
    done, checksum = 0, zlib.crc32(indices.astype("<i8").tobytes())
    # Written piece by piece: a full disk kills who writes to a memory map.
    with open(work / "features.npy", "wb") as opened:
        file = ChecksummingWriter(opened)
        for block in loader.load(Blocks(images, indices.tolist(), size=BLOCK)):
            values = encode(block).float().cpu().numpy()
            if done == 0:
                check_room(work, len(indices) * values[0].nbytes, "the features of this part")
                _write_header(file, (len(indices), values.shape[1]))
            written = values.astype("<f4").tobytes()
            file.write(written)
            checksum = zlib.crc32(written, checksum)
            done += len(values)
            on_progress(done, len(indices))
        file.sync()
    images.check_stored(mapped_only=True)  # features of damaged pixels would stay wrong
    np.save(work / "indices.npy", indices)
    file.write_checksums(work)
    write_json(work / "meta.json", {"fingerprint": images.fingerprint, "crc32": checksum})


def _write_header(file: Any, shape: tuple[int, int]) -> None:
    header = {"descr": "<f4", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
