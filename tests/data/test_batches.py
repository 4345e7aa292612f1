"""Batches that a seed determines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from harness.data.batches import TrainBatches
from harness.data.crops import CropSettings, Images
from harness.data.sources import open_part
from harness.experiment import Experiment


@pytest.fixture
def batches(make_experiment: Callable[..., Experiment]) -> TrainBatches:
    experiment = make_experiment(protocol="mlrc+resize=28")  # larger than the crop
    classes = experiment.split.folds[0].train[:20]
    source = open_part(experiment, "trainval")
    return TrainBatches(
        source=source,
        indices=experiment.by_class(source.indices, classes),
        batch_size=32,
        samples_per_class=4,
        seed=7,
    )


def whole_images(batches: TrainBatches) -> Images:
    """The same images without cropping."""
    assert isinstance(batches.source, Images)
    return replace(batches.source, settings=CropSettings(28, None, (1, 1), False))


def test_a_batch_is_a_function_of_seed_and_step(batches: TrainBatches) -> None:
    images, labels = batches[3]
    again, labels_again = batches[3]
    assert torch.equal(images, again) and torch.equal(labels, labels_again)
    assert not torch.equal(batches[4][0], images)
    assert not torch.equal(replace(batches, seed=8)[3][0], images)


@pytest.mark.parametrize("workers", [0, 2])
def test_loader_processes_do_not_change_batches(batches: TrainBatches, workers: int) -> None:
    loader = torch.utils.data.DataLoader(
        batches, batch_size=None, sampler=range(5), num_workers=workers
    )
    for step, (images, labels) in enumerate(loader):
        assert torch.equal(images, batches[step][0]) and torch.equal(labels, batches[step][1])


@pytest.mark.parametrize("samples", [1, 4])
def test_a_batch_has_as_many_images_per_class_as_asked_for(
    batches: TrainBatches, samples: int
) -> None:
    batches = replace(batches, batch_size=16, samples_per_class=samples)
    counts = np.unique(batches[0][1].numpy(), return_counts=True)[1]
    assert counts.tolist() == [samples] * (16 // samples)


def test_too_few_classes_are_repeated_evenly(batches: TrainBatches) -> None:
    few = replace(batches, indices=batches.indices[:3], batch_size=8, samples_per_class=1)
    assert sorted(np.unique(few[0][1].numpy(), return_counts=True)[1].tolist()) == [2, 3, 3]


def test_labels_are_those_of_the_fold_and_images_of_their_class(batches: TrainBatches) -> None:
    whole = replace(batches, source=whole_images(batches), indices=batches.indices[5:9])
    images, labels = whole[0]
    for image, label in zip(images, labels.tolist(), strict=True):
        members = [whole.source.store.image(i)[:, :, 0] for i in whole.indices[label]]
        assert any(np.array_equal(image[0].numpy(), member) for member in members)


def test_a_class_pool_repeats_no_image_before_all_were_used(batches: TrainBatches) -> None:
    whole = replace(
        batches,
        source=whole_images(batches),
        indices=(batches.indices[0][:5], batches.indices[1][:2]),
    )
    pool, other = (whole.class_pool(4, draw)[0].flatten(1) for draw in (0, 1))
    assert len(torch.unique(pool[:4], dim=0)) == 4
    assert len(torch.unique(pool[4:], dim=0)) == 2
    assert not torch.equal(pool, other)


def test_a_class_pool_is_never_whole_in_memory(batches: TrainBatches) -> None:
    pool = batches.class_pool(40, draw=0)
    assert [len(block) for block in pool] == [256, 256, 256, 32]
    assert torch.equal(pool[2], batches.class_pool(40, draw=0)[2])
    twice = replace(pool, indices=pool.indices[:256] * 2)
    assert not torch.equal(twice[0], twice[1])  # each block is augmented in its own way


class Numbers:
    """A source whose rows are the listing indices themselves."""

    fingerprint = "numbers"
    indices = range(100)

    def for_training(self, indices: Sequence[int], rng: np.random.Generator) -> torch.Tensor:
        return torch.tensor(indices)

    def for_evaluation(self, indices: Sequence[int]) -> torch.Tensor:
        return torch.tensor(indices)

    def check_stored(self, mapped_only: bool = False) -> None:
        """There is no file."""


# Listing indices and labels of some batches, as they have been drawn since the first release.
DRAWN = {
    (6, 1, 0): ([31, 42, 11, 1, 20, 20], [3, 4, 1, 0, 2, 2]),
    (6, 1, 5): ([36, 20, 12, 5, 46, 45], [3, 2, 1, 0, 4, 4]),
    (6, 3, 0): ([34, 35, 36, 41, 44, 43], [3, 3, 3, 4, 4, 4]),
    (6, 3, 5): ([30, 34, 36, 20, 20, 20], [3, 3, 3, 2, 2, 2]),
    (12, 2, 2**20): (
        [20, 20, 40, 44, 12, 10, 37, 35, 4, 1, 3, 0],
        [2, 2, 4, 4, 1, 1, 3, 3, 0, 0, 0, 0],
    ),
    (3, 1, 0): ([31, 40, 10], [3, 4, 1]),
    (3, 1, 5): ([32, 20, 10], [3, 2, 1]),
}


@pytest.mark.parametrize("ahead", [1, 7])
@pytest.mark.parametrize("drawn", DRAWN)
def test_a_seed_draws_the_batches_that_it_always_drew(
    drawn: tuple[int, int, int], ahead: int
) -> None:
    batch_size, samples_per_class, step = drawn
    members = tuple(
        np.arange(10 * label, 10 * label + n) for label, n in enumerate((6, 3, 1, 8, 7))
    )
    batches = TrainBatches(Numbers(), members, batch_size, samples_per_class, 2**40 + 7, ahead)
    images, labels = batches[step]
    assert (images.tolist(), labels.tolist()) == DRAWN[drawn]


def test_batches_drawn_together_are_those_drawn_alone(batches: TrainBatches) -> None:
    """In any order and again: of each the crops are still to be drawn from its own generator."""
    together = replace(batches, ahead=4)
    for step in (2, 3, 5, 4, 3, 3, 9, 0):
        images, labels = together[step]
        assert torch.equal(images, batches[step][0]) and torch.equal(labels, batches[step][1])


def test_images_of_a_class_are_distinct_until_all_were_used() -> None:
    members = (np.arange(6), np.arange(10, 13), np.arange(20, 21))
    batches = TrainBatches(Numbers(), members, batch_size=12, samples_per_class=4, seed=0)
    for step in range(50):
        images, labels = batches[step]
        for label, images_of_class in enumerate(members):
            drawn = images[labels == label].tolist()
            assert set(drawn) <= set(images_of_class.tolist())
            counts = np.unique(drawn, return_counts=True)[1]
            assert len(counts) == min(4, len(images_of_class))
            assert counts.max() - counts.min() <= 1


def test_every_image_of_a_class_is_drawn_equally_often() -> None:
    members = (np.arange(3), np.arange(10, 17))
    batches = TrainBatches(Numbers(), members, batch_size=4, samples_per_class=2, seed=1)
    drawn = torch.cat([batches[step][0] for step in range(3000)]).numpy()
    for images_of_class in members:
        counts = np.array([(drawn == image).sum() for image in images_of_class])
        assert stats.chisquare(counts).pvalue > 0.001
