"""Images in folders, by their names."""

from __future__ import annotations

import os
from pathlib import Path

from harness.datasets.dataset import is_image_name

# What systems leave in folders: such are neither classes nor images.
HIDDEN = (".", "__MACOSX", "@eaDir")


def images_and_folders(folder: Path) -> tuple[dict[str, bool], list[str]]:
    """The images in a folder, each with whether its file is there, and the folders in it."""
    with os.scandir(folder) as entries:
        shown = [entry for entry in entries if not entry.name.startswith(HIDDEN)]
    shown.sort(key=lambda entry: entry.name)
    folders = [entry.name for entry in shown if entry.is_dir()]
    images = {e.name: e.is_file() for e in shown if not e.is_dir() and is_image_name(e.name)}
    return images, folders


def images_below(root: Path, folder: str = "") -> list[str]:
    """Names of all images in a folder of `root` and in the folders within it, first its own."""
    images, deeper = images_and_folders(root / folder)
    within = f"{folder}/" if folder else ""
    below = [name for one in deeper for name in images_below(root, f"{within}{one}")]
    return [*(f"{within}{image}" for image in images), *below]
