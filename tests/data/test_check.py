"""`data check`: what is wrong with the files of a data set is found, named and told apart."""

from __future__ import annotations

import errno
import gzip
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import write_images
from dataset_files import publish, write_cub, write_inshop, write_sop
from PIL import Image

from harness.cli import main
from harness.data import duplicates
from harness.data.check import check


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Four classes of three images, two classes for training."""
    write_images(tmp_path / "pictures", num_classes=4, per_class=3)
    return tmp_path / "pictures"


def test_a_sound_folder_is_usable_and_counted(pictures: Path) -> None:
    (pictures / "class_02" / "1.png").unlink()
    report = check(f"folder:{pictures}")
    assert report.usable
    assert dict(report.counts) == {
        "images": 11,
        "classes": 4,
        "train_classes": 2,
        "train_images": 6,
        "test_images": 5,
    }
    assert report.smallest == ("class_02", 2) and report.largest == ("class_00", 3)


def test_every_image_is_reported_as_progress(pictures: Path) -> None:
    events: list[Any] = []
    check(f"folder:{pictures}", listener=events.append)
    assert (events[-1].done, events[-1].total) == (12, 12)


def test_queries_and_gallery_are_counted_apart(tmp_path: Path) -> None:
    write_inshop(tmp_path)
    counts = check("inshop", str(tmp_path)).counts
    assert counts["train_classes"] == 1 and counts["test_images"] == 4
    assert counts["query_images"] == 2 and counts["gallery_images"] == 2


def test_counts_that_were_not_published_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_cub(tmp_path)
    assert main(["data", "check", "cub", "--data-root", str(tmp_path)]) == 2
    captured = capsys.readouterr()
    assert "WRONG, published: 11,788" in captured.out and "usable\n" not in captured.out
    assert "error: data set 'cub' is not usable as it is" in captured.err
    assert "  images: 6 instead of 11,788\n" in captured.err


def test_published_counts_are_confirmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_sop(tmp_path)
    publish(monkeypatch, "sop", images=8, classes=4, train_classes=3, train_images=6, test_images=2)
    monkeypatch.setenv("HARNESS_DATA", str(tmp_path))
    assert main(["data", "check", "sop"]) == 0
    text = capsys.readouterr().out
    assert text.count("as published") == 5 and text.endswith("usable\n")


def test_missing_and_broken_files_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_sop(tmp_path)
    publish(monkeypatch, "sop", images=8)
    (tmp_path / "bicycle_final" / "1_0.JPG").unlink()
    (tmp_path / "sofa_final" / "2_0.JPG").write_text("<html>not found</html>")
    cut = tmp_path / "sofa_final" / "4_1.JPG"
    cut.write_bytes(cut.read_bytes()[:-60])
    (tmp_path / "sofa_final" / "4_0.JPG").write_bytes(b"")
    assert main(["data", "check", "sop", "--data-root", str(tmp_path)]) == 2
    errors = capsys.readouterr().err
    assert "  missing: bicycle_final/1_0.JPG\n" in errors
    assert "  broken: sofa_final/2_0.JPG: no image of a known format" in errors
    assert "  broken: sofa_final/4_0.JPG: the file is empty\n" in errors
    assert "  broken: sofa_final/4_1.JPG: image file is truncated" in errors
    assert errors.count("broken:") == 3 and errors.count("missing:") == 1


def test_a_long_list_of_missing_files_is_cut_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [f"{i} 1 1 bicycle_final/{i}.JPG" for i in range(25)]
    (tmp_path / "Ebay_train.txt").write_text("\n".join(["heading", *lines]))
    (tmp_path / "Ebay_test.txt").write_text("heading\n99 2 1 bicycle_final/99.JPG\n")
    publish(monkeypatch, "sop")
    check_sop = ["data", "check", "sop", "--data-root", str(tmp_path)]
    assert main(check_sop) == 2
    errors = capsys.readouterr().err
    assert errors.count("missing: bicycle_final") == 20
    assert "and 6 more files; the whole lists: --output FILE" in errors
    path = tmp_path / "reports" / "sop.json"
    assert main([*check_sop, "--output", str(path)]) == 2
    assert f"the whole lists: {path}" in capsys.readouterr().err
    report = json.loads(path.read_text())
    assert len(report["missing"]) == 26 and report["usable"] is False
    assert report["counts"]["images"] == 26 and report["same_files"]["groups"] == []


def test_a_long_group_of_copies_is_cut_on_screen_and_whole_in_the_file(
    pictures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(10):
        shutil.copy(pictures / "class_00/0.png", pictures / f"class_00/copy_{number}.png")
    path = pictures.parent / "report.json"
    assert main(["data", "check", f"folder:{pictures}", "--output", str(path)]) == 0
    said = capsys.readouterr().out
    assert "copy_3.png = 6 more\n" in said and "copy_4.png" not in said
    assert [len(group) for group in json.loads(path.read_text())["same_files"]["groups"]] == [11]


def test_a_report_that_cannot_be_written_is_refused_before_the_check(
    pictures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = pictures / "class_00" / "0.png" / "report.json"
    assert main(["data", "check", f"folder:{pictures}", "--output", str(path)]) == 2
    captured = capsys.readouterr()
    assert "cannot write to" in captured.err and captured.out == ""


def test_a_config_file_says_where_the_data_set_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_sop(tmp_path / "data")
    publish(monkeypatch, "sop", images=8)
    (tmp_path / "c.yaml").write_text(f"data_root: {tmp_path / 'data'}\ndataset: glyphs\n")
    assert main(["data", "check", "sop", "--config", str(tmp_path / "c.yaml")]) == 0


def test_odd_formats_are_told_apart(pictures: Path) -> None:
    folder = pictures / "class_00"
    plain = Image.open(folder / "0.png").convert("RGB")
    plain.convert("L").save(folder / "grey.png")
    plain.convert("CMYK").save(folder / "print.jpg")
    plain.convert("P").save(folder / "palette.png")
    plain.convert("RGBA").save(folder / "alpha.png")
    plain.convert("LA").save(folder / "both.png")
    plain.convert("P").save(folder / "hole.png", transparency=0)
    modes = check(f"folder:{pictures}").modes
    assert modes == {
        "grey": ("class_00/both.png", "class_00/grey.png"),
        "CMYK": ("class_00/print.jpg",),
        "palette": ("class_00/hole.png", "class_00/palette.png"),
        "transparent": ("class_00/alpha.png", "class_00/both.png", "class_00/hole.png"),
    }


def test_copies_are_reported_by_the_lines_they_cross(pictures: Path) -> None:
    shutil.copy(pictures / "class_03/0.png", pictures / "class_03/copy.png")
    shutil.copy(pictures / "class_00/0.png", pictures / "class_01/copy.png")
    shutil.copy(pictures / "class_01/1.png", pictures / "class_02/copy.png")
    report = check(f"folder:{pictures}")
    assert report.usable
    assert report.same_files.groups == (
        ("class_01/1.png", "class_02/copy.png"),
        ("class_00/0.png", "class_01/copy.png"),
        ("class_03/0.png", "class_03/copy.png"),
    )
    assert (report.same_files.across_classes, report.same_files.across_split) == (2, 1)
    assert report.same_pictures == report.same_files


def test_a_picture_encoded_and_scaled_anew_is_the_same_picture(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for label in "abcd":
        (tmp_path / label).mkdir()
        small = Image.fromarray(rng.integers(0, 256, (9, 12, 3), dtype=np.uint8))
        small.resize((300, 225), Image.Resampling.BICUBIC).save(tmp_path / label / "0.png")
    original = Image.open(tmp_path / "a" / "0.png")
    original.resize((200, 150)).save(tmp_path / "d" / "scaled.jpg", quality=70)
    report = check(f"folder:{tmp_path}")
    assert report.same_files.groups == ()
    assert report.same_pictures.groups == (("a/0.png", "d/scaled.jpg"),)
    assert report.same_pictures.across_split == 1


def test_alike_groups_are_those_of_plain_loops() -> None:
    rng = np.random.default_rng(1)
    # Thumbnails close to one another: differences lie on both sides of the tolerance.
    base = rng.integers(50, 200, (6, duplicates.SIDE**2 * 3))
    noise = rng.normal(0, 1, (10, *base.shape)) * rng.uniform(0.5, 2, (10, 6, 1))
    noise += rng.normal(0, 6, (10, 6, 1))  # of all pixels alike
    rows = (base + noise).round().clip(0, 255).astype(np.uint8).reshape(-1, base.shape[1])
    group = list(range(len(rows)))
    for i in range(len(rows)):
        for j in range(i):
            distance = np.sqrt(np.mean((rows[i].astype(float) - rows[j].astype(float)) ** 2))
            if distance <= duplicates.TOLERANCE and group[i] != group[j]:
                group = [group[j] if g == group[i] else g for g in group]
    wanted = {frozenset(k for k in range(len(rows)) if group[k] == g) for g in group}
    wanted = {members for members in wanted if len(members) > 1}
    found = duplicates.alike_groups([row.tobytes() for row in rows])
    assert {frozenset(members) for members in found} == wanted
    assert len(wanted) > 1 and sum(map(len, wanted)) < len(rows), "some alike, some not"


def test_files_that_cannot_be_read_are_no_duplicates_of_each_other() -> None:
    assert duplicates.equal_groups([b"", b"x", b"", b"x"]) == [[1, 3]]
    assert duplicates.alike_groups([b"", b""]) == []


def test_a_picture_that_is_there_very_often_is_one_group() -> None:
    grey = bytes([128]) * (duplicates.SIDE**2 * 3)
    assert [len(group) for group in duplicates.alike_groups([grey] * 20000)] == [20000]


def test_the_checksum_is_of_names_labels_and_contents_alone(pictures: Path) -> None:
    before = check(f"folder:{pictures}").checksum
    elsewhere = shutil.copytree(pictures, pictures.parent / "elsewhere")
    assert check(f"folder:{elsewhere}").checksum == before
    path = pictures / "class_00" / "0.png"
    path.write_bytes(path.read_bytes() + b"\0")
    changed = check(f"folder:{pictures}").checksum
    shutil.move(elsewhere / "class_00" / "2.png", elsewhere / "class_00" / "9.png")
    assert len({before, changed, check(f"folder:{elsewhere}").checksum}) == 3


def test_training_classes_are_the_given_or_the_published_or_half(
    tmp_path: Path, pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def training(spec: str, root: str = "") -> tuple[int, int]:
        counts = check(spec, root).counts
        return counts["train_classes"], counts["train_images"]

    write_inshop(tmp_path / "inshop")
    assert training("inshop", str(tmp_path / "inshop")) == (1, 2)
    (pictures / "class_02" / "2.png").unlink()  # the other classes have three images
    assert training(f"folder:{pictures}") == (2, 6)
    publish(monkeypatch, "folder", train_classes=3)
    assert training("folder", str(pictures)) == (3, 8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["data", "check", "cars"], "data set 'cars' needs its files: --data-root PATH"),
        (["search", "--loss", "ccp", "--dataset", "cars"], "'cars' needs its files: --data-root"),
        (["data", "check", "cub", "--data-root", "/none"], "no folder at /none"),
        (["data", "check", "crs"], "Did you mean 'cars'"),
        (["data", "chek", "cars"], "No such command 'chek'"),
    ],
)
def test_a_data_set_that_is_not_there_is_a_message_and_exit_code_2(
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("HARNESS_DATA", raising=False)
    assert main(arguments) == 2
    errors = capsys.readouterr().err
    assert errors.startswith("error: ") and message in errors


LISTING = pytest.mark.parametrize(
    "command",
    [["data", "check"], ["search", "--loss", "ccp", "--dataset"]],
    ids=("check", "search"),
)


@LISTING
def test_a_folder_in_place_of_a_file_is_named(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_cub(tmp_path)
    (tmp_path / "images.txt").unlink()
    (tmp_path / "images.txt").mkdir()
    assert main([*command, "cub", "--data-root", str(tmp_path)]) == 2
    expected = f"error: data set 'cub': cannot read {tmp_path}/images.txt: Is a directory\n"
    assert capsys.readouterr().err.startswith(expected)


@LISTING
def test_a_folder_without_the_right_to_read_it_is_named(
    command: list[str],
    pictures: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    scan = os.scandir

    def refuse(folder: Any) -> Any:
        if str(folder).endswith("class_01"):  # by hand: whoever is root may read everything
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
        return scan(folder)

    monkeypatch.setattr(os, "scandir", refuse)
    assert main([*command, f"folder:{pictures}"]) == 2
    errors = capsys.readouterr().err
    assert f"'folder': cannot read {pictures}/class_01: Permission denied\n" in errors


def test_a_packed_list_is_named_with_what_was_expected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_cub(tmp_path)
    path = tmp_path / "images.txt"
    path.write_bytes(gzip.compress(path.read_bytes()))
    assert main(["data", "check", "cub", "--data-root", str(tmp_path)]) == 2
    errors = capsys.readouterr().err
    assert f"{path} is no text in UTF-8" in errors and "lines of image_id path" in errors
