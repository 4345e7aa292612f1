"""Stanford Online Products (Song et al. 2016): 22,634 products, in the order of their ids.

It comes split into 11,318 and 11,316 classes, which the reality check cuts into halves instead: a
protocol says which it takes. The superclasses are the twelve kinds of products.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from harness.datasets.dataset import Dataset, Listing, list_files, superclasses_of
from harness.datasets.locate import DatasetFiles, read_rows

SOURCE = DatasetFiles(
    name="sop",
    folders=("Stanford_Online_Products", "online_products", "sop"),
    expected="""
bicycle_final/111085122871_0.JPG and 120,052 more, in twelve folders
Ebay_train.txt  a heading, then lines of: image id, class id, superclass id, path
Ebay_test.txt   likewise
""",
    page="Stanford_Online_Products.zip, https://cvgl.stanford.edu/projects/lifted_struct/",
)
FILES = {"Ebay_train.txt": ("Ebay_train.txt",), "Ebay_test.txt": ("Ebay_test.txt",)}
COLUMNS = {"image_id": int, "class_id": int, "super_class_id": int, "path": str}


def list_images(root: Path | None) -> Listing:
    files = SOURCE.find(root, FILES)
    parts = {name: read_rows(path, COLUMNS, skip=1) for name, path in files.items()}
    rows = [row for part in parts.values() for row in part]
    class_ids = [row[1] for row in rows]
    ids, first, labels = np.unique(class_ids, return_index=True, return_inverse=True)
    names = [row[3] for row in rows]
    folder = files["Ebay_train.txt"].parent
    train, test = ({row[1] for row in part} for part in parts.values())
    both = sorted(train & test)
    if both:
        raise ValueError(f"{folder}: class {both[0]} is in Ebay_train.txt and in Ebay_test.txt")
    products = [names[i].split("_final/")[0] for i in first]
    return list_files(
        names,
        [f"{folder}/{name}" for name in names],
        labels,
        [f"{product} {class_ids[i]}" for product, i in zip(products, first, strict=True)],
        **superclasses_of([rows[i][2] for i in first], products),
        official_trainval=tuple(np.flatnonzero(np.isin(ids, list(train))).tolist()),
    )


DATASETS = (
    Dataset(
        "sop",
        "Stanford Online Products: 22,634 products of twelve kinds",
        list_images,
        expected={
            "images": 120053,
            "classes": 22634,
            "train_classes": 11318,
            "train_images": 59551,
            "test_images": 60502,
        },
    ),
)
