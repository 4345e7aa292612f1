"""Batches that go through the images epoch by epoch, each a function of the seed and the step.

The plan of an epoch depends on the seed and its number alone, so that any step can be drawn again
by any number of loader processes, and after an interruption.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from harness.data.batches import TrainBatches
from harness.system.seeds import derive_seed


class PassBatches(TrainBatches):
    """Base of those: a class says how an epoch is cut into batches of (images, labels)."""

    def __getitem__(self, step: int) -> tuple[Tensor, Tensor]:
        """Inputs and the fold's labels of one step."""
        epoch, batch = divmod(step, self.epoch_steps)
        if epoch not in self._planned:
            self._planned.clear()
            rng = np.random.default_rng([self.seed, derive_seed("epoch"), epoch])
            self._planned[epoch] = self._plan(rng)
        images, labels = self._planned[epoch][batch]
        rng = np.random.default_rng([self.seed, step])
        return self.source.for_training(images.tolist(), rng), torch.from_numpy(labels)

    @cached_property
    def _planned(self) -> dict[int, list[tuple[np.ndarray, np.ndarray]]]:
        """Of one epoch at a time."""
        return {}

    def _plan(self, rng: np.random.Generator) -> list[tuple[np.ndarray, np.ndarray]]:
        raise NotImplementedError


class ShuffledBatches(PassBatches):
    """Every image once, in a new order in every epoch."""

    def _plan(self, rng: np.random.Generator) -> list[tuple[np.ndarray, np.ndarray]]:
        order = rng.permutation(self.num_images)
        images = np.concatenate(self.indices)[order]
        labels = np.repeat(np.arange(len(self.indices)), self._sizes)[order]
        starts = range(0, self.epoch_steps * self.batch_size, self.batch_size)
        return [(images[a : a + self.batch_size], labels[a : a + self.batch_size]) for a in starts]


class DealtBatches(PassBatches):
    """Distinct classes for every step, whose images are dealt from a shuffle of each class.

    A class with fewer images than are wanted of it gives what it has.
    """

    @property
    def epoch_steps(self) -> int:
        """One less where the last batch would be full: as the sampler of ProxyNCA++ counts."""
        return max(1, (self.num_images - 1) // self.batch_size)

    def _plan(self, rng: np.random.Generator) -> list[tuple[np.ndarray, np.ndarray]]:
        decks = [self._deal(members, rng) for members in self.indices]
        plan = []
        for _ in range(self.epoch_steps):
            classes = self._draw_classes(rng)[: len(self.indices)]
            hands = [next(decks[label]) for label in classes]
            labels = np.repeat(classes, [len(hand) for hand in hands])
            plan.append((np.concatenate(hands)[: self.batch_size], labels[: self.batch_size]))
        return plan

    def _deal(self, members: np.ndarray, rng: np.random.Generator) -> Iterator[np.ndarray]:
        """Some images at a time; shuffled again when fewer are left."""
        size = min(self.samples_per_class, len(members))
        while True:
            deck = rng.permutation(members)
            for start in range(0, len(deck) - size + 1, size):
                yield deck[start : start + size]
