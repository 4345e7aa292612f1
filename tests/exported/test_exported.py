"""A model that was taken away gives the same embeddings elsewhere, or a message says why not."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pandas as pd
import pytest
import safetensors.torch
import torch
from conftest import FOLDER, folders_of, run_pictures
from PIL import Image

import harness
from harness import registry
from harness.cli import main
from harness.exported.images import find_images, list_paths, open_listing

FROZEN = "frozen+batch_size=8+crop=12+embedding_size=8+max_steps=4+resize=16+validate_every=2"
METHODS = ("proxyanchor", "drml-pa")

pytestmark = pytest.mark.slow  # for the models, which two searches make


def exported(root: Path, method: str, protocol: str, *more: str) -> Path:
    """An export, made by command line, and the embeddings of `harness embed METHOD` beside it."""
    data = ["--dataset", f"folder:{root / 'pictures'}", "--cache-dir", str(root / "cache")]
    where = [*data, "--protocol", protocol, "--trunk", "convnet", *folders_of(root)]
    assert main(["embed", method, *where, "--output", str(root / f"{method}.npz")]) == 0
    assert main(["export", method, *where, "--output", str(root / method), *more]) == 0
    return root / method


@pytest.fixture(scope="module")
def taken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the exports, the embeddings and the images, and nothing else of the runs."""
    root = tmp_path_factory.mktemp("taken")
    run_pictures(root, ["proxyanchor", "drml"], FOLDER)
    for method in METHODS:
        exported(root, method, FOLDER, "--format", "onnx", "--format", "torch")
    frozen = tmp_path_factory.mktemp("frozen")
    run_pictures(frozen, ["proxyanchor"], FROZEN)
    shutil.copytree(exported(frozen, "proxyanchor", FROZEN), root / "frozen")
    shutil.copy(frozen / "proxyanchor.npz", root / "frozen.npz")
    for gone in ("runs", "results", "cache"):
        shutil.rmtree(root / gone)
    (root / "pictures").rename(root / "photos")
    return root


@pytest.mark.parametrize("name", [*METHODS, "frozen"])
def test_a_model_gives_the_embeddings_of_the_run_without_the_run(taken: Path, name: str) -> None:
    with np.load(taken / f"{name}.npz") as file:
        paths = [taken / "photos" / name for name in file["files"]]
        wanted = file["concatenated"]
    model = harness.load(taken / name)
    assert model.size == wanted.shape[1]
    found = model.embed(paths, batch_size=7)
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)


def test_a_frozen_trunk_is_stored_once(taken: Path) -> None:
    files = {path.name for path in (taken / "frozen").glob("*.safetensors")}
    assert files == {"trunk.safetensors", *(f"model-{i}.safetensors" for i in range(1, 5))}
    head = safetensors.torch.load_file(taken / "frozen" / "model-1.safetensors")
    assert set(head) == {"head.weight", "head.bias"}


def images_of(model: Any, folder: Path, count: int) -> torch.Tensor:
    listing = list_paths(find_images(folder)[:count], model.description.preprocessing.mode)
    return open_listing(listing, model.description.preprocessing).for_evaluation(range(count))


@pytest.mark.parametrize("name", METHODS)
def test_onnx_and_torch_export_take_any_number_of_images(taken: Path, name: str) -> None:
    model = harness.load(taken / name)
    session = onnxruntime.InferenceSession(taken / name / "model.onnx")
    program = torch.export.load(taken / name / "model.pt2").module()
    for count in (1, 5):
        images = images_of(model, taken / "photos", count)
        with torch.no_grad():
            wanted = model(images).numpy()
        (found,) = session.run(["embeddings"], {"images": images.numpy()})
        np.testing.assert_allclose(found, wanted, atol=1e-5)
        np.testing.assert_allclose(program(images).detach().numpy(), wanted, atol=1e-5)


def test_the_description_says_what_others_need(taken: Path) -> None:
    said = json.loads((taken / "proxyanchor" / "model.json").read_text())
    assert said["trunk"] == "convnet" and said["head"] == {"method": "", "params": {}, "bias": True}
    assert said["preprocessing"]["resize"] == 16 and said["preprocessing"]["crop"] == 12
    assert said["record"]["kind"] == "reproduction" and len(said["models"]) == 4
    readme = (taken / "proxyanchor" / "README.md").read_text()
    assert "MAP@R" in readme and said["licence"][0] in readme


