"""Data sets: contract over whatever is registered, then each in particular."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import write_images
from dataset_files import (
    BIRDS,
    CARS,
    IN_SHOP,
    WRITERS,
    write_cars,
    write_cub,
    write_devkit_cars,
    write_imagenet,
    write_imagenet_closed,
    write_inaturalist,
    write_inaturalist_json,
    write_inshop,
    write_sop,
)
from fontTools.ttLib import TTFont
from PIL import Image
from scipy.io import savemat

from harness import registry
from harness.datasets import (
    cars,
    cub,
    folder,
    glyphs,
    imagenet,
    imagenet_closed,
    inaturalist,
    inshop,
    sop,
)
from harness.datasets.dataset import Dataset, decode_rgb
from harness.testing.dataset import DATASET_CHECKS, Copy
from pretraining.glyphnet import CLASSES, shape, shared_ink


@pytest.fixture(params=registry.names("dataset"))
def copy(request: pytest.FixtureRequest, tmp_path: Path) -> Copy:
    dataset, _ = registry.load_dataset(request.param)
    if not dataset.needs_root:
        return Copy(dataset, None)
    if dataset.name not in WRITERS:
        pytest.skip(f"no write_{dataset.name} in tests/dataset_files.py writes a copy of its files")
    WRITERS[dataset.name](tmp_path / "data")
    return Copy(dataset, tmp_path / "data")


@pytest.mark.parametrize("check", DATASET_CHECKS, ids=lambda check: check.__name__)
def test_every_data_set_keeps_the_contract(copy: Copy, check: Callable[[Copy], None]) -> None:
    check(copy)


def test_glyphs_has_200_classes_of_48_images() -> None:
    listing = glyphs.list_images()
    assert np.bincount(listing.labels).tolist() == [48] * 200


def test_every_face_has_every_character() -> None:
    characters = {ord(char) for chars in glyphs.SCRIPTS.values() for char in chars}
    assert len(characters) == 200
    for face in glyphs.FACES:
        assert characters <= set(TTFont(glyphs.font_path(face)).getBestCmap())


def test_no_two_characters_of_glyphs_look_the_same() -> None:
    shapes = np.stack([shape(char, "DejaVuSans") for char in CLASSES])
    shared = np.stack([shared_ink(one, shapes) for one in shapes])
    assert np.diag(shared).tolist() == [1.0] * 200
    np.fill_diagonal(shared, 0)
    assert shared.max() < 0.9


def test_glyphs_renders_the_same_pixels_in_any_order() -> None:
    listing = glyphs.list_images()
    later = listing.read(4321)
    assert listing.read(17) != later
    assert glyphs.list_images().read(4321) == later


def test_scripts_of_glyphs_mix_over_the_split() -> None:
    superclasses = glyphs.list_images().superclasses
    assert superclasses is not None
    for half in (superclasses[:100], superclasses[100:]):
        assert set(half) == set(range(len(glyphs.SCRIPTS)))


def test_folder_orders_classes_by_name_and_skips_what_is_no_image(tmp_path: Path) -> None:
    write_images(tmp_path, num_classes=3, per_class=2)
    (tmp_path / "class_01" / "notes.txt").write_text("not an image")
    (tmp_path / "empty").mkdir()
    listing = folder.list_images(tmp_path)
    assert listing.class_names == ("class_00", "class_01", "class_02")
    assert listing.names[2:4] == ("class_01/0.png", "class_01/1.png")


def test_folder_reads_each_class_folder_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_images(tmp_path, num_classes=3, per_class=2)
    scan, scanned = os.scandir, Counter[str]()

    def count(where: Any) -> Any:
        scanned[Path(where).name] += 1
        return scan(where)

    monkeypatch.setattr(os, "scandir", count)
    assert folder.list_images(tmp_path).missing == ()
    assert [scanned[f"class_0{number}"] for number in range(3)] == [1, 1, 1]


RAMP = np.arange(256).reshape(16, 16)


@pytest.mark.parametrize(("order", "file"), [("<u2", "a.png"), (">u2", "a.tif")])
def test_grey_images_of_16_bits_are_scaled_to_8(tmp_path: Path, order: str, file: str) -> None:
    Image.fromarray((RAMP * 257).astype(order)).save(tmp_path / file)
    image = decode_rgb((tmp_path / file).read_bytes())
    assert image.mode == "RGB"
    assert np.array_equal(np.asarray(image), np.stack([RAMP] * 3, axis=2))


@pytest.mark.parametrize("kind", [np.int32, np.float32])
def test_images_of_32_bits_are_refused_with_advice(tmp_path: Path, kind: type) -> None:
    Image.fromarray(RAMP.astype(kind)).save(tmp_path / "a.tif")
    with pytest.raises(ValueError, match="no known range; save it with 8 bits per channel"):
        decode_rgb((tmp_path / "a.tif").read_bytes())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda root: None, "no folder at"),
        (lambda root: root.mkdir(), "no images in the folders of"),
    ],
)
def test_folder_says_what_is_missing_and_what_it_expects(
    tmp_path: Path, make: Callable[[Path], None], message: str
) -> None:
    make(tmp_path / "data")
    with pytest.raises(ValueError, match=message) as raised:
        folder.list_images(tmp_path / "data")
    assert "one folder per class" in str(raised.value)


def source_of(name: str) -> Any:
    """Where the files of a data set come from, if its module says so."""
    return getattr(import_module(f"harness.datasets.{name}"), "SOURCE", None)


WITH_SOURCE = [name for name in WRITERS if source_of(name)]


@pytest.fixture(params=WITH_SOURCE)
def dataset(request: pytest.FixtureRequest) -> Dataset:
    return registry.load_dataset(request.param)[0]


def test_a_root_may_be_the_folder_itself_or_hold_it_by_a_usual_name(
    dataset: Dataset, tmp_path: Path
) -> None:
    for usual in source_of(dataset.name).folders:
        root = tmp_path / usual.replace(" ", "_") / "data"
        WRITERS[dataset.name](root / usual)
        outer, inner = dataset.list_images(root), dataset.list_images(root / usual)
        assert outer.names == inner.names and outer.missing == ()
        assert outer.read(0) == inner.read(0)


def test_without_a_root_it_says_which_flag_which_layout_and_where_to_get_it(
    dataset: Dataset,
) -> None:
    with pytest.raises(ValueError, match=r"needs its files: --data-root PATH or HARNESS_DATA=PATH"):
        dataset.list_images(None)
    with pytest.raises(
        ValueError, match=r"PATH is a folder as follows(.|\n)*to get it: (.|\n)*https://"
    ):
        dataset.list_images(None)


def test_an_empty_root_says_what_was_looked_for_and_where(dataset: Dataset, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"'{dataset.name}' is not in {tmp_path}") as raised:
        dataset.list_images(tmp_path)
    text = str(raised.value)
    assert f"in {tmp_path}: no " in text and "and no folder named" in text and "to get it" in text


def test_a_root_that_is_not_there_is_named(dataset: Dataset, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"no folder at {tmp_path}/none\n(.|\n)*to get it"):
        dataset.list_images(tmp_path / "none")


def test_a_half_complete_folder_is_told_from_an_empty_one(tmp_path: Path) -> None:
    write_cub(tmp_path / "cub")
    (tmp_path / "cub" / "classes.txt").unlink()
    with pytest.raises(ValueError, match=f"in {tmp_path}/cub: no classes.txt\n"):
        cub.list_images(tmp_path)


def test_files_that_are_not_there_are_listed_as_missing(tmp_path: Path) -> None:
    write_cub(tmp_path)
    complete = cub.list_images(tmp_path)
    (tmp_path / "images" / complete.names[5]).unlink()
    link = tmp_path / "images" / complete.names[1]
    link.unlink()
    link.symlink_to(tmp_path / "nowhere")
    listing = cub.list_images(tmp_path)
    assert listing.missing == (1, 5)
    assert listing.names == complete.names and np.array_equal(listing.labels, complete.labels)


def test_all_images_of_a_folder_that_is_not_there_are_missing(tmp_path: Path) -> None:
    write_cub(tmp_path)
    names = cub.list_images(tmp_path).names
    (tmp_path / "images" / names[3]).parent.rename(tmp_path / "elsewhere")
    assert [names[i].split("/")[0] for i in cub.list_images(tmp_path).missing] == [BIRDS[1]] * 2


def test_cub_goes_by_ids_and_groups_by_the_last_word(tmp_path: Path) -> None:
    write_cub(tmp_path)
    listing = cub.list_images(tmp_path)
    assert listing.labels.tolist() == [2, 0, 0, 1, 1, 2]
    assert listing.names[0] == "003.Groove_billed_Ani/Bird_5.jpg"
    assert listing.class_names[2] == "003.Groove_billed_Ani"
    assert listing.superclasses is not None and listing.superclasses.tolist() == [0, 0, 1]
    assert listing.superclass_names == ("Albatross", "Ani")
    assert listing.given_trainval is None and listing.queries is None


def test_both_layouts_of_cars_list_the_same_pictures_in_the_same_order(tmp_path: Path) -> None:
    write_cars(tmp_path / "flat")
    write_devkit_cars(tmp_path / "kit")
    flat, kit = cars.list_images(tmp_path / "flat"), cars.list_images(tmp_path / "kit")
    assert flat.labels.tolist() == kit.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert flat.class_names == kit.class_names == CARS
    assert flat.superclasses is not None and kit.superclasses is not None
    assert flat.superclasses.tolist() == kit.superclasses.tolist() == [0, 1, 1]  # makes
    pictures = [flat.read(i) for i in range(6)]
    assert pictures == [kit.read(i) for i in range(6)] and len(set(pictures)) == 6
    assert flat.names[0] == "car_ims/000001.jpg" and kit.names[0] == "cars_train/00003.jpg"


@pytest.mark.parametrize("where", [".", "devkit", "car_devkit/devkit"])
def test_the_development_kit_of_cars_may_lie_in_its_usual_places(
    tmp_path: Path, where: str
) -> None:
    write_devkit_cars(tmp_path, where)
    nested = tmp_path / "cars_train" / "cars_train"
    (tmp_path / "cars_train").rename(tmp_path / "unpacked")
    nested.parent.mkdir()
    (tmp_path / "unpacked").rename(nested)
    listing = cars.list_images(tmp_path)
    assert listing.missing == () and listing.names[0] == "cars_train/00003.jpg"


def test_annotations_of_cars_without_classes_are_refused(tmp_path: Path) -> None:
    write_devkit_cars(tmp_path)
    structs = np.array([[("00001.jpg",)]], dtype=[("fname", object)])
    savemat(
        tmp_path / "devkit" / "cars_test_annos_withlabels.mat",
        {"annotations": structs},
        do_compression=True,
    )
    with pytest.raises(ValueError, match=r"annotations have no 'class'(.|\n)*PATH is a folder"):
        cars.list_images(tmp_path)


def test_a_file_of_cars_that_is_no_matlab_file_is_refused(tmp_path: Path) -> None:
    write_cars(tmp_path)
    (tmp_path / "cars_annos.mat").write_text("<html>404 Not Found</html>" * 20)
    with pytest.raises(ValueError, match=r"cars_annos.mat is no file of MATLAB 5 to 7"):
        cars.list_images(tmp_path)


def test_damaged_annotations_of_cars_never_reach_a_reader_that_would_crash(tmp_path: Path) -> None:
    write_cars(tmp_path)
    file = tmp_path / "cars_annos.mat"
    intact = file.read_bytes()
    for content, message in (
        (intact[:300] + bytes([intact[300] ^ 1]) + intact[301:], "cars_annos.mat is damaged: "),
        (intact[:-5], "is damaged: a variable is cut off"),
        (intact[:128] + b"\x0e" + intact[129:], "its variables are not compressed"),
    ):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            cars.list_images(tmp_path)


def test_a_file_of_cars_without_annotations_is_refused(tmp_path: Path) -> None:
    write_cars(tmp_path)
    savemat(
        tmp_path / "cars_annos.mat",
        {"class_names": np.array([["one"]], dtype=object)},
        do_compression=True,
    )
    with pytest.raises(ValueError, match=r"cars_annos.mat holds no 'annotations'"):
        cars.list_images(tmp_path)


def test_a_class_of_cars_without_a_name_is_refused(tmp_path: Path) -> None:
    write_devkit_cars(tmp_path)
    names = np.array([["only one"]], dtype=object)
    savemat(tmp_path / "devkit" / "cars_meta.mat", {"class_names": names}, do_compression=True)
    with pytest.raises(ValueError, match="class 3 has no name"):
        cars.list_images(tmp_path)


def test_cars_does_not_send_people_to_a_page_that_is_gone() -> None:
    advice = cars.SOURCE.advice()
    assert "gone since 2023" in advice and "ai.stanford.edu" not in advice
    assert "kaggle.com" in advice and "pytorch/vision/issues/7545" in advice


def test_sop_joins_both_files_and_leaves_the_split_to_the_protocol(tmp_path: Path) -> None:
    write_sop(tmp_path)
    listing = sop.list_images(tmp_path)
    assert listing.labels.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert listing.class_names == ("bicycle 1", "sofa 2", "bicycle 3", "sofa 4")
    assert listing.superclasses is not None and listing.superclasses.tolist() == [0, 1, 0, 1]
    assert listing.superclass_names == ("bicycle", "sofa")
    assert listing.given_trainval is None
    assert listing.official_trainval == (0, 1)


def test_a_product_in_both_files_of_sop_is_named(tmp_path: Path) -> None:
    write_sop(tmp_path)
    train = tmp_path / "Ebay_train.txt"
    train.write_text(train.read_text() + "9 3 1 bicycle_final/3_0.JPG\n")
    with pytest.raises(ValueError, match=r"class 3 is in Ebay_train.txt and in Ebay_test.txt"):
        sop.list_images(tmp_path)


def test_inshop_has_its_split_and_its_queries(tmp_path: Path) -> None:
    write_inshop(tmp_path)
    listing = inshop.list_images(tmp_path)
    assert listing.class_names == ("id_00000001", "id_00000002", "id_00000003")
    assert listing.labels.tolist() == [1, 1, 0, 0, 2, 2]
    assert listing.given_trainval == (1,)
    assert listing.queries is not None
    assert listing.queries.tolist() == [False, False, True, False, False, True]


@pytest.mark.parametrize("where", ["Anno/list_eval_partition.txt", "list_eval_partition.txt"])
def test_the_files_of_inshop_may_lie_in_their_usual_places(tmp_path: Path, where: str) -> None:
    write_inshop(tmp_path)
    (tmp_path / "Anno").mkdir()
    (tmp_path / "Eval" / "list_eval_partition.txt").rename(tmp_path / where)
    (tmp_path / "Img").mkdir()
    (tmp_path / "img").rename(tmp_path / "Img" / "img")
    listing = inshop.list_images(tmp_path)
    assert listing.missing == () and listing.names[0] == IN_SHOP[0][0]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (("img/x.jpg", "id_00000002", "query"), "id_00000002 is in training and in the test"),
        (("img/x.jpg", "id_00000004", "val"), "a role is train, query or gallery, not 'val'"),
        (("img/x.jpg", "id_00000004", ""), "line 9: expected image_name item_id evaluation_status"),
    ],
)
def test_a_wrong_line_of_inshop_is_refused(
    tmp_path: Path, row: tuple[str, str, str], message: str
) -> None:
    write_inshop(tmp_path, [*IN_SHOP, row])
    with pytest.raises(ValueError, match=message):
        inshop.list_images(tmp_path)


@pytest.mark.parametrize("write", [write_inaturalist, write_inaturalist_json])
def test_inaturalist_has_its_split_and_super_categories(
    tmp_path: Path, write: Callable[[Path], None]
) -> None:
    write(tmp_path)
    listing = inaturalist.list_images(tmp_path)
    assert listing.class_names == ("Aves/2", "Aves/9", "Plantae/10", "Plantae/11")
    assert listing.labels.tolist() == [2, 1, 0, 3]
    assert listing.given_trainval == (1, 2)
    assert listing.superclasses is not None and listing.superclasses.tolist() == [0, 0, 1, 1]


CATEGORIES = [
    {"id": number, "class": name, "supercategory": "hidden"}
    for number, name in {2: "Aves", 9: "Aves", 10: "Liliopsida", 11: "Magnoliopsida"}.items()
]


def test_a_list_of_inaturalist_that_holds_no_paths_is_refused(tmp_path: Path) -> None:
    write_inaturalist_json(tmp_path)
    (tmp_path / "Inaturalist_test_set1.json").write_text('{"images": [{"file_name": ["a/b"]}]}')
    with pytest.raises(ValueError, match=r"test_set1.json is no list of image paths"):
        inaturalist.list_images(tmp_path)


@pytest.mark.parametrize(
    ("file", "content"),
    [("categories.json", CATEGORIES), ("train2018.json", {"categories": CATEGORIES})],
)
def test_inaturalist_groups_by_taxonomic_class_if_a_file_says_it(
    tmp_path: Path, file: str, content: Any
) -> None:
    write_inaturalist(tmp_path)
    (tmp_path / file).write_text(json.dumps(content))
    superclasses = inaturalist.list_images(tmp_path).superclasses
    assert superclasses is not None and superclasses.tolist() == [0, 0, 1, 2]
    without = [{"id": entry["id"]} for entry in CATEGORIES]  # as published at first
    (tmp_path / file).write_text(json.dumps(without))
    superclasses = inaturalist.list_images(tmp_path).superclasses
    assert superclasses is not None and superclasses.tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[1]", "is no list of categories"),
        ("{", "is no list of categories"),
        (json.dumps(CATEGORIES[1:]), "category 2 has no class, others have"),
    ],
)
def test_wrong_categories_of_inaturalist_are_refused(
    tmp_path: Path, content: str, message: str
) -> None:
    write_inaturalist(tmp_path)
    (tmp_path / "categories.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        inaturalist.list_images(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("train_val2018/Aves/9/e.jpg", "category 9 is in .*; training and test must share none"),
        ("Aves/2/c.jpg", "expected train_val2018/<super-category>/<category id>/<image>, got 'Ave"),
        ("", "lists no images"),
    ],
)
def test_a_wrong_list_of_inaturalist_is_refused(tmp_path: Path, text: str, message: str) -> None:
    write_inaturalist(tmp_path)
    (tmp_path / "Inat_dataset_splits" / "Inaturalist_test_set1.txt").write_text(text)
    with pytest.raises(ValueError, match=message):
        inaturalist.list_images(tmp_path)


@pytest.mark.parametrize("text", ["[", "[1, 2]", '{"annotations": []}'])
def test_json_that_lists_no_images_is_refused(tmp_path: Path, text: str) -> None:
    write_inaturalist_json(tmp_path)
    (tmp_path / "Inaturalist_test_set1.json").write_text(text)
    with pytest.raises(ValueError, match="is no list of image paths"):
        inaturalist.list_images(tmp_path)


def test_imagenet_lists_the_class_folders_of_train_alone(tmp_path: Path) -> None:
    write_imagenet(tmp_path)
    listing = imagenet.list_images(tmp_path)
    assert listing.class_names == ("n01440764", "n01443537")
    assert listing.names[0] == "n01440764/n01440764_18.JPEG" and len(listing.names) == 4


def test_imagenet_closed_trains_on_train_and_tests_on_val_of_the_same_classes(
    tmp_path: Path,
) -> None:
    write_imagenet_closed(tmp_path)
    listing = imagenet_closed.list_images(tmp_path)
    assert listing.given_trainval == (0, 1)
    assert listing.class_names == tuple(
        f"{part}/{name}" for part in ("train", "val") for name in ("n01440764", "n01443537")
    )
    assert np.bincount(listing.labels).tolist() == [2, 2, 3, 3]
    for name, label in zip(listing.names, listing.labels, strict=True):
        assert name.startswith(f"{listing.class_names[label]}/")
    (gone,) = [i for i, n in enumerate(listing.names) if n == "val/n01440764/val_3.JPEG"]
    path = tmp_path / listing.names[gone]
    path.unlink()
    path.symlink_to("nowhere")
    assert imagenet_closed.list_images(tmp_path).missing == (gone,)
    (tmp_path / "val" / "n01443537").rename(tmp_path / "val" / "n02")
    with pytest.raises(ValueError, match="2 classes, as n01443537, are in one only of"):
        imagenet_closed.list_images(tmp_path)


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("images.txt", "1 a/b.jpg extra\n", "images.txt, line 1: expected image_id path, got"),
        ("images.txt", "one a/b.jpg\n", "images.txt, line 1: expected image_id path, got"),
        ("images.txt", "\n", "images.txt lists nothing"),
        ("images.txt", "7 a/b.jpg\n", "image 7 of .*images.txt has no class"),
        ("classes.txt", "1 one\n", "image 5 of .*images.txt has no class"),
    ],
)
def test_a_wrong_text_file_is_refused_with_its_line(
    tmp_path: Path, file: str, text: str, message: str
) -> None:
    write_cub(tmp_path)
    (tmp_path / file).write_text(text)
    with pytest.raises(ValueError, match=message):
        cub.list_images(tmp_path)
