"""Features that were computed elsewhere are a data set, or a message says what is wrong."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import folders_of

from harness import registry
from harness.cli import main
from harness.config import RunConfig
from harness.data.sources import open_part
from harness.errors import HarnessError
from harness.experiment import build_experiment

PROTOCOL = "frozen-pairs+batch_size=8+embedding_size=4+finalists=0+max_steps=4+validate_every=2"
CLASSES, PER_CLASS, WIDTH = 16, 5, 12


def made(**changed: Any) -> dict[str, np.ndarray]:
    """Features of 16 classes with centres of their own, in half precision."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(CLASSES), PER_CLASS)
    features = rng.normal(size=(CLASSES, WIDTH))[labels] + 0.5 * rng.normal(
        size=(len(labels), WIDTH)
    )
    return {"features": features.astype(np.float16), "labels": labels, **changed}


def save(path: Path, arrays: dict[str, Any]) -> Path:
    np.savez_compressed(path, **arrays)
    return path


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HARNESS_FEATURES", str(tmp_path / "imported"))
    return tmp_path / "imported"


def config(tmp_path: Path, **values: Any) -> RunConfig:
    where = {"cache_dir": str(tmp_path / "cache"), "device": "cpu", "protocol": PROTOCOL}
    return RunConfig(loss="proxyanchor", dataset="mine", **{**where, **values})


