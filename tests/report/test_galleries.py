"""Pictures and embeddings of models whose weights were kept, from a small run of real commands."""

from __future__ import annotations

import base64
import io
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import folders_of, run_pictures, write_images
from PIL import Image
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

from harness.cli import main
from harness.evaluation.scoring import TestEmbeddings
from harness.records.layout import LEDGER, WEIGHTS
from harness.records.records import TestRecord
from harness.registry import load_dataset
from harness.report.galleries import Maker, PictureSettings, Thumbs, make_pictures
from harness.report.pictures import Pictures
from harness.report.table import Table, read_table

PROTOCOL = (
    "mlrc+batch_size=8+crop=16+crop_scale=none+embedding_size=8+max_steps=4+resize=20"
    "+validate_every=2"
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A search of two losses on a folder of pictures, and its evaluation."""
    return run_pictures(tmp_path_factory.mktemp("pictures"), ["contrastive", "hpl"], PROTOCOL)


@pytest.fixture(scope="module")
def table(finished: Path) -> Table:
    (folder,) = (finished / "results").glob("*/folder_pictures-convnet")
    found = read_table(folder)
    assert found is not None
    return found


def values(root: Path) -> dict[str, str]:
    folders = {"runs_dir": root / "runs", "results_dir": root / "results"}
    return {name: str(path) for name, path in folders.items()}


@pytest.fixture(scope="module")
def pictures(finished: Path, table: Table) -> Pictures:
    settings = PictureSettings(count=2, neighbours=3, queries=("class_12/3",), points=20)
    return make_pictures(table, values(finished), settings)


def openings(table: Table) -> int:
    return len((table.folder / LEDGER).read_text().splitlines())


def embed(root: Path, name: str, output: Path, *flags: str) -> int:
    dataset = ["--dataset", f"folder:{root / 'pictures'}", "--protocol", PROTOCOL]
    return main(["embed", name, *dataset, *folders_of(root), "--output", str(output), *flags])


def test_exported_embeddings_are_those_that_were_scored(
    finished: Path, table: Table, tmp_path: Path
) -> None:
    before = openings(table)
    assert embed(finished, "contrastive", tmp_path / "c.npz") == 0
    assert openings(table) == before + 1  # every look counts
    file = np.load(tmp_path / "c.npz")  # without pickles
    assert file["concatenated"].shape == (40, 32) and file["separated"].shape == (4, 40, 8)
    record = TestRecord.read(next(table.folder.glob("records/contrastive/*.json")))
    calculator = AccuracyCalculator(include=("mean_average_precision_at_r",), k="max_bin_count")
    for points, score in (
        (file["concatenated"], record.scores["concatenated"]["map_at_r"]),
        *zip(file["separated"], [s["map_at_r"] for s in record.separated], strict=True),
    ):
        found = calculator.get_accuracy(points, file["labels"])
        assert found["mean_average_precision_at_r"] == pytest.approx(score, abs=1e-6)
    names = [Path(name).parts[0] for name in file["files"]]
    assert names == file["class_names"][file["labels"]].tolist()


@pytest.mark.parametrize(
    ("name", "flags", "message"),
    [
        ("ms", [], "no method named 'ms'"),
        ("contrastive", ["--reproduction", "7"], "has no reproduction 7"),
        ("contrastive", ["--runs-dir", "nowhere"], "its models were not kept, or lie elsewhere"),
        ("untrained", [], "only the fold models of a trained method"),
    ],
)
def test_what_cannot_be_embedded_is_said_and_not_counted(
    finished: Path,
    table: Table,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    flags: list[str],
    message: str,
) -> None:
    before = openings(table)
    assert embed(finished, name, tmp_path / "c.npz", *flags) == 2
    assert message in capsys.readouterr().err
    assert openings(table) == before and not (tmp_path / "c.npz").exists()


def test_weights_that_are_gone_are_said_to_be(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = Path(shutil.copytree(finished, tmp_path / "copy"))
    for weights in (copy / "runs").glob(f"**/{WEIGHTS}"):
        weights.unlink()
    dataset = ["--dataset", f"folder:{finished / 'pictures'}", "--protocol", PROTOCOL]
    command = ["embed", "hpl", *dataset, *folders_of(copy), "--output", str(tmp_path / "c.npz")]
    assert main(command) == 2
    assert "the weights of 4 of 4 models are gone" in capsys.readouterr().err


def test_eval_says_how_to_make_the_page(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "--reproductions", "1", "--workers", "1", *folders_of(finished)]) == 0
    flags = f"--results-dir {finished / 'results'} --runs-dir {finished / 'runs'}"
    assert f"harness report {flags}" in capsys.readouterr().out


def test_queries_are_chosen_random_best_and_worst(pictures: Pictures) -> None:
    sorts = [query.chosen_as for query in pictures.queries]
    assert sorts == ["chosen", "random", "random", "best", "best", "worst", "worst"]
    assert pictures.queries[0].file.endswith("class_12/3.png")
    for query in pictures.queries:
        assert [answer.method for answer in query.answers] == list(pictures.maps)
        assert all(len(answer.right) == 3 for answer in query.answers)
    right = {
        sort: sum(sum(a.right) for q in pictures.queries if q.chosen_as == sort for a in q.answers)
        for sort in ("best", "worst")
    }
    assert right["best"] > right["worst"]


def test_neighbours_are_the_nearest_and_framed_as_they_are(
    finished: Path, table: Table, pictures: Pictures, tmp_path: Path
) -> None:
    assert embed(finished, "hpl", tmp_path / "h.npz") == 0
    file = np.load(tmp_path / "h.npz")
    points, files = file["concatenated"], file["files"].tolist()
    for query in pictures.queries:
        row = files.index(query.file)
        distances = np.linalg.norm(points - points[row], axis=1)
        distances[row] = np.inf
        nearest = np.argsort(distances, kind="stable")[:3]
        (answer,) = (a for a in query.answers if a.method == "hpl-pa")
        assert answer.right == (file["labels"][nearest] == file["labels"][row]).tolist()


def test_queries_search_the_gallery_alone_where_images_have_roles(tmp_path: Path) -> None:
    write_images(tmp_path, num_classes=2, per_class=4)
    listing = load_dataset("folder")[0].list_images(tmp_path)
    points = torch.tensor([[0.0], [0.1], [0.2], [0.9], [1.0], [1.1], [0.3], [2.0]])
    roles = np.array([True, True, False, False, True, True, False, False])
    test = TestEmbeddings({"concatenated": [points]}, listing.labels, roles, "f", 0, np.arange(8))
    settings = PictureSettings(count=1, neighbours=9, pixels=16)
    maker = Maker(listing, {"one": test}, Thumbs(listing, 16), settings)
    answer = maker.answer("one", 0)
    # Of the gallery 2, 3 (the class of the query), 6 and 7, the nearest first.
    assert [maker.thumbs.place(index) for index in (2, 6, 3, 7)] == answer.thumbs
    assert answer.right == [True, False, True, False]
    assert {query.file for query in maker.queries()} <= {listing.names[i] for i in (0, 1, 4, 5)}


def test_thumbnails_are_small_pictures_each_once(pictures: Pictures) -> None:
    assert len(set(pictures.thumbs)) == len(pictures.thumbs) <= 40
    for address in pictures.thumbs:
        kind, content = address.split(";base64,")
        assert kind in ("data:image/webp", "data:image/jpeg")
        assert max(Image.open(io.BytesIO(base64.b64decode(content))).size) <= 64


def test_a_map_has_every_class_alike(pictures: Pictures) -> None:
    classes = pictures.points["classes"]
    assert len(classes) == 20
    counts = np.bincount(classes)
    assert len(counts) == 8 and counts.max() - counts.min() <= 1
    for ways in pictures.maps.values():
        assert set(ways) == {"t-SNE", "PCA"}
        assert all(np.isfinite(ways[way]).all() and len(ways[way][0]) == 20 for way in ways)


def test_a_density_adds_up_to_one(pictures: Pictures) -> None:
    for found in pictures.similarities.values():
        widths = np.diff(found["edges"])
        for name in ("within", "between"):
            assert np.sum(widths * found[name]) == pytest.approx(1, abs=0.01)


def test_the_command_puts_images_on_the_page_only_when_asked(
    finished: Path, table: Table, tmp_path: Path
) -> None:
    pages = []
    for flags in ([], ["--pictures", "--queries", "1", "--points", "10", "--method", "hpl"]):
        before = openings(table)
        output = tmp_path / f"{len(flags)}.html"
        assert main(["report", *folders_of(finished), *flags, "--output", str(output)]) == 0
        assert openings(table) == before + bool(flags)  # one method, one look
        pages.append(output.read_text())
    assert [len(re.findall("data-thumb=", page)) for page in pages] == [0, 3 * (1 + 8)]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--pixels", "4"], "pixels must lie between 16 and 256, got 4"),
        (["--points", "9999999"], "points must lie between 10 and 5000"),
    ],
)
def test_how_much_goes_on_a_page_is_bounded(
    finished: Path, capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    assert main(["report", *folders_of(finished), "--pictures", *flags]) == 2
    assert message in capsys.readouterr().err


def test_a_data_set_that_is_gone_leaves_the_rest_of_the_page(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = Path(shutil.copytree(finished, tmp_path / "copy"))
    for config in (copy / "runs").glob("**/config.yaml"):
        config.write_text(config.read_text().replace(str(finished), str(tmp_path / "gone")))
    output = tmp_path / "page.html"
    assert main(["report", "--pictures", *folders_of(copy), "--output", str(output)]) == 0
    assert "No pictures:" in capsys.readouterr().err
    assert "No pictures:" in output.read_text() and "hpl-pa" in output.read_text()
