"""Missing and broken images: refused, or left out and counted."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import FOLDER, write_images
from dataset_files import publish, write_picture

from harness.cli import main
from harness.config import RunConfig
from harness.data.sources import open_part
from harness.errors import HarnessError
from harness.evaluation.reproductions import evaluate
from harness.evaluation.scoring import describe_test
from harness.experiment import build_benchmark, build_experiment
from harness.searching.loop import search
from harness.tables.leaderboard import build
from harness.tables.rendering import to_markdown

BIRDS = [f"{number:03d}.Bird_{number}" for number in range(1, 17)]


@pytest.fixture
def birds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """CUB's files with sixteen classes of four images."""
    publish(monkeypatch, "cub", images=64, classes=16)
    root = tmp_path / "CUB_200_2011"
    names = [f"{bird}/{number}.jpg" for bird in BIRDS for number in range(4)]
    for number, name in enumerate(names):
        write_picture(root / "images" / name, number)
    lines = [f"{number} {name}\n" for number, name in enumerate(names, start=1)]
    (root / "images.txt").write_text("".join(lines))
    labels = [f"{number} {(number - 1) // 4 + 1}\n" for number in range(1, len(names) + 1)]
    (root / "image_class_labels.txt").write_text("".join(labels))
    classes = [f"{number} {bird}\n" for number, bird in enumerate(BIRDS, start=1)]
    (root / "classes.txt").write_text("".join(classes))
    return root


@pytest.fixture
def cub(config: RunConfig, birds: Path, tmp_path: Path) -> RunConfig:
    return config.updated(
        {
            "dataset": "cub",
            "protocol": FOLDER,
            "trunk": "convnet",
            "trials": 1,
            "data_root": str(birds.parent),
            "cache_dir": str(tmp_path / "cache"),
        }
    )


def test_missing_files_are_refused_with_what_to_do(cub: RunConfig, birds: Path) -> None:
    (birds / "images" / BIRDS[2] / "1.jpg").unlink()
    (birds / "images" / BIRDS[12] / "3.jpg").unlink()
    with pytest.raises(HarnessError, match="2 of the 64 images of 'cub' are missing") as caught:
        build_experiment(cub)
    for advice in (f"{BIRDS[2]}/1.jpg", "harness data check cub", "--allow-missing"):
        assert advice in str(caught.value)


def test_the_table_says_how_many_images_were_left_out(cub: RunConfig, birds: Path) -> None:
    (birds / "images" / BIRDS[2] / "1.jpg").unlink()  # trainval
    (birds / "images" / BIRDS[3] / "2.jpg").write_bytes(b"broken")  # trainval
    (birds / "images" / BIRDS[12] / "3.jpg").write_bytes(b"broken")  # test
    with pytest.raises(HarnessError, match="1 of the 64 images"):
        search([cub])
    cub = cub.updated({"allow_missing": True})
    search([cub])
    values = {"reproductions": 1, "workers": 1, "device": "cpu", "runs_dir": cub.runs_dir}
    table = evaluate([], {**values, "results_dir": cub.results_dir}).tables[0]
    board = build(table)
    frame = board.frame
    assert set(frame["missing_images"]) == {3}
    assert "left out because they are missing or broken: 3." in to_markdown(board.table())
    frame = frame.set_index("method")
    assert frame.loc["proxyanchor", "queries"] == 8 * 4 - 1


def test_a_class_without_any_image_left_is_refused(cub: RunConfig, birds: Path) -> None:
    for number in range(4):
        (birds / "images" / BIRDS[5] / f"{number}.jpg").unlink()
    benchmark = build_benchmark(cub.updated({"allow_missing": True}))
    with pytest.raises(HarnessError, match=f"the first is '{BIRDS[5]}'"):
        open_part(benchmark, "trainval")


def test_prepare_decodes_both_parts_on_demand(
    cub: RunConfig, birds: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [*("--data-root", str(birds)), *("--cache-dir", cub.cache_dir)]
    prepare = ["data", "prepare", "cub", "--protocol", FOLDER, "--trunk", "convnet", *arguments]
    assert main(prepare) == 0
    said = capsys.readouterr().out
    assert "trainval: 32 images, fingerprint" in said and "test:" not in said
    assert main([*prepare, "--test"]) == 0
    assert "test: 32 images" in capsys.readouterr().out
    assert len(list(Path(cub.cache_dir, "cub").glob("*/pixels.u8"))) == 2


def test_prepare_takes_a_config_file(cub: RunConfig, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(cub.to_yaml())
    assert main(["data", "prepare", "cub", "--config", str(tmp_path / "c.yaml")]) == 0
    assert len(list(Path(cub.cache_dir, "cub").glob("*/pixels.u8"))) == 1


@pytest.fixture
def imagenet(config: RunConfig, tmp_path: Path) -> RunConfig:
    """Sixteen classes of four images, in a data set that is what lies in its folders."""
    write_images(tmp_path / "imagenet" / "train", num_classes=16, per_class=4)
    values = {"dataset": "imagenet", "data_root": str(tmp_path), "cache_dir": str(tmp_path / "c")}
    return config.updated({"protocol": FOLDER, "trunk": "convnet", **values})


@pytest.mark.parametrize(
    ("published", "allow_missing"),
    [
        ({"images": 66, "classes": 16}, False),  # fewer images
        ({"images": 62, "classes": 16}, True),  # more
        ({"images": 64, "classes": 17}, True),  # another task
    ],
)
def test_other_images_than_the_published_ones_are_refused(
    imagenet: RunConfig,
    monkeypatch: pytest.MonkeyPatch,
    published: dict[str, int],
    allow_missing: bool,
) -> None:
    publish(monkeypatch, "imagenet", **published)
    counts = f"{published['images']} of {published['classes']}"
    with pytest.raises(HarnessError, match=f"64 images of 16 .* published are {counts}") as caught:
        build_benchmark(imagenet.updated({"allow_missing": allow_missing}))
    assert ("--allow-missing" in str(caught.value)) != allow_missing


def test_published_images_that_are_in_no_folder_count_as_missing(
    imagenet: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(monkeypatch, "imagenet", images=66, classes=16)
    experiment = build_experiment(imagenet.updated({"allow_missing": True}))
    trainval, test = (open_part(experiment, part) for part in ("trainval", "test"))
    assert describe_test(experiment, trainval, test, {}).missing_images == 2


def test_a_part_of_imagenet_is_not_searched(
    imagenet: RunConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--dataset", "imagenet", "--data-root", imagenet.data_root, "--allow-missing"]
    assert main(["search", "--loss", "ms", *arguments]) == 2
    assert "published are 1,281,167 of 1,000\n" in capsys.readouterr().err
