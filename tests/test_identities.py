"""Identities never change: what an earlier version named, seeded and began is gone on with."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import FOLDER
from dataset_files import publish, write_inaturalist, write_inshop

from harness.cli import main
from harness.config import RunConfig
from harness.data.features import Features
from harness.experiment import Experiment, build_experiment
from harness.protocols.splits import split_classes
from harness.training.unit import Unit

HERE = Path(__file__).parent
MakeExperiment = Callable[..., Experiment]
GOLDEN = json.loads((HERE / "identities.json").read_text())


def unit_on(experiment: Experiment, fingerprint: str, params: dict[str, Any]) -> Unit:
    """A unit whose trainval images are known by their fingerprint alone."""
    images = Features(fingerprint, {}, np.empty((0, 1)))
    return Unit(experiment, images, params, fold=1, repetition=2)


@pytest.mark.parametrize("golden", GOLDEN["units"], ids=lambda u: f"{u['loss']} {u['protocol']}")
def test_a_run_has_the_folder_and_the_seeds_that_it_always_had(golden: dict[str, Any]) -> None:
    experiment = build_experiment(RunConfig(loss=golden["loss"], protocol=golden["protocol"]))
    unit = unit_on(experiment, GOLDEN["fingerprint"], golden["params"])
    assert unit.folder.as_posix() == golden["folder"]
    assert {stream: unit.seed(stream) for stream in GOLDEN["seeds"]} == GOLDEN["seeds"]


# A search of an earlier version, stopped in its second trial after two of four folds.
PREVIOUS = HERE / "searching" / "previous"
FOLDS_OF_THE_SECOND_TRIAL = [
    *("865b35bf28046c09", "e2647ec6847ed7b7", "59d02d8268d1f9b4", "070391256494ce97"),
]


def write_plain_images(root: Path) -> None:
    """In a format without compression: the same bytes whatever writes them."""
    for label in range(16):
        folder = root / f"class_{label:02d}"
        folder.mkdir(parents=True)
        for number in range(4):
            values = (37 * label + 11 * number + (5 + label) * i for i in range(3 * 16 * 16))
            pixels = bytes(value % 256 for value in values)
            (folder / f"{number}.ppm").write_bytes(b"P6 16 16 255\n" + pixels)


@pytest.fixture
def previous(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of that search, in the folder that it was started in."""
    monkeypatch.chdir(tmp_path)
    write_plain_images(tmp_path / "pictures")
    place = tmp_path / "runs" / FOLDER / "folder_pictures-convnet" / "triplet"
    return Path(shutil.copytree(PREVIOUS, place))


def test_a_search_of_an_earlier_version_goes_on(
    previous: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = {path: path.read_bytes() for path in previous.glob("folds/*/record.json")}
    assert len(written) == 2
    assert main(["search", "--config", str(previous / "config.yaml")]) == 0
    assert "triplet: 2 trials, 0 failed" in capsys.readouterr().out
    folds = {path.parent.name for path in previous.glob("folds/*/record.json")}
    assert folds == set(FOLDS_OF_THE_SECOND_TRIAL)
    assert {path: path.read_bytes() for path in written} == written  # not trained again


def test_a_search_of_an_earlier_version_is_evaluated(previous: Path) -> None:
    assert main(["eval", "--reproductions", "1", "--workers", "1", "--device", "cpu"]) == 0
    records = Path("results", FOLDER, "folder_pictures-convnet", "records", "triplet")
    assert [path.name for path in records.iterdir()] == ["297a31cea7509b05-01.json"]


# In-Shop's folds were balanced before the name of its protocol said so.

GIVEN = range(10)  # of twenty classes


@pytest.fixture
def inshop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_experiment: MakeExperiment
) -> Callable[[str], Experiment]:
    publish(monkeypatch, "inshop")
    images = [(item, view) for item in range(20) for view in ("query", "gallery")]
    rows = [
        (f"img/{item:02d}/{view}.jpg", f"id_{item:02d}", "train" if item in GIVEN else view)
        for item, view in images
    ]
    write_inshop(tmp_path / "inshop", rows)
    where = {"dataset": "inshop", "data_root": str(tmp_path / "inshop"), "trunk": "convnet"}
    return lambda protocol: make_experiment(loss="triplet", protocol=protocol, **where)


@pytest.fixture
def inaturalist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_experiment: MakeExperiment
) -> Callable[[str], Experiment]:
    publish(monkeypatch, "inaturalist")
    names = [f"train_val2018/Aves/{species:02d}/{i}.jpg" for species in range(20) for i in "ab"]
    write_inaturalist(tmp_path / "species", {"train": names[:20], "test": names[20:]})
    where = {"dataset": "inaturalist", "data_root": str(tmp_path / "species"), "trunk": "convnet"}
    return lambda protocol: make_experiment(loss="triplet", protocol=protocol, **where)


@pytest.mark.parametrize("dataset", ["inshop", "inaturalist"])
@pytest.mark.parametrize("protocol", ["mlrc", "frozen", "mlrc+batch_size=64"])
def test_the_name_says_that_folds_are_balanced_where_a_data_set_comes_split(
    request: pytest.FixtureRequest, dataset: str, protocol: str
) -> None:
    experiment = request.getfixturevalue(dataset)(protocol)
    assert set(experiment.protocol.name.split("+")) == {*protocol.split("+"), "folds=balanced"}
    assert experiment.split == split_classes(20, "balanced", GIVEN)


@pytest.mark.parametrize("dataset", ["inshop", "inaturalist"])
def test_the_protocol_of_ccp_keeps_its_own_folds_where_a_data_set_comes_split(
    request: pytest.FixtureRequest, dataset: str
) -> None:
    experiment = request.getfixturevalue(dataset)("mlrc-ccp")
    assert experiment.protocol.name == "mlrc-ccp"
    assert experiment.split == split_classes(20, "ccp", GIVEN)


def test_balanced_folds_that_were_asked_for_stay_in_the_name(
    inshop: Callable[[str], Experiment], config: RunConfig
) -> None:
    """Beside a search with the folds of CCP, which never had that name."""
    Path(config.runs_dir, "mlrc-ccp", "inshop-convnet").mkdir(parents=True)
    assert inshop("mlrc-ccp+folds=balanced").protocol.name == "mlrc-ccp+folds=balanced"