@pytest.mark.slow
def test_a_search_and_an_evaluation_on_imported_features(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = save(tmp_path / "dinov2.npz", made())
    asked = ["--name", "mine", "--computed-by", "dinov2_vits14"]
    assert main(["data", "import-features", str(file), *asked]) == 0
    assert "80 features of 12 dimensions, 16 classes" in capsys.readouterr().out
    file.unlink()
    what = ["--dataset", "mine", "--protocol", PROTOCOL, "--cache-dir", str(tmp_path / "cache")]
    how = ["--trials", "1", "--workers", "1"]
    runs, results = folders_of(tmp_path)[:2], folders_of(tmp_path)
    assert main(["search", "--loss", "proxyanchor", *what, *how, *runs]) == 0
    again = ["--reproductions", "1", "--workers", "1", "--cache-dir", str(tmp_path / "cache")]
    assert main(["eval", *again, *results]) == 0
    (table,) = (tmp_path / "results" / PROTOCOL).iterdir()
    assert table.name.startswith("mine-dinov2_vits14@")
    rows = (table / "leaderboard.csv").read_text()
    assert "proxyanchor" in rows and "pretrained" in rows and "pixels" not in rows
    where = [*what, *results]
    capsys.readouterr()
    assert main(["export", "proxyanchor", *where, "--output", str(tmp_path / "x")]) == 2
    assert "imported features" in capsys.readouterr().err
    assert main(["list", "datasets"]) == 0
    assert "  mine " in capsys.readouterr().out


def test_a_part_has_the_rows_of_its_classes_as_they_were_given(tmp_path: Path) -> None:
    arrays = made(labels=np.repeat([f"class {i:02d}" for i in range(CLASSES)], PER_CLASS))
    order = np.random.default_rng(1).permutation(CLASSES * PER_CLASS)
    shuffled = {name: values[order] for name, values in arrays.items()}
    file = save(tmp_path / "a.npz", shuffled)
    assert main(["data", "import-features", str(file), "--name", "mine"]) == 0
    experiment = build_experiment(config(tmp_path))
    for part, low, high in (("trainval", 0, 8), ("test", 8, 16)):
        source = open_part(experiment, part)
        rows = np.flatnonzero(
            np.isin(shuffled["labels"], [f"class {i:02d}" for i in range(low, high)])
        )
        assert list(source.indices) == rows.tolist()
        found = source.for_evaluation(rows.tolist()).numpy()
        assert np.array_equal(found, shuffled["features"][rows].astype(np.float32))


def test_other_features_have_another_fingerprint_and_table(tmp_path: Path) -> None:
    found = []
    for change in (0, 1e-2):
        arrays = made()
        arrays["features"][-1] += change  # of a test class
        file = save(tmp_path / "a.npz", arrays)
        assert main(["data", "import-features", str(file), "--name", "mine"]) == 0
        registry.forget_listings()
        experiment = build_experiment(config(tmp_path))
        parts = [open_part(experiment, part).fingerprint for part in ("trainval", "test")]
        found.append((experiment.trunk_label, *parts))
    assert found[0][1] == found[1][1]
    assert found[0][0] != found[1][0] and found[0][2] != found[1][2]


def test_what_embed_writes_of_a_folder_can_be_imported(tmp_path: Path) -> None:
    arrays = made()
    written = {
        "embeddings": arrays["features"].astype(np.float32),
        "labels": arrays["labels"],
        "class_names": np.array([f"bird {i}" for i in range(CLASSES)]),
        "files": np.array([f"{i}.png" for i in range(len(arrays["labels"]))]),
    }
    file = save(tmp_path / "a.npz", written)
    assert main(["data", "import-features", str(file), "--name", "mine"]) == 0
    listing = build_experiment(config(tmp_path)).listing
    assert listing.class_names[3] == "bird 3" and listing.names[7] == "7.png"


NAN = made()["features"].copy()
NAN[7, 3] = np.nan
HUGE = made()["features"].astype(np.float64)
HUGE[2, 2] = 1e300
BAD = {
    "NaN": (made(features=NAN), "first is row 7"),
    "too large": (made(features=HUGE), "first is row 2"),
    "one dimension": (made(features=np.ones(80)), "shape (n, width), got (80,)"),
    "no features": ({"labels": np.arange(3)}, "no array 'features', but labels"),
    "whole numbers": (made(features=np.ones((80, 2), int)), "floating-point"),
    "too few labels": (made(labels=np.arange(79)), "labels must have the shape (80,)"),
    "labels with fractions": (made(labels=np.ones(80)), "whole numbers or text"),
    "too few classes named": (made(class_names=np.array(["a"])), "class_names has 1 names"),
    "too few names": (made(names=np.array(["a"])), "names must be 80 texts"),
    "objects": (made(labels=np.array([None] * 80)), "cannot be imported"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_file_that_is_wrong_is_refused(
    tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    arrays, reason = BAD[case]
    file = save(tmp_path / "a.npz", arrays)
    assert main(["data", "import-features", str(file), "--name", "mine"]) == 2
    said = capsys.readouterr().err
    assert reason in said and "Traceback" not in said
    assert not home.exists()


@pytest.mark.parametrize(
    ("name", "reason"),
    [("cub", "already"), ("../up", "--name"), ("Mine", "--name"), ("mine", "cannot read")],
)
def test_names_and_files_that_cannot_be_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, reason: str
) -> None:
    file = tmp_path / "gone.npz" if name == "mine" else save(tmp_path / "a.npz", made())
    assert main(["data", "import-features", str(file), "--name", name]) == 2
    assert reason in capsys.readouterr().err


def damage(home: Path) -> None:
    path = home / "mine" / "features.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


Use = Callable[[Path], RunConfig]
USES: dict[str, tuple[Use, str]] = {
    "pixels": (lambda path: config(path, protocol="mlrc"), "only frozen protocols"),
    "a trunk": (lambda path: config(path, trunk="resnet18"), "leave out --trunk"),
    "weights": (lambda path: config(path, weights="none"), "leave out --weights"),
}


@pytest.mark.parametrize("case", USES)
def test_features_take_no_trunk_and_no_pixels(tmp_path: Path, case: str) -> None:
    file = save(tmp_path / "a.npz", made())
    assert main(["data", "import-features", str(file), "--name", "mine"]) == 0
    use, reason = USES[case]
    with pytest.raises(HarnessError, match=reason):
        build_experiment(use(tmp_path))


def test_damaged_features_are_not_used(tmp_path: Path, home: Path) -> None:
    file = save(tmp_path / "a.npz", made())
    assert main(["data", "import-features", str(file), "--name", "mine"]) == 0
    damage(home)
    with pytest.raises(HarnessError, match="import the features again"):
        open_part(build_experiment(config(tmp_path)), "trainval")
    (home / "mine" / "listing.json").write_text("{}")
    registry.forget_listings()
    with pytest.raises(HarnessError, match="is damaged"):
        build_experiment(config(tmp_path))
    shutil.rmtree(home)
    with pytest.raises(HarnessError, match="no dataset named 'mine'"):
        build_experiment(config(tmp_path))
