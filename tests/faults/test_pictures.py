"""Pictures are bounded in memory, decoded or resized, and only of formats that we mean."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from harness.cli import main
from harness.config import RunConfig
from harness.data.check import check
from harness.data.image_cache import open_store, resized
from harness.data.sources import open_part
from harness.datasets import folder
from harness.datasets.dataset import FORMATS, decode_rgb, is_image_name
from harness.errors import HarnessError
from harness.experiment import build_experiment


def png_header(width: int, height: int) -> bytes:
    """A file that promises a picture of any size, in a few bytes."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        checksum = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + checksum

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = zlib.compress(b"\0" * 100)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize(("width", "height"), [(20_000, 10_000), (60_000, 60_000), (2**31 - 1, 1)])
def test_a_picture_that_is_too_large_is_refused_before_it_is_decoded(
    width: int, height: int
) -> None:
    with pytest.raises(ValueError, match="more than 134,217,728"):
        decode_rgb(png_header(width, height))


@pytest.fixture
def thin(image_folder: Path) -> Path:
    """60,000 x 1 px: a few kilobytes, 12 GB with a short side of 256."""
    Image.fromarray(np.zeros((1, 60_000, 3), np.uint8)).save(image_folder / "class_00" / "thin.png")
    assert np.prod(resized(60_000, 1, 256)) * 3 > 10e9
    return image_folder


def test_a_thin_picture_is_named_and_not_resized(thin: Path, tmp_path: Path) -> None:
    listing = folder.list_images(thin)
    said = r"class_00/thin.png: resized from 60,000 x 1 to a short side of 256, it has 15,360,000 x"
    with pytest.raises(HarnessError, match=said):
        open_store(listing, range(len(listing.names)), 256, tmp_path / "cache")
    store = open_store(
        listing, range(len(listing.names)), 256, tmp_path / "cache", allow_broken=True
    )
    assert len(store.indices) == 80


def test_it_is_named_without_a_cache_too(thin: Path, folder_config: RunConfig) -> None:
    config = folder_config.updated({"cache": "off", "protocol": "mlrc+max_steps=4"})
    with pytest.raises(HarnessError, match=r"class_00/thin\.png: resized from 60,000 x 1"):
        open_part(build_experiment(config), "trainval")


def test_data_check_finds_it(thin: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = check(f"folder:{thin}")
    assert [name for name, _ in report.broken] == ["class_00/thin.png"]
    assert main(["data", "check", f"folder:{thin}"]) == 2
    assert "broken: class_00/thin.png: resized from 60,000 x 1" in capsys.readouterr().err


def encoded(kind: str) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((8, 9, 3), 128, np.uint8)).save(file, kind)
    return file.getvalue()


@pytest.mark.parametrize("kind", FORMATS)
def test_the_formats_that_we_mean_are_opened(kind: str) -> None:
    Image.init()
    if kind not in Image.SAVE:
        assert kind == "AVIF", "left out of some builds of Pillow"
        return
    assert decode_rgb(encoded(kind)).size == (9, 8)


@pytest.mark.parametrize("kind", ["EPS", "PDF", "ICO", "TGA", "SGI", "PCX", "DDS"])
def test_other_formats_are_not_opened_whatever_their_name(kind: str, image_folder: Path) -> None:
    with pytest.raises(ValueError, match="no image of a known format"):
        decode_rgb(encoded(kind))
    (image_folder / "class_00" / f"9.{kind.lower()}").write_bytes(encoded(kind))
    assert len(folder.list_images(image_folder).names) == 80


@pytest.mark.parametrize(
    ("name", "is_image"),
    [
        *(("a.jpg", True), ("A.JPEG", True), ("b.PNG", True), ("c.webp", True), ("d.tif", True)),
        *(("a.eps", False), ("a.pdf", False), ("a.txt", False), ("jpg", False), ("", False)),
    ],
)
def test_images_are_known_by_the_names_of_their_formats(name: str, is_image: bool) -> None:
    assert is_image_name(name) == is_image
