"""The recipes of CONTRIBUTING.md are whole files that keep their contracts."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml
from conftest import FOLDER
from documents import ROOT, blocks, recipes
from PIL import Image

from harness import registry
from harness.sweeping import paper_figures
from harness.sweeping.figure_sweep import build_sweep
from harness.testing import check_dataset, check_method, check_protocol, check_trunk

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
        *("losses", "harness/datasets", "protocols", "harness/trunks")
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


def test_the_trunk_keeps_its_contract(extract: Extract) -> None:
    check_trunk(extract("harness/trunks/squeezenet.py"))


@pytest.mark.parametrize("path", recipes())
def test_a_recipe_imports_nothing_that_its_folder_may_not(path: str) -> None:
    folder = Path(path).parent.as_posix().replace("/", ".")
    allowed = folder if folder.startswith("harness.") else f"harness.{folder}"
    for line in recipes()[path].splitlines():
        if line.startswith(("from harness", "import harness")):
            assert line.startswith(f"from {allowed}")


@pytest.fixture
def with_config_key(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs commands of a package of links to ours whose RunConfig has the field of the recipe."""
    package = tmp_path / "harness"
    package.mkdir()
    for path in (ROOT / "harness").iterdir():
        if path.name not in ("config.py", "__pycache__"):
            (package / path.name).symlink_to(path)
    (field,) = [one for one in blocks(ROOT / "CONTRIBUTING.md", "python") if "= key(" in one]
    before, method, after = (
        (ROOT / "harness" / "config.py").read_text().partition("\n    def __post_init__")
    )
    (package / "config.py").write_text(before + textwrap.indent(field, "    ") + method + after)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "COLUMNS": "120"}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "harness", *words]
        return subprocess.run(
            command, capture_output=True, text=True, cwd=tmp_path, env=environment
        )

    return run


@pytest.mark.slow
def test_the_config_key_has_a_flag_with_help_and_is_checked_and_saved(
    with_config_key: Callable[..., subprocess.CompletedProcess[str]],
    tmp_path: Path,
    image_folder: Path,
) -> None:
    panel = with_config_key("train", "--help").stdout.partition("Where to run")[2]
    (line,) = [line for line in panel.splitlines() if "--nice" in line]
    assert "Scheduling priority of the processes: 0 (normal) to 19 (lowest)." in line
    assert "--nice" not in with_config_key("leaderboard", "--help").stdout

    for given in (["--nice", "20"], ["--set", "nice=20"]):
        refused = with_config_key("train", "--loss", "triplet", *given)
        assert refused.returncode == 2
        assert "'nice' takes a whole number <= 19, got 20" in refused.stderr

    what = ["--loss", "triplet", "--dataset", f"folder:{image_folder}", "--protocol", FOLDER]
    where = ["--trunk", "convnet", "--device", "cpu", "--folds", "1", "--nice", "7"]
    done = with_config_key("train", *what, *where)
    assert done.returncode == 0, done.stderr
    (saved,) = (tmp_path / "runs").rglob("config.yaml")
    assert yaml.safe_load(saved.read_text())["nice"] == 7
