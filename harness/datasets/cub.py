"""CUB-200-2011 (Wah et al. 2011): 200 bird species, in the order of their ids."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from harness.datasets.dataset import Dataset, Listing, list_files, superclasses_of
from harness.datasets.locate import DatasetFiles, read_rows

SOURCE = DatasetFiles(
    name="cub",
    folders=("CUB_200_2011", "cub200", "cub"),
    expected="""
images/001.Black_footed_Albatross/Black_Footed_Albatross_0046_18.jpg and 11,787 more
images.txt              lines of: image id, path in images/
image_class_labels.txt  lines of: image id, class id
classes.txt             lines of: class id, class name
""",
    page="CUB_200_2011.tgz, https://www.vision.caltech.edu/datasets/cub_200_2011/",
)
FILES = {
    "images": ("images",),
    "images.txt": ("images.txt",),
    "image_class_labels.txt": ("image_class_labels.txt",),
    "classes.txt": ("classes.txt",),
}


def list_images(root: Path | None) -> Listing:
    files = SOURCE.find(root, FILES)
    images = read_rows(files["images.txt"], {"image_id": int, "path": str})
    class_of = dict(read_rows(files["image_class_labels.txt"], {"image_id": int, "class_id": int}))
    title_of = dict(read_rows(files["classes.txt"], {"class_id": int, "name": str}))
    unknown = [i for i, _ in images if class_of.get(i) not in title_of]
    if unknown:
        raise ValueError(
            f"image {unknown[0]} of {files['images.txt']} has no class: image_class_labels.txt and "
            "classes.txt must belong to it"
        )
    class_ids, labels = np.unique([class_of[i] for i, _ in images], return_inverse=True)
    class_names = [title_of[i] for i in class_ids]
    names = [path for _, path in images]
    return list_files(
        names,
        [f"{files['images']}/{name}" for name in names],
        labels,
        class_names,
        # The family is the last word: 001.Black_footed_Albatross is an Albatross.
        **superclasses_of([name.rsplit("_", 1)[-1] for name in class_names]),
    )


DATASETS = (
    Dataset(
        "cub",
        "CUB-200-2011: 200 bird species",
        list_images,
        expected={
            "images": 11788,
            "classes": 200,
            "train_classes": 100,
            "train_images": 5864,
            "test_images": 5924,
        },
    ),
)
