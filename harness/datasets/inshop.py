"""In-Shop Clothes Retrieval (Liu et al. 2016): 7,982 garments, with queries and a gallery."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from harness.datasets.dataset import Dataset, Listing, list_files
from harness.datasets.locate import DatasetFiles, read_rows

SOURCE = DatasetFiles(
    name="inshop",
    folders=(
        "In-shop Clothes Retrieval Benchmark",
        "In-shop_Clothes_Retrieval_Benchmark",
        "inshop",
    ),
    expected="""
img/WOMEN/Dresses/id_00000002/02_1_front.jpg and 52,711 more (Img/img/ too)
Eval/list_eval_partition.txt (Anno/ or beside img/ too)
  a count and a heading, then lines of: path from img/ on, item id, one of train, query, gallery
""",
    page=(
        "DeepFashion, In-shop Clothes Retrieval Benchmark, "
        "https://mmlab.ie.cuhk.edu.hk/projects/DeepFashion/InShopRetrieval.html"
    ),
)
PARTITION = "list_eval_partition.txt"
FILES = {
    "img": ("img", "Img/img"),
    PARTITION: (f"Eval/{PARTITION}", f"Anno/{PARTITION}", PARTITION),
}
COLUMNS = {"image_name": str, "item_id": str, "evaluation_status": str}
ROLES = {"train", "query", "gallery"}


def list_images(root: Path | None) -> Listing:
    """Classes are ordered by item id; those for training lie between those for testing."""
    files = SOURCE.find(root, FILES)
    rows = read_rows(files[PARTITION], COLUMNS, skip=2)
    names, items, roles = (np.array(column) for column in zip(*rows, strict=True))
    wrong = sorted(set(roles.tolist()) - ROLES)
    if wrong:
        raise ValueError(f"{files[PARTITION]}: a role is train, query or gallery, not '{wrong[0]}'")
    item_ids, labels = np.unique(items, return_inverse=True)
    train, test = np.unique(labels[roles == "train"]), np.unique(labels[roles != "train"])
    both = np.intersect1d(train, test)
    if len(both):
        raise ValueError(
            f"{files[PARTITION]}: item {item_ids[both[0]]} is in training and in the test"
        )
    return list_files(
        names.tolist(),
        [f"{files['img'].parent}/{name}" for name in names],
        labels,
        item_ids.tolist(),
        given_trainval=tuple(train.tolist()),
        queries=roles == "query",
    )


DATASETS = (
    Dataset(
        "inshop",
        "In-Shop: 7,982 garments, queries against a gallery",
        list_images,
        expected={
            "images": 52712,
            "classes": 7982,
            "train_classes": 3997,
            "train_images": 25882,
            "test_images": 26830,
            "query_images": 14218,
            "gallery_images": 12612,
        },
    ),
)
