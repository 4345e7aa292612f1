"""Small copies of the data sets that need files, in the formats of the real ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import write_images
from PIL import Image
from scipy.io import savemat

from harness import registry
from harness.datasets.dataset import Dataset, Listing

BIRDS = ("001.Black_footed_Albatross", "002.Laysan_Albatross", "003.Groove_billed_Ani")
CARS = ("AM General Hummer SUV 2000", "Acura RL Sedan 2012", "Acura TL Type-S 2008")
# Class id, whether in the test part, and a bounding box: one line per image of the small Cars.
CAR_IMAGES = (
    (1, 0, (30, 1, 40, 50)),
    (2, 1, (9, 9, 90, 91)),
    (1, 1, (4, 5, 60, 70)),
    (3, 0, (7, 7, 70, 70)),
    (2, 0, (9, 9, 90, 90)),
    (3, 1, (7, 7, 70, 70)),
)


def write_picture(path: Path, number: int = 0) -> None:
    """A picture of its own for every number."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(number).integers(0, 256, (12, 10, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


def write_pictures(folder: Path, names: Iterable[str]) -> None:
    for number, name in enumerate(names):
        write_picture(folder / name, number)


def write_cub(root: Path) -> None:
    """Three classes of two images; neither images nor classes stand in the order of their ids."""
    images = {i: f"{BIRDS[(i - 1) // 2]}/Bird_{i}.jpg" for i in (5, 1, 2, 3, 4, 6)}
    write_pictures(root / "images", images.values())
    (root / "images.txt").write_text("".join(f"{i} {name}\n" for i, name in images.items()))
    (root / "image_class_labels.txt").write_text(
        "".join(f"{i} {(i - 1) // 2 + 1}\n" for i in range(1, 7))
    )
    lines = [f"{number} {bird}\n" for number, bird in enumerate(BIRDS, start=1)]
    (root / "classes.txt").write_text("".join(reversed(lines)))


def write_cars(root: Path) -> None:
    """car_ims/ and cars_annos.mat."""
    files = [f"{number:06d}.jpg" for number in range(1, len(CAR_IMAGES) + 1)]
    for number, file in enumerate(files):
        write_picture(root / "car_ims" / file, number)
    values = [
        (f"car_ims/{file}", box, class_id, test)
        for file, (class_id, test, box) in zip(files, CAR_IMAGES, strict=True)
    ]
    annotations = _matlab_structs("relative_im_path", values, with_test=True)
    savemat(
        root / "cars_annos.mat",
        {"annotations": annotations, "class_names": _matlab_cell(CARS)},
        do_compression=True,
    )


def write_devkit_cars(root: Path, folder: str = "devkit") -> None:
    """cars_train/, cars_test/ and the .mat files of the development kit; another order."""
    devkit = root / folder
    devkit.mkdir(parents=True, exist_ok=True)
    for test, part, file in (
        (0, "cars_train", "cars_train_annos.mat"),
        (1, "cars_test", "cars_test_annos_withlabels.mat"),
    ):
        values = []
        for number, (class_id, is_test, box) in reversed(list(enumerate(CAR_IMAGES))):
            if is_test == test:
                name = f"{len(values) + 1:05d}.jpg"
                write_picture(root / part / name, number)
                values.append((name, box, class_id, test))
        savemat(
            devkit / file, {"annotations": _matlab_structs("fname", values)}, do_compression=True
        )
    savemat(devkit / "cars_meta.mat", {"class_names": _matlab_cell(CARS)}, do_compression=True)


def _matlab_cell(texts: Iterable[str]) -> np.ndarray:
    return np.array([list(texts)], dtype=object)


def _matlab_structs(key: str, values: list[tuple], with_test: bool = False) -> np.ndarray:
    """(1, n) struct array with the fields of the real files."""
    box_fields = ["bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2"]
    fields = [key, *box_fields, "class", *(["test"] if with_test else [])]
    structs = np.empty((1, len(values)), dtype=[(field, object) for field in fields])
    for column, (name, box, class_id, test) in enumerate(values):
        row = (name, *(np.uint16(side) for side in box), np.uint8(class_id), np.uint8(test))
        structs[0, column] = row[: len(fields)]
    return structs


def write_sop(root: Path) -> None:
    """Classes 1 and 2 for training, 3 and 4 for the test; two kinds of products."""
    kinds = {1: ("bicycle", 1), 2: ("sofa", 2), 3: ("bicycle", 1), 4: ("sofa", 2)}
    number = 0
    for file, class_ids in (("Ebay_train.txt", (1, 2)), ("Ebay_test.txt", (3, 4))):
        lines = ["image_id class_id super_class_id path"]
        for class_id in class_ids:
            kind, super_id = kinds[class_id]
            for view in range(2):
                number += 1
                name = f"{kind}_final/{class_id}_{view}.JPG"
                write_picture(root / name, number)
                lines.append(f"{number} {class_id} {super_id} {name}")
        (root / file).write_text("\n".join(lines) + "\n")


