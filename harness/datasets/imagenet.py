"""ImageNet (ILSVRC 2012): 1,000 classes, in the order of their WordNet ids.

Only train/ is listed: with classes of their own for the test, its validation images are not needed.
"""

from __future__ import annotations

from pathlib import Path

from harness.datasets.dataset import Dataset, Listing
from harness.datasets.folder import list_class_folders
from harness.datasets.locate import DatasetFiles

SOURCE = DatasetFiles(
    name="imagenet",
    folders=("imagenet", "ImageNet", "ILSVRC2012", "ILSVRC"),
    expected="""
train/n01440764/n01440764_18.JPEG and 1,281,166 more, in 1,000 folders
(also found as Data/CLS-LOC/train/ and ILSVRC/Data/CLS-LOC/train/)
""",
    page="ILSVRC2012_img_train.tar, https://www.image-net.org/download.php (after registration)",
)
FILES = {"train": ("train", "Data/CLS-LOC/train", "ILSVRC/Data/CLS-LOC/train")}


def list_images(root: Path | None) -> Listing:
    return list_class_folders(SOURCE.find(root, FILES)["train"])


DATASETS = (
    Dataset(
        "imagenet",
        "ImageNet (ILSVRC 2012): 1,000 classes, their training images",
        list_images,
        expected={"images": 1281167, "classes": 1000, "train_classes": 500},
    ),
)
