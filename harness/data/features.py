"""Frozen features: what a trunk makes of every image, computed once and memory-mapped."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import torch
from torch import Tensor

from harness.data.batches import Blocks, Source
from harness.data.image_cache import OnProgress, no_progress
from harness.data.loading import Loader
from harness.system.files import build_cache, check_room, read_json, write_json

BLOCK = 64  # images per step of the trunk

Encode = Callable[[Tensor], Tensor]  # images for evaluation -> (n, width) features


@dataclass(frozen=True)
class Features:
    """The source of a head that trains on the pooled output of a frozen trunk."""

    fingerprint: str
    position: dict[int, int]
    values: np.ndarray

    @property
    def indices(self) -> Sequence[int]:
        return list(self.position)

    @property
    def width(self) -> int:
        return self.values.shape[1]

    def for_training(self, indices: Sequence[int], rng: np.random.Generator) -> Tensor:
        """As for evaluation: without the trunk there is nothing to augment."""
        del rng
        return self.for_evaluation(indices)

    def for_evaluation(self, indices: Sequence[int]) -> Tensor:
        return torch.from_numpy(self.values[[self.position[i] for i in indices]])


def open_features(
    folder: Path,
    open_images: Callable[[], Source],
    build_encoder: Callable[[], tuple[Encode, Loader]],
    report: OnProgress = no_progress,
) -> Features:
    """The features kept in `folder`, or computed into it now.

    Args:
        open_images: called only where there is something to compute.
        build_encoder: likewise; the loader brings images to where the encoder is.
    """

    def build(work: Path) -> None:
        encode, loader = build_encoder()  # before the images: it takes seconds, they may take hours
        _compute(work, open_images(), encode, loader, report)

    build_cache(folder, build)
    # As a plain array: indexing a memmap object costs more.
    values = np.asarray(np.load(folder / "features.npy", mmap_mode="r"))
    indices = np.load(folder / "indices.npy").tolist()
    return Features(
        fingerprint=read_json(folder / "meta.json")["fingerprint"],
        position={listing_index: row for row, listing_index in enumerate(indices)},
        values=values,
    )


@torch.no_grad()
def _compute(
    work: Path, images: Source, encode: Encode, loader: Loader, report: OnProgress
) -> None:
    indices = list(images.indices)
    done = 0
    # Written piece by piece: a full disk kills who writes to a memory map.
    with open(work / "features.npy", "wb") as file:
        for block in loader.load(Blocks(images, indices, size=BLOCK)):
            values = encode(block).float().cpu().numpy()
            if done == 0:
                check_room(work, len(indices) * values[0].nbytes, "the features of this part")
                _write_header(file, (len(indices), values.shape[1]))
            file.write(values.astype("<f4").tobytes())
            done += len(values)
            report(done, len(indices))
        file.flush()
        os.fsync(file.fileno())
    np.save(work / "indices.npy", np.array(indices))
    write_json(work / "meta.json", {"fingerprint": images.fingerprint})


def _write_header(file: IO[bytes], shape: tuple[int, int]) -> None:
    header = {"descr": "<f4", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