IN_SHOP = (
    ("img/WOMEN/Dresses/id_00000002/02_1_front.jpg", "id_00000002", "train"),
    ("img/WOMEN/Dresses/id_00000002/02_2_side.jpg", "id_00000002", "train"),
    ("img/MEN/Shorts/id_00000001/01_1_front.jpg", "id_00000001", "query"),
    ("img/MEN/Shorts/id_00000001/01_2_side.jpg", "id_00000001", "gallery"),
    ("img/MEN/Shorts/id_00000003/01_1_front.jpg", "id_00000003", "gallery"),
    ("img/MEN/Shorts/id_00000003/01_2_side.jpg", "id_00000003", "query"),
)


def write_inshop(root: Path, rows: Iterable[tuple[str, str, str]] = IN_SHOP) -> None:
    rows = list(rows)
    write_pictures(root, (name for name, _, _ in rows))
    lines = [str(len(rows)), "image_name item_id evaluation_status"]
    lines += [f"{name:<70} {item} {role}" for name, item, role in rows]
    (root / "Eval").mkdir(exist_ok=True)
    (root / "Eval" / "list_eval_partition.txt").write_text("\n".join(lines) + "\n")


SPECIES = {
    "train": ("train_val2018/Plantae/10/a.jpg", "train_val2018/Aves/9/b.jpg"),
    "test": ("train_val2018/Aves/2/c.jpg", "train_val2018/Plantae/11/d.jpg"),
}


def write_inaturalist(root: Path, species: Mapping[str, Sequence[str]] = SPECIES) -> None:
    write_pictures(root, (name for names in species.values() for name in names))
    for part, names in species.items():
        path = root / "Inat_dataset_splits" / f"Inaturalist_{part}_set1.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(f"{name}\n" for name in names))


def write_inaturalist_json(root: Path) -> None:
    """One list plain, the other in the form of the data set's own annotations."""
    write_pictures(root, (name for names in SPECIES.values() for name in names))
    (root / "Inaturalist_train_set1.json").write_text(json.dumps(SPECIES["train"]))
    images = [{"id": number, "file_name": name} for number, name in enumerate(SPECIES["test"])]
    (root / "Inaturalist_test_set1.json").write_text(json.dumps({"images": images}))


def write_imagenet(root: Path) -> None:
    for wordnet_id in ("n01443537", "n01440764"):
        write_pictures(root / "train" / wordnet_id, (f"{wordnet_id}_{i}.JPEG" for i in (18, 2)))
    write_picture(root / "val" / "ILSVRC2012_val_00000001.JPEG")


def write_imagenet_closed(root: Path) -> None:
    for part, numbers in (("train", (18, 2)), ("val", (1, 3, 5))):
        for wordnet_id in ("n01443537", "n01440764"):
            write_pictures(root / part / wordnet_id, (f"{part}_{i}.JPEG" for i in numbers))


def write_folder(root: Path) -> None:
    write_images(root)


# How a data set gets a small copy of its files, by its name: the functions write_NAME above.
WRITERS: dict[str, Callable[[Path], None]] = {
    name: globals()[f"write_{name}"]
    for name in registry.names("dataset")
    if f"write_{name}" in globals()
}


def publish(monkeypatch: pytest.MonkeyPatch, name: str, **expected: int) -> None:
    """Let a data set have published counts that fit its small copy."""
    dataset = replace(registry.load_dataset(name)[0], expected=expected)
    monkeypatch.setattr(registry, "load_dataset", lambda spec: (dataset, None))


def without_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every data set has forty classes of two images, and no files."""
    listing = Listing(
        names=tuple(f"{i}.jpg" for i in range(80)),
        labels=np.repeat(np.arange(40), 2),
        class_names=tuple(map(str, range(40))),
        read=lambda index: b"",
        stamp=lambda index: "",
        official_trainval=tuple(range(20)),
        superclasses=np.arange(40) // 4,
    )
    monkeypatch.setattr(registry, "list_images", lambda dataset, path, root: listing)
    load = registry.load_dataset

    def load_without_counts(name: str) -> tuple[Dataset, Path | None]:
        dataset, path = load(name)
        return replace(dataset, expected={}), path

    monkeypatch.setattr(registry, "load_dataset", load_without_counts)
