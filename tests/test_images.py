"""Pixels: the cache, crops as torchvision makes them, and batches that a seed determines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import stats
from torchvision import transforms

from harness import images as images_module
from harness.datasets import folder
from harness.datasets.listing import Listing
from harness.errors import HarnessError
from harness.experiment import Experiment
from harness.images import (
    CropSettings,
    ImageStore,
    TrainBatches,
    centre_batch,
    draw_boxes,
    open_store,
    random_batch,
)

RESIZED_CROP = CropSettings(crop=20, crop_scale=(0.16, 1.0), crop_ratio=(0.75, 1.33), flip=True)
PLAIN_CROP = CropSettings(crop=20, crop_scale=None, crop_ratio=(0.75, 1.33), flip=False)


@pytest.fixture
def listing(tmp_path: Path) -> Listing:
    """Eight images of uneven sizes, some upright, some wide, one already small."""
    rng = np.random.default_rng(1)
    for number, size in enumerate([(40, 61), (75, 33), (32, 32), (50, 49)] * 2):
        target = tmp_path / "images" / f"class_{number // 4}"
        target.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (*size, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(target / f"{number}.png")
    return folder.list_images(tmp_path / "images")


@pytest.fixture
def store(listing: Listing, tmp_path: Path) -> ImageStore:
    return open_store(listing, range(8), 32, tmp_path / "cache")


def test_evaluation_pixels_equal_those_of_torchvision(listing: Listing, store: ImageStore) -> None:
    expected = transforms.Compose(
        [transforms.Resize(32), transforms.CenterCrop(27), transforms.PILToTensor()]
    )
    ours = centre_batch(store, range(8), 27)
    for i in range(8):
        assert torch.equal(ours[i], expected(listing.decode(listing.read(i))))


def test_random_crops_are_those_of_torchvision_for_the_same_boxes(store: ImageStore) -> None:
    settings = replace(RESIZED_CROP, flip=False)
    ours = random_batch(store, range(8), settings, np.random.default_rng(5))
    sizes = np.array([store.image(i).shape[:2] for i in range(8)])
    boxes = draw_boxes(sizes, settings, np.random.default_rng(5))
    for i, box in enumerate(boxes.tolist()):
        picture = Image.fromarray(store.image(i))
        expected = transforms.functional.resized_crop(picture, *box, [20, 20])
        assert torch.equal(ours[i], transforms.functional.pil_to_tensor(expected))


def test_boxes_are_spread_as_those_of_torchvision() -> None:
    """Areas, ratios and places of ten thousand boxes agree with torchvision's own."""
    ours = draw_boxes(np.tile([100, 120], (10_000, 1)), RESIZED_CROP, np.random.default_rng(0))
    torch.manual_seed(0)
    image = torch.empty(3, 100, 120)
    draw = transforms.RandomResizedCrop.get_params
    theirs = np.array([draw(image, [0.16, 1.0], [0.75, 1.33]) for _ in range(10_000)])
    assert (ours[:, :2] + ours[:, 2:] <= [100, 120]).all() and (ours[:, :2] >= 0).all()
    for column in range(4):
        assert stats.ks_2samp(ours[:, column], theirs[:, column]).pvalue > 0.001


def test_an_image_too_long_for_the_ratio_gives_its_middle() -> None:
    settings = replace(RESIZED_CROP, crop_scale=(1.0, 1.0))
    sizes = np.array([[10, 100], [100, 10]])
    boxes = draw_boxes(sizes, settings, np.random.default_rng(0))
    assert boxes.tolist() == [[0, 43, 10, 13], [43, 0, 13, 10]]


def test_about_half_of_the_crops_are_flipped(store: ImageStore) -> None:
    settings = CropSettings(crop=32, crop_scale=None, crop_ratio=(1, 1), flip=True)
    square = 2  # the 32 x 32 image: a crop can only be flipped or not
    batch = random_batch(store, [square] * 200, settings, np.random.default_rng(0))
    plain = torch.from_numpy(store.image(square).copy()).permute(2, 0, 1)
    flipped = sum(torch.equal(image, plain.flip(2)) for image in batch)
    assert flipped + sum(torch.equal(image, plain) for image in batch) == 200
    assert 70 < flipped < 130


def test_the_cache_is_built_once(
    listing: Listing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = open_store(listing, range(8), 32, tmp_path / "cache")
    monkeypatch.setattr(images_module, "_build", lambda *arguments: pytest.fail("built again"))
    again = open_store(listing, range(8), 32, tmp_path / "cache")
    assert again.fingerprint == first.fingerprint
    assert np.array_equal(again.image(5), first.image(5))


def test_an_interrupted_build_leaves_nothing_behind(listing: Listing, tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        open_store(listing, range(8), 32, tmp_path / "cache", stop)
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".lock"]
    assert open_store(listing, range(8), 32, tmp_path / "cache").image(7).shape == (32, 32, 3)


def test_the_fingerprint_changes_with_a_byte_of_an_image(listing: Listing, tmp_path: Path) -> None:
    before = open_store(listing, range(8), 32, tmp_path / "cache").fingerprint
    path = tmp_path / "images" / listing.names[3]
    pixels = np.asarray(Image.open(path)).copy()
    pixels[0, 0, 0] ^= 1
    Image.fromarray(pixels).save(path)
    changed = folder.list_images(tmp_path / "images")
    assert open_store(changed, range(8), 32, tmp_path / "cache").fingerprint != before


def test_an_image_that_cannot_be_decoded_is_named(tmp_path: Path) -> None:
    (tmp_path / "images" / "class_0").mkdir(parents=True)
    (tmp_path / "images" / "class_0" / "broken.png").write_bytes(b"not an image")
    listing = folder.list_images(tmp_path / "images")
    with pytest.raises(HarnessError, match=r"cannot decode image 'class_0/broken\.png'"):
        open_store(listing, [0], 32, tmp_path / "cache")


@pytest.fixture
def batches(make_experiment: Callable[..., Experiment]) -> TrainBatches:
    experiment = make_experiment()
    classes = experiment.split.folds[0].train[:20]
    return TrainBatches(
        store=experiment.trainval,
        indices=tuple(np.array(experiment.indices_of((label,))) for label in classes),
        batch_size=32,
        samples_per_class=4,
        settings=replace(PLAIN_CROP, crop=24),
        seed=7,
    )


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
    whole = replace(
        batches, settings=CropSettings(28, None, (1, 1), False), indices=batches.indices[5:9]
    )
    images, labels = whole[0]
    for image, label in zip(images, labels.tolist(), strict=True):
        members = [whole.store.image(i)[:, :, 0] for i in whole.indices[label]]
        assert any(np.array_equal(image[0].numpy(), member) for member in members)


def test_a_class_pool_repeats_no_image_before_all_were_used(batches: TrainBatches) -> None:
    whole = replace(
        batches,
        settings=CropSettings(28, None, (1, 1), False),
        indices=(batches.indices[0][:5], batches.indices[1][:2]),
    )
    pool = whole.class_pool(4, draw=0).flatten(1)
    assert len(torch.unique(pool[:4], dim=0)) == 4
    assert len(torch.unique(pool[4:], dim=0)) == 2
    assert not torch.equal(pool, whole.class_pool(4, draw=1).flatten(1))
