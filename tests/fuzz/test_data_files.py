"""Annotation files and images that somebody damaged."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from dataset_files import write_cars, write_cub, write_inaturalist_json, write_inshop, write_sop
from ends import cases, run, unchanged
from hypothesis import given
from hypothesis import strategies as st
from mutations import damaged_bytes, damaged_json, damaged_text
from PIL import Image

from harness import registry
from harness.data.check import check
from harness.data.image_cache import open_store
from harness.datasets import folder
from harness.errors import HarnessError

Damage = Callable[[bytes], st.SearchStrategy[bytes]]

# Data set -> how a small copy of it is written, the files that say what is on its images, and how
# these are damaged.
LISTED: dict[str, tuple[Callable[[Path], None], tuple[str, ...], Damage]] = {
    "cub": (write_cub, ("images.txt", "image_class_labels.txt", "classes.txt"), damaged_text),
    "cars": (write_cars, ("cars_annos.mat",), damaged_bytes),
    "sop": (write_sop, ("Ebay_train.txt", "Ebay_test.txt"), damaged_text),
    "inshop": (write_inshop, ("Eval/list_eval_partition.txt",), damaged_text),
    "inaturalist": (
        write_inaturalist_json,
        ("Inaturalist_train_set1.json", "Inaturalist_test_set1.json"),
        damaged_json,
    ),
}


@contextmanager
def with_a_damaged_list(
    data: st.DataObject, name: str, factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """A data set, one of whose lists is damaged until the block ends."""
    write, files, damage = LISTED[name]
    root = factory.getbasetemp() / f"fuzz_{name}"
    if not root.exists():
        root.mkdir()
        write(root)
    file = root / data.draw(st.sampled_from(files))
    intact = file.read_bytes()
    try:
        file.write_bytes(data.draw(damage(intact)))
        yield root
    finally:
        file.write_bytes(intact)


@pytest.mark.parametrize("name", LISTED)
@cases(0.04)
@given(data=st.data())
def test_damaged_annotations_are_refused_or_listed(
    data: st.DataObject, name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with with_a_damaged_list(data, name, tmp_path_factory) as root:
        dataset, _ = registry.load_dataset(name)
        registry.forget_listings()
        try:
            listing = registry.list_images(dataset, None, str(root))
        except HarnessError as refused:
            assert str(refused).strip()
            return
        assert len(listing.names) == len(listing.labels)
        assert set(listing.missing) <= set(range(len(listing.names)))
        for index in set(range(len(listing.names))) - set(listing.missing):
            assert listing.stamp(index)


@pytest.mark.parametrize("name", LISTED)
@cases(0.002)
@given(data=st.data())
def test_data_check_of_damaged_annotations_ends_with_a_message(
    data: st.DataObject, name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with with_a_damaged_list(data, name, tmp_path_factory) as root, unchanged(root):
        run(["data", "check", name, "--data-root", str(root)]).check()


def _encoded(format_: str) -> bytes:
    """A small picture as a file of a format."""
    pixels = np.random.default_rng(0).integers(0, 256, (9, 7, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format_)
    return buffer.getvalue()


SIDE = 256  # as `data check` resizes

PICTURES = {kind: _encoded(kind) for kind in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM")}


@cases(0.12)
@given(data=st.data())
def test_a_damaged_image_is_named_or_decoded(
    data: st.DataObject, pictures: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    kind = data.draw(st.sampled_from(list(PICTURES)))
    path = pictures / "class_00" / "0.png"
    path.write_bytes(data.draw(damaged_bytes(PICTURES[kind])))
    listing = folder.list_images(pictures)
    with unchanged(pictures):
        registry.forget_listings()
        broken = [name for name, _ in check(f"folder:{pictures}").broken]
        assert broken in ([], ["class_00/0.png"])
        cache = tmp_path_factory.getbasetemp() / "fuzz_images"
        store = open_store(listing, range(4), SIDE, cache, allow_broken=True, decoded=False)
        assert list(store.indices) == ([1, 2, 3] if broken else [0, 1, 2, 3])
        for index in store.indices:
            assert min(store.image(index).shape[:2]) == SIDE
