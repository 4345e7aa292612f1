"""Data sets: contract over whatever is registered, glyphs and folder in particular."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import write_images
from fontTools.ttLib import TTFont

from harness import registry
from harness.datasets import folder, glyphs
from harness.datasets.listing import Listing

# How each data set that needs files gets a small copy of them.
FIXTURES: dict[str, Callable[[Path], None]] = {"folder": write_images}


@pytest.fixture(params=registry.names("dataset"))
def listing(request: pytest.FixtureRequest, tmp_path: Path) -> Listing:
    dataset, _ = registry.load_dataset(request.param)
    if not dataset.needs_root:
        return dataset.list_images(None)
    FIXTURES[dataset.name](tmp_path / "data")
    return dataset.list_images(tmp_path / "data")


def test_labels_count_up_from_zero_and_every_class_has_a_name(listing: Listing) -> None:
    assert listing.labels.dtype == np.int64
    assert np.array_equal(np.unique(listing.labels), np.arange(listing.num_classes))
    assert len(set(listing.class_names)) == listing.num_classes


def test_names_are_unique_and_relative(listing: Listing) -> None:
    assert len(set(listing.names)) == len(listing.names) == len(listing.labels)
    assert not any(name.startswith("/") for name in listing.names)


def test_images_decode_to_the_mode_they_promise(listing: Listing) -> None:
    for index in (0, len(listing.names) - 1):
        image = listing.decode(listing.read(index))
        assert image.mode == listing.mode
        assert listing.read(index) == listing.read(index)


def test_superclasses_cover_every_class(listing: Listing) -> None:
    if listing.superclasses is not None:
        assert listing.superclasses.shape == (listing.num_classes,)
        assert 1 < len(np.unique(listing.superclasses)) < listing.num_classes


def test_glyphs_has_200_classes_of_48_images() -> None:
    listing = glyphs.list_images()
    assert np.bincount(listing.labels).tolist() == [48] * 200


def test_every_face_has_every_character() -> None:
    characters = {ord(char) for chars in glyphs.SCRIPTS.values() for char in chars}
    assert len(characters) == 200
    for face in glyphs.FACES:
        assert characters <= set(TTFont(glyphs._font_path(face)).getBestCmap())


def test_no_two_characters_of_glyphs_look_the_same() -> None:
    """Drawn large in one face, cut to their ink and scaled alike, all differ clearly."""
    shapes: list[np.ndarray] = []
    for char in (char for chars in glyphs.SCRIPTS.values() for char in chars):
        mask = glyphs._font("DejaVuSans", 96).getmask(char)
        ink = np.asarray(mask).reshape(mask.size[::-1])
        rows, columns = np.flatnonzero(ink.any(1)), np.flatnonzero(ink.any(0))
        cut = ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        side = max(cut.shape)
        square = np.zeros((side, side))
        square[: cut.shape[0], : cut.shape[1]] = cut
        picked = np.linspace(0, side - 1, 24).astype(int)
        shapes.append(square[np.ix_(picked, picked)].ravel() > 127)
    stacked = np.array(shapes, dtype=float)
    shared = stacked @ stacked.T
    union = stacked.sum(1)[:, None] + stacked.sum(1)[None] - shared
    np.fill_diagonal(shared, 0)
    assert (shared / union).max() < 0.9


def test_glyphs_renders_the_same_pixels_in_any_order() -> None:
    listing = glyphs.list_images()
    later = listing.read(4321)
    assert listing.read(17) != later
    assert glyphs.list_images().read(4321) == later


def test_scripts_of_glyphs_mix_over_the_split() -> None:
    superclasses = glyphs.list_images().superclasses
    assert superclasses is not None
    for half in (superclasses[:100], superclasses[100:]):
        assert set(half) == set(range(len(glyphs.SCRIPTS)))


def test_folder_orders_classes_by_name_and_skips_what_is_no_image(tmp_path: Path) -> None:
    write_images(tmp_path, num_classes=3, per_class=2)
    (tmp_path / "class_01" / "notes.txt").write_text("not an image")
    (tmp_path / "empty").mkdir()
    listing = folder.list_images(tmp_path)
    assert listing.class_names == ("class_00", "class_01", "class_02")
    assert listing.names[2:4] == ("class_01/0.png", "class_01/1.png")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda root: None, "no folder at"),
        (lambda root: root.mkdir(), "no images in the folders of"),
    ],
)
def test_folder_says_what_is_missing_and_what_it_expects(
    tmp_path: Path, make: Callable[[Path], None], message: str
) -> None:
    make(tmp_path / "data")
    with pytest.raises(ValueError, match=message) as raised:
        folder.list_images(tmp_path / "data")
    assert "one folder per class" in str(raised.value)
