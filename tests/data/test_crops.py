"""Crops as torchvision makes them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import stats
from torchvision import transforms

from benchmarks.pretended_gpu import pretended_gpu
from harness.data.crops import Boxes, CropSettings, Images, centre_batch, draw_boxes, random_batch
from harness.data.image_cache import ImageFiles, ImageStore, open_store
from harness.datasets.dataset import Listing

RESIZED_CROP = CropSettings(crop=20, crop_scale=(0.16, 1.0), crop_ratio=(0.75, 1.33), flip=True)


@pytest.fixture
def store(uneven_listing: Listing, tmp_path: Path) -> ImageStore:
    return open_store(uneven_listing, range(8), 32, tmp_path / "cache")


def test_evaluation_pixels_equal_those_of_torchvision(
    uneven_listing: Listing, store: ImageStore
) -> None:
    expected = transforms.Compose(
        [transforms.Resize(32), transforms.CenterCrop(27), transforms.PILToTensor()]
    )
    ours = centre_batch(store, range(8), 27)
    for i in range(8):
        assert torch.equal(ours[i], expected(uneven_listing.decode(uneven_listing.read(i))))


def test_random_crops_are_those_of_torchvision_for_the_same_boxes(store: ImageStore) -> None:
    settings = replace(RESIZED_CROP, flip=False)
    ours = random_batch(store, range(8), settings, np.random.default_rng(5))
    sizes = np.array([store.image(i).shape[:2] for i in range(8)])
    boxes = draw_boxes(sizes, settings, np.random.default_rng(5))
    for i, box in enumerate(boxes.tolist()):
        picture = Image.fromarray(store.image(i))
        by_pillow = transforms.functional.resized_crop(picture, *box, [20, 20])
        difference = ours[i].int() - transforms.functional.pil_to_tensor(by_pillow).int()
        assert difference.abs().max() <= 1  # of 255: they round in another place


def test_crops_without_a_scale_are_the_pixels_of_their_boxes(store: ImageStore) -> None:
    settings = CropSettings(crop=20, crop_scale=None, crop_ratio=(1, 1), flip=False)
    ours = random_batch(store, range(8), settings, np.random.default_rng(5))
    sizes = np.array([store.image(i).shape[:2] for i in range(8)])
    boxes = draw_boxes(sizes, settings, np.random.default_rng(5))
    assert ours.shape == (8, 3, 20, 20) and ours.is_contiguous()
    for i, (top, left, height, width) in enumerate(boxes.tolist()):
        pixels = store.image(i)[top : top + height, left : left + width]
        assert np.array_equal(ours[i].numpy(), pixels.transpose(2, 0, 1))


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


def test_training_crops_may_be_cut_from_the_original_images(
    uneven_listing: Listing, store: ImageStore
) -> None:
    originals = ImageFiles(store.fingerprint, range(8), uneven_listing, short_side=None)
    for i in range(8):
        plain = np.asarray(uneven_listing.decode(uneven_listing.read(i)))
        assert np.array_equal(originals.image(i), plain)
    settings = replace(RESIZED_CROP, crop=27)
    images = Images(store, settings, originals)
    ours = images.for_training(range(8), np.random.default_rng(5))
    assert torch.equal(ours, random_batch(originals, range(8), settings, np.random.default_rng(5)))
    assert not torch.equal(ours, random_batch(store, range(8), settings, np.random.default_rng(5)))
    assert torch.equal(images.for_evaluation(range(8)), centre_batch(store, range(8), 27))


@pytest.mark.parametrize("scale", [(0.16, 1.0), None])
def test_crops_that_are_resized_on_the_device_differ_by_one_of_255_at_most(
    scale: tuple[float, float] | None, store: ImageStore
) -> None:
    settings = replace(RESIZED_CROP, crop_scale=scale)
    before = random_batch(store, range(8), settings, np.random.default_rng(3))
    boxes = random_batch(store, range(8), replace(settings, late=True), np.random.default_rng(3))
    assert isinstance(before, torch.Tensor) and isinstance(boxes, Boxes)
    with pretended_gpu() as gpu:
        late = boxes.pin_memory().to(torch.device("cuda"), non_blocking=True)
        assert gpu.waits == []
        late = late.cpu()
    assert late.dtype == torch.uint8 and late.shape == before.shape
    assert (late.int() - before.int()).abs().max() <= 1
    assert torch.equal(boxes.to(torch.device("cpu")), late)
