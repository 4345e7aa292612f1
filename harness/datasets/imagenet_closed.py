"""ImageNet as the DRML paper tests on it: training and validation images of the same classes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from harness.datasets import imagenet
from harness.datasets.dataset import Dataset, Listing, list_files
from harness.datasets.folder import list_class_folders

SOURCE = replace(
    imagenet.SOURCE,
    name="imagenet_closed",
    expected="""
train/n01440764/n01440764_18.JPEG and 1,281,166 more, in 1,000 folders
val/n01440764/ILSVRC2012_val_00000293.JPEG and 49,999 more, in folders of the same names
(both also found in Data/CLS-LOC/ and ILSVRC/Data/CLS-LOC/)
""",
    page="ILSVRC2012_img_train.tar and ILSVRC2012_img_val.tar, "
    "https://www.image-net.org/download.php (after registration)",
)
PARTS = ("train", "val")
FILES = {part: (part, f"Data/CLS-LOC/{part}", f"ILSVRC/Data/CLS-LOC/{part}") for part in PARTS}


def list_images(root: Path | None) -> Listing:
    """A class counts twice: once for training and once, with other images, for the test."""
    files = SOURCE.find(root, FILES)
    train, test = (list_class_folders(files[part]) for part in PARTS)
    alone = sorted(set(train.class_names) ^ set(test.class_names))
    if alone:
        raise ValueError(
            f"{len(alone)} classes, as {alone[0]}, are in one only of {files['train']} and "
            f"{files['val']}\n{SOURCE.advice()}"
        )
    by_part = {"train": train, "val": test}
    return list_files(
        [f"{part}/{name}" for part, one in by_part.items() for name in one.names],
        [f"{files[part]}/{name}" for part, one in by_part.items() for name in one.names],
        np.concatenate([train.labels, train.num_classes + test.labels]),
        [f"{part}/{name}" for part, one in by_part.items() for name in one.class_names],
        missing=(*train.missing, *(len(train.names) + i for i in test.missing)),
        given_trainval=tuple(range(train.num_classes)),
    )


DATASETS = (
    Dataset(
        "imagenet_closed",
        "ImageNet, tested on other images of the classes that it trains on",
        list_images,
        expected={
            "images": 1331167,
            "classes": 2000,
            "train_classes": 1000,
            "train_images": 1281167,
            "test_images": 50000,
        },
        closed=True,
    ),
)