def test_embeddings_are_written_for_numpy_and_pandas(taken: Path, tmp_path: Path) -> None:
    what = ["--model", str(taken / "proxyanchor"), "--images", str(taken / "photos")]
    for name in ("photos.npz", "photos.parquet"):
        assert main(["embed", *what, "--output", str(tmp_path / name)]) == 0
    wanted = harness.load(taken / "proxyanchor").embed(taken / "photos")
    frame = pd.read_parquet(tmp_path / "photos.parquet")
    with np.load(tmp_path / "photos.npz") as file:
        np.testing.assert_allclose(file["embeddings"], wanted, atol=1e-6)
        np.testing.assert_allclose(np.stack(frame["embedding"]), file["embeddings"])
        assert list(frame["file"]) == list(file["files"])
        assert list(frame["class_name"]) == list(file["class_names"][file["labels"]])
        assert file["files"][0] == "class_00/0.png" and file["class_names"][0] == "class_00"


def test_a_query_finds_its_copy(taken: Path, tmp_path: Path) -> None:
    copy = tmp_path / "asked.png"
    shutil.copy(taken / "photos" / "class_03" / "1.png", copy)
    what = ["--model", str(taken / "proxyanchor"), "--gallery", str(taken / "photos")]
    page = tmp_path / "page.html"
    inside = taken / "photos" / "class_05" / "2.png"
    assert main(["query", *what, str(copy), str(inside), "--output", str(page)]) == 0
    first, second = page.read_text().split("<section>")[1:]
    assert first.index("class_03/1.png") < first.index("</li>") and "<b>0.000</b>" in first
    assert "class_05/2.png" not in second.partition("<ol")[2]  # it is not its own neighbour
    assert first.count("<li>") == 8 and first.count("data:image/") == 9
    assert "://" not in page.read_text()


def test_it_stands_in_for_an_inference_model(taken: Path) -> None:
    model = harness.load(taken / "proxyanchor")
    paths = find_images(taken / "photos")[:12]
    finder = model.inference_model()
    finder.train_knn(paths)
    images = images_of(model, taken / "photos", 12)
    for query in (paths[4:6], images[4:6]):
        distances, indices = finder.get_nearest_neighbors(query, k=3)
        assert indices[:, 0].tolist() == [4, 5]
        np.testing.assert_allclose(distances[:, 0], 0, atol=1e-5)
    embedded = finder.get_embeddings(images).numpy()
    np.testing.assert_allclose(embedded, model.embed(paths), atol=1e-5)
    assert finder.is_match([paths[0]], [paths[0]]) is True


