"""Copies of the cache on a local disk: checked, used again, and read instead of the original."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import FOLDER

from harness.config import RunConfig
from harness.data.image_cache import CachedImages, open_store
from harness.data.sources import open_part
from harness.datasets.dataset import Listing
from harness.errors import EnvironmentFault, HarnessError
from harness.experiment import build_experiment
from harness.training.trial import train


def open_staged(listing: Listing, root: Path) -> CachedImages:
    store = open_store(listing, range(8), 32, root / "cache", stage=root / "local")
    assert isinstance(store, CachedImages)
    return store


def test_images_are_read_from_the_copy_and_the_original_is_needed_once(
    uneven_listing: Listing, tmp_path: Path
) -> None:
    expected = open_store(uneven_listing, range(8), 32, tmp_path / "cache")
    first = open_staged(uneven_listing, tmp_path)
    assert first.file is not None and first.file.path.is_relative_to(tmp_path / "local")
    shutil.rmtree(tmp_path / "cache")
    unreadable = replace(uneven_listing, read=lambda index: pytest.fail("decoded again"))
    again = open_staged(unreadable, tmp_path)
    assert again.fingerprint == expected.fingerprint
    assert all(np.array_equal(again.image(i), expected.image(i)) for i in range(8))
    again.check_stored()


def test_a_copy_that_was_damaged_is_found_and_made_again(
    uneven_listing: Listing, tmp_path: Path
) -> None:
    store = open_staged(uneven_listing, tmp_path)
    expected = store.image(3).copy()
    with open(next((tmp_path / "local").glob("*/pixels.u8")), "r+b") as file:
        file.write(b"\xff" * 40000)
        file.truncate(len(store.pixels))
    with pytest.raises(EnvironmentFault, match="is damaged between bytes"):
        store.check_stored()
    assert np.array_equal(open_staged(uneven_listing, tmp_path).image(3), expected)


def test_a_damaged_original_is_never_copied(uneven_listing: Listing, tmp_path: Path) -> None:
    """Its size is right, so that only the checksums of its blocks tell."""
    open_store(uneven_listing, range(8), 32, tmp_path / "cache")
    (pixels,) = (tmp_path / "cache").glob("*/pixels.u8")
    content = bytearray(pixels.read_bytes())
    content[100] ^= 1
    pixels.write_bytes(content)
    with pytest.raises(EnvironmentFault, match=f"{pixels} is damaged"):
        open_staged(uneven_listing, tmp_path)
    assert not list((tmp_path / "local").glob("*/pixels.u8"))
    open_staged(uneven_listing, tmp_path).check_stored()  # the original was built again


def test_a_local_disk_that_cannot_be_written_to_is_a_message(
    uneven_listing: Listing, tmp_path: Path
) -> None:
    (tmp_path / "local").write_text("a file")
    with pytest.raises(HarnessError, match="--stage-to"):
        open_staged(uneven_listing, tmp_path)


@pytest.mark.parametrize("protocol", [FOLDER, FOLDER.replace("mlrc", "frozen")])
def test_a_fold_scores_the_same_from_staged_images_and_features(
    folder_config: RunConfig, tmp_path: Path, protocol: str
) -> None:
    config = folder_config.updated({"protocol": protocol})
    local = config.updated({"stage_to": str(tmp_path / "local"), "runs_dir": str(tmp_path / "r2")})
    (plain,), (staged,) = (train(one, count=1)[1] for one in (config, local))
    assert staged.history == plain.history
    source = open_part(build_experiment(local), "trainval")
    assert list((tmp_path / "local").glob("*/*/checksums.json"))
    assert source.fingerprint == open_part(build_experiment(config), "trainval").fingerprint
