"""Any folder of class folders, in the order of their names: `--dataset folder:PATH`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from harness.datasets.listing import Dataset, Listing

LAYOUT = "PATH/<class name>/<image>, one folder per class"


def list_images(root: Path | None) -> Listing:
    if root is None:
        raise ValueError(f"data set 'folder' needs a path: --dataset folder:PATH\n  {LAYOUT}")
    if not root.is_dir():
        raise ValueError(f"no folder at {root}\n  expected: {LAYOUT}")
    Image.init()  # so that the extensions of all formats are known
    found: dict[str, list[Path]] = {}
    for folder in sorted(path for path in root.iterdir() if path.is_dir()):
        images = [p for p in folder.iterdir() if p.suffix.lower() in Image.EXTENSION]
        if images:
            found[folder.name] = sorted(images)
    if not found:
        raise ValueError(f"no images in the folders of {root}\n  expected: {LAYOUT}")
    paths = [path for images in found.values() for path in images]
    counts = [len(images) for images in found.values()]

    def stamp(index: int) -> str:
        status = paths[index].stat()
        return f"{status.st_size}:{status.st_mtime_ns}"

    return Listing(
        names=tuple(path.relative_to(root).as_posix() for path in paths),
        labels=np.repeat(np.arange(len(found)), counts),
        class_names=tuple(found),
        read=lambda index: paths[index].read_bytes(),
        stamp=stamp,
    )


DATASETS = (Dataset("folder", "your images: a folder of class folders, folder:PATH", list_images),)