def test_loading_runs_no_code(taken: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "model"
    shutil.copytree(taken / "proxyanchor", folder)
    for name in ("model.py", "proxyanchor.py", "model.pt", "model.pkl"):
        (folder / name).write_text("raise SystemExit('it ran')")

    def refuse(*given: Any, **more: Any) -> None:
        raise AssertionError("code of the folder could run")

    for owner, name in ((torch, "load"), (pickle, "load"), (pickle, "loads")):
        monkeypatch.setattr(owner, name, refuse)
    monkeypatch.setattr(registry, "import_file", refuse)
    monkeypatch.chdir(folder)
    assert harness.load(".").size == 512


Change = Callable[[Path], Any]


def rewrite(**values: Any) -> Change:
    def change(folder: Path) -> None:
        path = folder / "model.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))

    return change


def put_weights(changed: Callable[[dict[str, torch.Tensor]], Any]) -> Change:
    """Other weights, with the SHA-256 that goes with them."""

    def change(folder: Path) -> None:
        file = folder / "model-1.safetensors"
        state = safetensors.torch.load_file(file)
        changed(state)
        content = safetensors.torch.save(state)
        file.write_bytes(content)
        digests = json.loads((folder / "model.json").read_text())["sha256"]
        rewrite(sha256={**digests, file.name: hashlib.sha256(content).hexdigest()})(folder)

    return change


def link_out(folder: Path) -> None:
    target = folder.parent / "private"
    (folder / "model-1.safetensors").rename(target)
    os.symlink(target, folder / "model-1.safetensors")


BAD = {
    "no export": (lambda folder: (folder / "model.json").unlink(), "is not an exported model"),
    "no JSON": (lambda folder: (folder / "model.json").write_text("["), "not an exported model"),
    "a field too many": (rewrite(code="x"), "no field named 'code'"),
    "a later format": (rewrite(format=2), "format 2"),
    "a huge size": (rewrite(embedding_size=10**9), "embedding_size"),
    "another size": (rewrite(embedding_size=64), "does not fit"),
    "a loss file": (rewrite(head={"method": "evil.py"}), "no loss named 'evil.py'"),
    "a method without a head": (rewrite(head={"method": "ms"}), "has no head"),
    "an unknown trunk": (rewrite(trunk="nonesuch"), "no trunk named 'nonesuch'"),
    "a path": (rewrite(models=["../x"], sha256={"../x": "0"}), "leads out"),
    "weights gone": (lambda folder: (folder / "model-2.safetensors").unlink(), "cannot read"),
    "damaged": (lambda folder: (folder / "model-1.safetensors").write_bytes(b"x"), "is damaged"),
    "a link": (link_out, "link that leads out"),
    "not finite": (put_weights(lambda s: s["head.bias"].fill_(torch.nan)), "not finite"),
    "one missing": (put_weights(lambda s: s.pop("head.bias")), "head.bias is missing"),
    "one too many": (put_weights(lambda s: s.update(x=torch.ones(1))), "x is unknown"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_folder_that_cannot_be_loaded_is_refused(
    taken: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    change, reason = BAD[case]
    folder = tmp_path / "model"
    shutil.copytree(taken / "proxyanchor", folder)
    change(folder)
    what = ["--model", str(folder), "--images", str(taken / "photos")]
    assert main(["embed", *what, "--output", str(tmp_path / "x.npz")]) == 2
    said = capsys.readouterr().err
    assert reason in said and "Traceback" not in said


def put_unreadable(folder: Path) -> None:
    (folder / "broken.png").write_bytes(b"no image")


def put_empty(folder: Path) -> None:
    (folder / "notes.txt").write_text("no image")


@pytest.mark.parametrize(
    ("put", "reason"),
    [(put_unreadable, "broken.png': no image of a known format"), (put_empty, "no images in")],
)
def test_images_that_cannot_be_read_are_named(
    taken: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], put: Change, reason: str
) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    put(photos)
    model = ["--model", str(taken / "proxyanchor")]
    output = ["--output", str(tmp_path / "x.npz")]
    assert main(["embed", *model, "--images", str(photos), *output]) == 2
    assert reason in capsys.readouterr().err
    image = str(taken / "photos" / "class_00" / "0.png")
    page = ["--output", str(tmp_path / "x.html")]
    assert main(["query", *model, "--gallery", str(photos), image, *page]) == 2
    assert reason in capsys.readouterr().err
    assert not (tmp_path / "x.npz").exists() and not (tmp_path / "x.html").exists()


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ([], "give METHOD or --model DIR"),
        (["ms", "--model", "DIR"], "give METHOD or --model DIR"),
        (["--model", "DIR"], "--model needs --images"),
        (["ms", "--images", "DIR"], "go with --model"),
        (["--model", "DIR", "--images", "DIR", "--dataset", "cub"], "--dataset goes with METHOD"),
        (["--model", "DIR", "--images", "DIR", "-o", "x.csv"], ".npz or .parquet"),
    ],
)
def test_a_model_or_a_method_never_both(
    flags: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["embed", "-o", "x.npz", *flags]) == 2
    assert reason in capsys.readouterr().err


def test_an_image_is_resized_and_cropped_as_in_training(taken: Path, tmp_path: Path) -> None:
    """Compared with Pillow's own resize and torchvision's centre crop."""
    from torchvision.transforms.v2.functional import center_crop

    pixels = np.random.default_rng(0).integers(0, 256, (40, 61, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    model = harness.load(taken / "proxyanchor")
    small = Image.fromarray(pixels).resize((24, 16), Image.Resampling.BILINEAR)
    wanted = np.asarray(center_crop(small, [12, 12]))
    (found,) = images_of(model, tmp_path, 1)
    assert np.array_equal(found.permute(1, 2, 0).numpy(), wanted)
