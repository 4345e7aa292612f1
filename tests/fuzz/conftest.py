"""Pictures that the fuzz tests of a file share."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import write_images


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("fuzz") / "pictures"
    write_images(root, num_classes=2, per_class=2)
    return root
