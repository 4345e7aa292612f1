"""Frozen features: what a trunk makes of every image, computed once and memory-mapped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from harness.batches import Source
from harness.files import build_once, read_json, write_json
from harness.store import Report, silent

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
    build_encoder: Callable[[], Encode],
    report: Report = silent,
) -> Features:
    """The features kept in `folder`, or computed into it now.

    Args:
        open_images, build_encoder: called only where there is something to compute.
    """
    build_once(folder, lambda work: _compute(work, open_images(), build_encoder(), report))
    # As a plain array: indexing a memmap object costs more.
    values = np.asarray(np.load(folder / "features.npy", mmap_mode="r"))
    indices = np.load(folder / "indices.npy").tolist()
    return Features(
        fingerprint=read_json(folder / "meta.json")["fingerprint"],
        position={listing_index: row for row, listing_index in enumerate(indices)},
        values=values,
    )


def _compute(work: Path, images: Source, encode: Encode, report: Report) -> None:
    indices = list(images.indices)
    values = np.lib.format.open_memmap(
        work / "features.npy",
        mode="w+",
        dtype=np.float32,
        shape=(len(indices), _encoded(images, indices[:1], encode).shape[1]),
    )
    for start in range(0, len(indices), BLOCK):
        block = indices[start : start + BLOCK]
        values[start : start + BLOCK] = _encoded(images, block, encode)
        report(start + len(block), len(indices))
    values.flush()
    np.save(work / "indices.npy", np.array(indices))
    write_json(work / "meta.json", {"fingerprint": images.fingerprint})


@torch.no_grad()
def _encoded(images: Source, indices: Sequence[int], encode: Encode) -> np.ndarray:
    return encode(images.for_evaluation(indices)).float().cpu().numpy()
