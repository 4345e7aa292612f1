"""Which images make the batch of each step: a function of the seed and the step alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from harness.system.seeds import derive_seed


class Source(Protocol):
    """What a model sees of the images of one part of a data set, by listing index.

    Attributes:
        fingerprint: hash of the names, labels and bytes of the images.
        indices: the listing indices it has.
    """

    @property
    def fingerprint(self) -> str: ...

    @property
    def indices(self) -> Sequence[int]: ...

    def for_training(self, indices: Sequence[int], rng: np.random.Generator) -> Any:
        """One row per index, augmented where the source augments: a tensor after its `to`."""
        ...

    def for_evaluation(self, indices: Sequence[int]) -> Tensor:
        """One row per index, the same every time."""
        ...

    def check_stored(self, mapped_only: bool = False) -> None:
        """Raise EnvironmentFault if the files that it reads are not what they were.

        A damaged cache is marked, so that it is built again when it is next opened.

        Args:
            mapped_only: leave out files that are compared every time they are read.
        """
        ...


@dataclass(frozen=True)
class Blocks:
    """Images in their order, some at a time.

    Attributes:
        indices: listing indices.
        augmented: seed of what training does to images; None leaves them as for evaluation.
    """

    source: Source
    indices: Sequence[int]
    augmented: tuple[int, ...] | None = None
    size: int = 256

    def __len__(self) -> int:
        return math.ceil(len(self.indices) / self.size)

    def __getitem__(self, block: int) -> Tensor:
        if not 0 <= block < len(self):
            raise IndexError(block)  # which also ends a loop over the blocks
        chosen = self.indices[block * self.size : (block + 1) * self.size]
        if self.augmented is None:
            return self.source.for_evaluation(chosen)
        return self.source.for_training(chosen, np.random.default_rng([*self.augmented, block]))


class Drawn(NamedTuple):
    """The images of a batch, with the generator that drew them, for what is still to be drawn."""

    images: np.ndarray
    labels: np.ndarray
    rng: np.random.Generator


@dataclass(frozen=True)
class TrainBatches:
    """The batches of one run; batch `step` can be drawn again at any time.

    By any number of loader processes, and after an interruption.

    Attributes:
        indices: listing indices of each class, in the order of the fold's own labels.
        ahead: steps that are drawn together, which takes half the time where one follows another;
            loader processes skip steps.
        keep_rest: an epoch ends with a smaller batch; else the rest is dropped.
    """

    source: Source
    indices: tuple[np.ndarray, ...]
    batch_size: int
    samples_per_class: int
    seed: int
    ahead: int = 1
    keep_rest: bool = False

    @property
    def num_images(self) -> int:
        return int(self._sizes.sum())

    @property
    def epoch_steps(self) -> int:
        """Batches of a pass over the images: as many as are full, or one more for the rest."""
        full, rest = divmod(self.num_images, self.batch_size)
        return max(1, full + bool(rest and self.keep_rest))

    def __len__(self) -> int:
        return 2**31  # for a DataLoader: there is always a next batch

    def __getitem__(self, step: int) -> tuple[Tensor, Tensor]:
        """Inputs and the fold's labels of one step."""
        if step not in self._drawn:
            self._drawn.clear()
            self._drawn.update(self._draw(range(step, step + self.ahead)))
        images, labels, rng = self._drawn.pop(step)  # nothing else may draw from its generator
        return self.source.for_training(images.tolist(), rng), torch.from_numpy(labels)

    @cached_property
    def _drawn(self) -> dict[int, Drawn]:
        return {}

    def _draw(self, steps: Sequence[int]) -> dict[int, Drawn]:
        """Classes of each step, then images of them."""
        rngs = [np.random.default_rng([self.seed, step]) for step in steps]
        classes = np.stack([self._draw_classes(rng) for rng in rngs])
        ascending = np.sort(classes[:, : len(self.indices)])  # the rest are the same ones again
        shape = (ascending.shape[1], self._members.shape[1])
        keys = np.stack([rng.random(shape) for rng in rngs])
        labels = classes[:, self._slots]
        images = self._members[labels, self._places(labels, ascending, keys)]
        return {
            step: Drawn(*batch) for step, *batch in zip(steps, images, labels, rngs, strict=True)
        }

    def _places(self, labels: np.ndarray, classes: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """Which image of its class to take for each label, distinct while there are enough.

        Args:
            labels: (steps, batch).
            classes: (steps, drawn) in ascending order.
            keys: (steps, drawn, largest class) random numbers, whose order is that of the images.
        """
        keys[self._absent[classes]] = 2.0  # behind all others
        # The first of a class needs no sorting, which is a third of the time of drawing a batch.
        order = keys.argsort() if self._nth.any() else keys.argmin(axis=2, keepdims=True)
        row = (classes[:, None] < labels[:, :, None]).sum(axis=2)
        return order[np.arange(len(keys))[:, None], row, self._nth % self._sizes[labels]]

    def _draw_classes(self, rng: np.random.Generator) -> np.ndarray:
        """Distinct classes while there are enough; then all of them again, as often as needed."""
        needed = math.ceil(self.batch_size / self.samples_per_class)
        rounds = math.ceil(needed / len(self.indices))
        order = [rng.permutation(len(self.indices)) for _ in range(rounds)]
        return np.concatenate(order)[:needed]

    @cached_property
    def _slots(self) -> np.ndarray:
        """Which of the drawn classes each image of a batch is of."""
        return np.arange(self.batch_size) // self.samples_per_class

    @cached_property
    def _nth(self) -> np.ndarray:
        """Which image of its class each image of a batch is."""
        within = np.arange(self.batch_size) % self.samples_per_class
        return self._slots // len(self.indices) * self.samples_per_class + within

    @cached_property
    def _sizes(self) -> np.ndarray:
        return np.array([len(members) for members in self.indices])

    @cached_property
    def _members(self) -> np.ndarray:
        """(classes, largest class) listing indices, classes with fewer filled up with -1."""
        table = np.full((len(self.indices), self._sizes.max()), -1)
        for row, members in zip(table, self.indices, strict=True):
            row[: len(members)] = members
        return table

    @cached_property
    def _absent(self) -> np.ndarray:
        """(classes, largest class) where `_members` is only filled up."""
        return self._members == -1

    def class_pool(self, images_per_class: int, draw: int) -> Blocks:
        """Images of every class, class by class, from a stream beside that of training.

        A class gives each of its images once before any is repeated.
        """
        seed = (self.seed, derive_seed("class pool"), draw)
        rng = np.random.default_rng(seed)
        chosen: list[int] = []
        for members in self.indices:
            rounds = math.ceil(images_per_class / len(members))
            order = np.concatenate([rng.permutation(members) for _ in range(rounds)])
            chosen.extend(order[:images_per_class].tolist())
        return Blocks(self.source, chosen, seed)
