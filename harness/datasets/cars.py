"""Cars196 (Krause et al. 2013): 196 models of cars, in the order of their ids.

Its two layouts give the same images other names and another order. Within a class we order them by
what both layouts know, part and bounding box, so that an index is the same picture in both. One
pair of images shares even that, and may be swapped.
"""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.io import loadmat

from harness.datasets.dataset import Dataset, Listing, list_files, superclasses_of
from harness.datasets.locate import DatasetFiles

SOURCE = DatasetFiles(
    name="cars",
    folders=("cars196", "CARS196", "stanford_cars", "cars"),
    expected="""
car_ims/000001.jpg and 16,184 more
cars_annos.mat
  or, as the development kit has it (its .mat files here, in devkit/ or in car_devkit/devkit/):
cars_train/00001.jpg and 8,143 more
cars_test/00001.jpg and 8,040 more
cars_train_annos.mat
cars_test_annos_withlabels.mat  (cars_test_annos.mat has no classes)
cars_meta.mat
""",
    page=(
        "from others, for Stanford's page has been gone since 2023\n"
        "    images: https://www.kaggle.com/datasets/jessicali9530/stanford-cars-dataset\n"
        "    .mat files: https://github.com/pytorch/vision/issues/7545#issuecomment-1631441616"
    ),
)


def _in_devkit(name: str) -> tuple[str, ...]:
    return name, f"devkit/{name}", f"car_devkit/devkit/{name}"


ANNOS, TRAIN_ANNOS = "cars_annos.mat", "cars_train_annos.mat"
TEST_ANNOS, META = "cars_test_annos_withlabels.mat", "cars_meta.mat"
# Archives are often unpacked into a folder of their own name.
FLAT = {"car_ims": ("car_ims/car_ims", "car_ims"), ANNOS: _in_devkit(ANNOS)}
DEVKIT = {
    "cars_train": ("cars_train/cars_train", "cars_train"),
    "cars_test": ("cars_test/cars_test", "cars_test"),
    TRAIN_ANNOS: _in_devkit(TRAIN_ANNOS),
    TEST_ANNOS: _in_devkit(TEST_ANNOS),
    META: (*_in_devkit(META), *_in_devkit(ANNOS)),  # either has the names of the classes
}
COMPRESSED = 15  # type of an element of a MATLAB file
MOST_BYTES = 2**28  # of an element; the largest of Stanford's has 7 MB
BOX = ("bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2")


class Car(NamedTuple):
    """One annotated image; cars sort into the order of the listing."""

    class_id: int
    test: int
    box: tuple[int, ...]
    name: str
    path: str


def list_images(root: Path | None) -> Listing:
    files = SOURCE.find(root, FLAT, DEVKIT)
    if "car_ims" in files:
        cars = _cars(files[ANNOS], "relative_im_path", files["car_ims"])
        titles = _read(files[ANNOS], "class_names")
    else:
        cars = _cars(files[TRAIN_ANNOS], "fname", files["cars_train"], test=0)
        cars += _cars(files[TEST_ANNOS], "fname", files["cars_test"], test=1)
        titles = _read(files[META], "class_names")
    cars.sort()
    class_ids, labels = np.unique([car.class_id for car in cars], return_inverse=True)
    if class_ids[-1] > len(titles):
        raise ValueError(f"class {class_ids[-1]} has no name: the file has {len(titles)} names")
    class_names = [str(titles[class_id - 1]) for class_id in class_ids]
    return list_files(
        [car.name for car in cars],
        [car.path for car in cars],
        labels,
        class_names,
        # The make is the first word: AM General Hummer SUV 2000 is an AM.
        **superclasses_of([name.split()[0] for name in class_names]),
    )


def _cars(path: Path, key: str, folder: Path, test: int | None = None) -> list[Car]:
    """The images annotated in a file; `key` is its field of file names."""
    annotations = _read(path, "annotations")
    for field in (key, "class", *BOX, *(["test"] if test is None else [])):
        if field not in (annotations.dtype.names or ()):
            raise ValueError(f"{path}: its annotations have no '{field}'\n{SOURCE.advice()}")
    cars = []
    for row in annotations:
        file = str(row[key]).rsplit("/", 1)[-1]
        part = int(row["test"]) if test is None else test
        box = tuple(int(row[side]) for side in BOX)
        name = f"{folder.name}/{file}"
        cars.append(Car(int(row["class"]), part, box, name, f"{folder}/{file}"))
    return cars


def _read(path: Path, variable: str) -> Any:
    file = io.BytesIO(path.read_bytes())
    _check_sums(path, file.getvalue())
    try:
        content = loadmat(file, squeeze_me=True, variable_names=[variable])
    except Exception as error:  # scipy lets out whatever a damaged file makes it stumble over
        raise ValueError(f"{path} is no MATLAB file that can be read: {error}") from None
    if variable not in content:
        raise ValueError(f"{path} holds no '{variable}'\n{SOURCE.advice()}")
    return np.atleast_1d(content[variable])


def _check_sums(path: Path, content: bytes) -> None:
    """Refuse damage by the sums of the compressed variables: some of it would crash scipy."""
    if content[126:128] != b"IM":  # the only order of bytes that today's machines write
        raise ValueError(f"{path} is no file of MATLAB 5 to 7\n{SOURCE.advice()}")
    place = 128
    while place < len(content):
        kind, size = struct.unpack("<II", content[place : place + 8].ljust(8, b"\0"))
        if kind != COMPRESSED:
            raise ValueError(
                f"{path} is damaged, or its variables are not compressed as Stanford's are; then "
                "save it again: scipy.io.savemat(FILE, scipy.io.loadmat(FILE), do_compression=True)"
            )
        stream = zlib.decompressobj()
        try:
            stream.decompress(content[place + 8 : place + 8 + size], MOST_BYTES)
        except zlib.error as error:
            raise ValueError(f"{path} is damaged: {error}") from None
        if not stream.eof:
            raise ValueError(f"{path} is damaged: a variable is cut off")
        place += 8 + size


DATASETS = (
    Dataset(
        "cars",
        "Cars196: 196 models of cars",
        list_images,
        expected={
            "images": 16185,
            "classes": 196,
            "train_classes": 98,
            "train_images": 8054,
            "test_images": 8131,
        },
    ),
)
