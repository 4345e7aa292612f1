"""The cache of decoded images: built once, whole or not at all, refused where it cannot be."""

from __future__ import annotations

import errno
import multiprocessing
import shutil
from collections import namedtuple
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from harness.data import image_cache as store_module
from harness.data.image_cache import ImageStore, open_store
from harness.datasets import folder
from harness.datasets.dataset import Listing
from harness.errors import HarnessError


def test_the_cache_is_built_once(uneven_listing: Listing, tmp_path: Path) -> None:
    first = open_store(uneven_listing, range(8), 32, tmp_path / "cache")
    unreadable = replace(uneven_listing, read=lambda index: pytest.fail("built again"))
    again = open_store(unreadable, range(8), 32, tmp_path / "cache")
    assert again.fingerprint == first.fingerprint
    assert np.array_equal(again.image(5), first.image(5))


def test_an_interrupted_build_leaves_nothing_behind(
    uneven_listing: Listing, tmp_path: Path
) -> None:
    def stop(done: int, total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        open_store(uneven_listing, range(8), 32, tmp_path / "cache", on_progress=stop)
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".lock"]
    assert open_store(uneven_listing, range(8), 32, tmp_path / "cache").image(7).shape == (
        32,
        32,
        3,
    )


def test_the_fingerprint_changes_with_a_byte_of_an_image(
    uneven_listing: Listing, tmp_path: Path
) -> None:
    before = open_store(uneven_listing, range(8), 32, tmp_path / "cache").fingerprint
    path = tmp_path / "images" / uneven_listing.names[3]
    pixels = np.asarray(Image.open(path)).copy()
    pixels[0, 0, 0] ^= 1
    Image.fromarray(pixels).save(path)
    changed = folder.list_images(tmp_path / "images")
    assert open_store(changed, range(8), 32, tmp_path / "cache").fingerprint != before


@pytest.fixture
def broken_listing(uneven_listing: Listing, tmp_path: Path) -> Listing:
    for name in uneven_listing.names[2:5:2]:
        (tmp_path / "images" / name).write_bytes(b"not an image")
    return folder.list_images(tmp_path / "images")


def test_images_that_cannot_be_decoded_are_all_named(
    broken_listing: Listing, tmp_path: Path
) -> None:
    with pytest.raises(HarnessError, match="2 images cannot be decoded") as caught:
        open_store(broken_listing, range(8), 32, tmp_path / "cache")
    for i in (2, 4):
        assert broken_listing.names[i] in str(caught.value)
    assert "--allow-missing" in str(caught.value)


def test_broken_images_are_left_out_when_that_is_allowed(
    broken_listing: Listing, uneven_listing: Listing, tmp_path: Path
) -> None:
    store = open_store(broken_listing, range(8), 32, tmp_path / "cache", allow_broken=True)
    assert list(store.indices) == [0, 1, 3, 5, 6, 7]
    whole = np.asarray(Image.open(tmp_path / "images" / broken_listing.names[6]))
    assert np.array_equal(store.image(6), whole)  # 32 x 32: not resized
    with pytest.raises(HarnessError, match="cannot be decoded"):  # the cache that is there now
        open_store(broken_listing, range(8), 32, tmp_path / "cache")


def test_without_the_cache_pixels_and_fingerprint_are_the_same(
    uneven_listing: Listing, tmp_path: Path
) -> None:
    cached = open_store(uneven_listing, range(8), 32, tmp_path / "on")
    direct = open_store(uneven_listing, range(8), 32, tmp_path / "off", decoded=False)
    assert direct.fingerprint == cached.fingerprint and direct.channels == 3
    assert all(np.array_equal(direct.image(i), cached.image(i)) for i in range(8))
    kept = sum(path.stat().st_size for path in (tmp_path / "off").rglob("*"))
    assert kept < 20_000 < sum(path.stat().st_size for path in (tmp_path / "on").rglob("*.u8"))


def test_broken_images_are_the_same_without_the_cache(
    broken_listing: Listing, tmp_path: Path
) -> None:
    def open_it(decoded: bool, allow_broken: bool) -> ImageStore:
        cache = tmp_path / str(decoded)
        return open_store(
            broken_listing, range(8), 32, cache, allow_broken=allow_broken, decoded=decoded
        )

    with pytest.raises(HarnessError, match="2 images cannot be decoded"):
        open_it(decoded=False, allow_broken=False)
    direct, cached = (open_it(decoded, allow_broken=True) for decoded in (False, True))
    assert list(direct.indices) == list(cached.indices) == [0, 1, 3, 5, 6, 7]
    assert direct.fingerprint == cached.fingerprint


def test_an_image_that_breaks_later_is_named_without_the_cache(
    uneven_listing: Listing, tmp_path: Path
) -> None:
    store = open_store(uneven_listing, range(8), 32, tmp_path / "cache", decoded=False)
    (tmp_path / "images" / uneven_listing.names[4]).write_bytes(b"not an image")
    with pytest.raises(HarnessError, match=f"image '{uneven_listing.names[4]}' changed"):
        store.image(4)


def test_a_part_without_any_readable_image_opens_empty(
    uneven_listing: Listing, tmp_path: Path
) -> None:
    for name in uneven_listing.names:
        (tmp_path / "images" / name).write_bytes(b"not an image")
    listing = folder.list_images(tmp_path / "images")
    store = open_store(listing, range(8), 32, tmp_path / "cache", allow_broken=True)
    assert list(store.indices) == []


def test_a_cache_that_would_fill_the_disk_is_refused(
    uneven_listing: Listing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**10, 0, 2**30 + 10_000))
    with pytest.raises(HarnessError, match="no room for the cache") as caught:
        open_store(uneven_listing, range(8), 32, tmp_path / "cache")
    assert "--cache-dir" in str(caught.value) and "--cache off" in str(caught.value)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**10, 0, 2**30 + 10**6))
    assert open_store(uneven_listing, range(8), 32, tmp_path / "cache").image(0).shape[0] == 32


def test_a_disk_that_becomes_full_is_said_plainly_and_leaves_nothing(
    uneven_listing: Listing, tmp_path: Path
) -> None:
    def full(done: int, total: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(HarnessError, match="the disk became full"):
        open_store(uneven_listing, range(8), 32, tmp_path / "cache", on_progress=full)
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".lock"]


def test_a_cache_folder_that_cannot_be_written_is_said_plainly(
    uneven_listing: Listing, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HarnessError, match="cannot write the cache"):
        open_store(uneven_listing, range(8), 32, tmp_path / "file" / "cache")


def test_the_rest_of_a_killed_build_is_cleared_away(
    uneven_listing: Listing, tmp_path: Path
) -> None:
    key = store_module.store_key(uneven_listing, range(8), {"resize": 32})
    left = tmp_path / "cache" / f".{key}.killed"
    left.mkdir(parents=True)
    (left / "pixels.u8").write_bytes(b"half")
    open_store(uneven_listing, range(8), 32, tmp_path / "cache")
    assert not left.exists()


def open_in_process(root: Path, cache: Path, counts: Any) -> None:
    listing = folder.list_images(root)
    seen: list[int] = []
    open_store(listing, range(8), 32, cache, on_progress=lambda done, total: seen.append(done))
    counts.put(len(seen))


def test_two_processes_build_the_cache_once(uneven_listing: Listing, tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    counts = context.Queue()
    arguments = (tmp_path / "images", tmp_path / "cache", counts)
    processes = [context.Process(target=open_in_process, args=arguments) for _ in range(3)]
    for process in processes:
        process.start()
    assert sorted(counts.get(timeout=300) for _ in processes) == [0, 0, 8]
