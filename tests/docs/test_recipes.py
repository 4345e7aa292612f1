"""The recipes of CONTRIBUTING.md are whole files that keep their contracts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from documents import ROOT, blocks, recipes
from PIL import Image

from harness import registry
from harness.sweeping import paper_figures
from harness.sweeping.figure_sweep import build_sweep
from harness.testing import check_dataset, check_method, check_protocol

Extract = Callable[[str], Path]


@pytest.fixture
def extract(tmp_path: Path) -> Extract:
    def written(path: str) -> Path:
        file = tmp_path / Path(path).name
        file.write_text(recipes()[path])
        return file

    return written


def write_aircraft(root: Path) -> None:
    """Three variants of two pictures, one with a blank in its name, in the real format."""
    lists = {
        "trainval": ["0000001 707-320", "0000003 Cessna 172", "0000005 A340-300"],
        "test": ["0000002 707-320", "0000004 Cessna 172", "0000006 A340-300"],
    }
    data = root / "fgvc-aircraft-2013b" / "data"
    (data / "images").mkdir(parents=True)
    (data / "variants.txt").write_text("707-320\nA340-300\nCessna 172\n")
    for part, lines in lists.items():
        (data / f"images_variant_{part}.txt").write_text("".join(f"{line}\n" for line in lines))
        for line in lines:
            picture = np.full((50, 40, 3), int(line.split()[0]), np.uint8)
            picture[30:] = 255  # the banner
            Image.fromarray(picture).save(data / "images" / f"{line.split()[0]}.jpg")


def test_there_is_a_recipe_for_each() -> None:
    assert [Path(path).parent.as_posix() for path in recipes()] == [
        *("losses", "harness/datasets", "protocols")
    ]


def test_the_figure_is_a_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (figure,) = [text for text in blocks(ROOT / "CONTRIBUTING.md", "yaml") if "read_off:" in text]
    (tmp_path / "proxygml-scale.yaml").write_text(figure)
    monkeypatch.setattr(paper_figures, "FOLDER", tmp_path)
    asked = build_sweep(paper_figures.find_figure("proxygml-scale"))
    assert len(asked.points()) == len(asked.published) == 3


def test_the_loss_keeps_its_contract(extract: Extract) -> None:
    check_method(extract("losses/smooth_proxy.py"))


def test_the_data_set_keeps_its_contract(extract: Extract, tmp_path: Path) -> None:
    write_aircraft(tmp_path / "data")
    check_dataset(extract("harness/datasets/aircraft.py"), tmp_path / "data")


def test_the_data_set_goes_by_its_list_and_cuts_the_banner(
    extract: Extract, tmp_path: Path
) -> None:
    write_aircraft(tmp_path)
    (dataset,) = registry.import_file(extract("harness/datasets/aircraft.py")).DATASETS
    listing = dataset.list_images(tmp_path)
    assert listing.class_names == ("707-320", "A340-300", "Cessna 172")
    assert listing.labels.tolist() == [0, 2, 1, 0, 2, 1]
    image = listing.decode(listing.read(0))
    assert image.size == (40, 30) and np.asarray(image).max() < 30


def test_the_protocol_keeps_its_contract(extract: Extract) -> None:
    check_protocol(extract("protocols/resnet.py"))


@pytest.mark.parametrize("path", recipes())
def test_a_recipe_imports_nothing_that_its_folder_may_not(path: str) -> None:
    own = {"losses": "harness.losses", "harness": "harness.datasets"}
    allowed = {**own, "protocols": "harness.protocols"}[Path(path).parts[0]]
    for line in recipes()[path].splitlines():
        if line.startswith(("from harness", "import harness")):
            assert line.startswith(f"from {allowed}")
