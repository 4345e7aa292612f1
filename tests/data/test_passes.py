"""Batches that go through the images epoch by epoch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from harness.data.passes import DealtBatches, PassBatches, ShuffledBatches

SIZES = (3, 5, 7, 4, 6)  # 25 images of five classes


class Numbers:
    """A source whose images are their own numbers."""

    fingerprint = "f"
    indices: Sequence[int] = range(sum(SIZES))

    def for_training(self, indices: Sequence[int], rng: np.random.Generator) -> Tensor:
        del rng
        return torch.tensor(indices)

    def for_evaluation(self, indices: Sequence[int]) -> Tensor:
        return torch.tensor(indices)

    def check_stored(self, mapped_only: bool = False) -> None:
        """There is no file."""


def make(kind: type[PassBatches], **changes: Any) -> PassBatches:
    bounds = np.cumsum([0, *SIZES])
    members = tuple(np.arange(a, b) for a, b in pairwise(bounds))
    values = {"batch_size": 4, "samples_per_class": 1, "seed": 3, **changes}
    return kind(source=Numbers(), indices=members, **values)


def label_of(image: int) -> int:
    return int(np.searchsorted(np.cumsum(SIZES), image, side="right"))


@pytest.mark.parametrize(("keep_rest", "steps", "last"), [(True, 7, 1), (False, 6, 4)])
def test_a_shuffled_epoch_is_a_permutation_of_the_images(
    keep_rest: bool, steps: int, last: int
) -> None:
    batches = make(ShuffledBatches, keep_rest=keep_rest)
    assert batches.epoch_steps == steps
    orders = []
    for epoch in range(2):
        found = [batches[step] for step in range(epoch * steps, (epoch + 1) * steps)]
        assert len(found[-1][0]) == last
        images = torch.cat([images for images, _ in found]).tolist()
        labels = torch.cat([labels for _, labels in found]).tolist()
        assert len(set(images)) == len(images) == (25 if keep_rest else 24)
        assert labels == [label_of(image) for image in images]
        orders.append(images)
    assert orders[0] != orders[1]


def test_shuffling_brings_images_of_one_class_together_by_chance() -> None:
    """Which a batch of distinct classes never does."""
    batches = make(ShuffledBatches, batch_size=5)
    repeated = [len(set(batches[step][1].tolist())) < 5 for step in range(20)]
    assert any(repeated)


def test_dealt_batches_have_distinct_classes_that_repeat_no_image_while_some_are_left() -> None:
    batches = make(DealtBatches, batch_size=6, samples_per_class=2)
    assert batches.epoch_steps == 4  # 24 of the 25 images, six at a time
    seen: Counter[int] = Counter()
    for step in range(batches.epoch_steps):
        images, labels = (part.tolist() for part in batches[step])
        assert labels == [label_of(image) for image in images]
        assert sorted(Counter(labels).values()) == [2, 2, 2]
        seen.update(images)
    for label, size in enumerate(SIZES):
        drawn = [count for image, count in seen.items() if label_of(image) == label]
        # A class is shuffled again only when fewer than two of its images are left.
        assert max(drawn, default=0) <= -(-sum(drawn) // (size - size % 2))


def test_a_dealt_epoch_is_as_long_as_that_of_proxynca_pp() -> None:
    assert make(DealtBatches, batch_size=5).epoch_steps == 4  # (25 - 1) // 5


def test_a_class_with_fewer_images_gives_what_it_has() -> None:
    images, labels = make(DealtBatches, batch_size=25, samples_per_class=5)[0]
    assert Counter(labels.tolist()) == {0: 3, 1: 5, 2: 5, 3: 4, 4: 5}
    assert len(set(images.tolist())) == 22


@pytest.mark.parametrize("kind", [ShuffledBatches, DealtBatches])
def test_a_batch_is_a_function_of_seed_and_step(kind: type[PassBatches]) -> None:
    batches = make(kind)
    expected = [batches[step] for step in range(12)]
    for step in (11, 2, 7, 0):  # as a loader process that skips steps, or a run that is resumed
        images, labels = make(kind)[step]
        assert torch.equal(images, expected[step][0]) and torch.equal(labels, expected[step][1])
    assert not torch.equal(make(kind, seed=4)[0][0], expected[0][0])


def test_fewer_images_than_a_batch_are_one_batch() -> None:
    batches = make(ShuffledBatches, batch_size=64)
    assert batches.epoch_steps == 1
    assert len(batches[0][0]) == 25
