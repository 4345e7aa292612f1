"""iNaturalist 2018 (Van Horn et al. 2018): 8,142 species, in the order of their ids.

The split by classes is that of Brown et al. 2020 (Smooth-AP), two lists of images. Superclasses
are the taxonomic classes (Aves, Insecta, ...) if the file of categories is there, else the
super-categories, which are folders: Plantae, Aves, ...
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from harness.datasets.dataset import Dataset, Listing, list_files, superclasses_of
from harness.datasets.locate import DatasetFiles

SOURCE = DatasetFiles(
    name="inaturalist",
    folders=("inaturalist", "Inaturalist", "iNaturalist2018", "inat2018"),
    expected="""
train_val2018/<super-category>/<category id>/<image>.jpg, 461,939 of them
Inat_dataset_splits/Inaturalist_train_set1.txt  (beside train_val2018/ too)
Inat_dataset_splits/Inaturalist_test_set1.txt
  one path per line, from train_val2018/ on; no category is in both. Or the same as .json:
  a list of paths, or the set's own form {"images": [{"file_name": path}, ...]}
train2018.json or categories.json  optional: the class of each category, for HPL's hierarchy
""",
    page=(
        "train_val2018.tar.gz, https://github.com/visipedia/inat_comp/tree/master/2018; the lists "
        "with Smooth-AP, https://www.robots.ox.ac.uk/~vgg/research/smooth-ap/"
    ),
)


def _places(part: str) -> tuple[str, ...]:
    files = (f"Inaturalist_{part}_set1.txt", f"Inaturalist_{part}_set1.json")
    return tuple(f"{folder}{file}" for folder in ("Inat_dataset_splits/", "") for file in files)


IMAGES = "train_val2018"
TRAIN, TEST = "Inaturalist_train_set1.txt", "Inaturalist_test_set1.txt"
FILES = {IMAGES: (IMAGES,), TRAIN: _places("train"), TEST: _places("test")}
CATEGORIES = "categories"
TAXONOMY = {**FILES, CATEGORIES: ("categories.json", "train2018.json")}


def list_images(root: Path | None) -> Listing:
    files = SOURCE.find(root, TAXONOMY, FILES)
    parts = [_read_paths(files[name]) for name in (TRAIN, TEST)]
    names = [path for part in parts for path in part]
    categories = np.array([int(path.split("/")[2]) for path in names])
    _, first, labels = np.unique(categories, return_index=True, return_inverse=True)
    train, test = np.unique(labels[: len(parts[0])]), np.unique(labels[len(parts[0]) :])
    both = np.intersect1d(train, test)
    if len(both):
        raise ValueError(
            f"category {categories[first[both[0]]]} is in {files[TRAIN]} and in {files[TEST]}; "
            "training and test must share none"
        )
    return list_files(
        names,
        [f"{files[IMAGES].parent}/{name}" for name in names],
        labels,
        ["/".join(names[i].split("/")[1:3]) for i in first],
        **superclasses_of(_groups(files.get(CATEGORIES), names, categories, first)),
        given_trainval=tuple(train.tolist()),
    )


def _groups(
    path: Path | None, names: Sequence[str], categories: np.ndarray, first: np.ndarray
) -> list[str]:
    """The taxonomic class of each category, or its super-category where no file says the class."""
    folders = [names[i].split("/")[1] for i in first]
    if path is None:
        return folders
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        entries = content["categories"] if isinstance(content, dict) else content
        taxon = {int(entry["id"]): entry.get("class") for entry in entries}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(
            f'{path} is no list of categories, as [{{"id": 1, "class": "Aves"}}, ...]'
        ) from None
    found = [taxon.get(int(categories[i])) for i in first]
    if not any(found):  # as the set was published at first, with names hidden
        return folders
    if not all(found):
        lacking = int(categories[first[found.index(None)]])
        raise ValueError(f"{path}: category {lacking} has no class, others have")
    return [str(name) for name in found]


def _read_paths(path: Path) -> list[str]:
    """Image paths in a list, `train_val2018/<super-category>/<category id>/<file>` each."""
    try:
        if path.suffix == ".json":
            content = json.loads(path.read_text(encoding="utf-8"))
            entries = content["images"] if isinstance(content, dict) else content
            paths = [entry if isinstance(entry, str) else entry["file_name"] for entry in entries]
        else:
            paths = path.read_text(encoding="utf-8").split()
        if not all(isinstance(entry, str) for entry in paths):
            raise TypeError
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{path} is no list of image paths\n{SOURCE.advice()}") from None
    for entry in paths:
        parts = entry.split("/")
        if len(parts) != 4 or parts[0] != IMAGES or not parts[2].isdigit():
            raise ValueError(
                f"{path}: expected {IMAGES}/<super-category>/<category id>/<image>, got {entry!r}"
            )
    if not paths:
        raise ValueError(f"{path} lists no images")
    return paths


DATASETS = (
    Dataset(
        "inaturalist",
        "iNaturalist 2018: 8,142 species",
        list_images,
        expected={
            "images": 461939,
            "classes": 8142,
            "train_classes": 5690,
            "train_images": 325846,
            "test_images": 136093,
        },
    ),
)
