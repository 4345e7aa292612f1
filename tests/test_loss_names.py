"""A loss of one's own is found by its name, its file and its version."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import registry
from harness.cli.options import read_given, rows_named
from harness.errors import HarnessError
from harness.searching.found import _method_names

FILE = """
from pytorch_metric_learning.losses import ContrastiveLoss

class MyLoss(ContrastiveLoss):
    pass
"""
OTHER = "my_loss@00000000"


@pytest.fixture
def version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The full name of my_loss.py, which is in the current folder."""
    (tmp_path / "my_loss.py").write_text(FILE)
    (tmp_path / "triplet.py").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    return registry.full_name("my_loss.py")


def test_every_spelling_means_the_file_in_this_folder(version: str) -> None:
    for name in ("my_loss", "my_loss.py", version):
        assert read_given({"loss": [name]}).losses == ["my_loss.py"]
        assert rows_named([name], {version, OTHER, "ms"} if "." in name else {version}) == (
            version,
        )
    assert read_given({"loss": [OTHER, "ms", "triplet"]}).losses == [OTHER, "ms", "triplet"]


def test_without_the_file_its_rows_and_searches_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("my_loss", "my_loss.py", OTHER):
        assert rows_named([name], {OTHER, "my_loss_2@11111111", "ms"}) == (OTHER,)
        assert _method_names({name}, {OTHER, "my_loss_2@11111111", "ms"}) == {OTHER: name}
    with pytest.raises(HarnessError, match="which version of my_loss"):
        rows_named(["my_loss"], {OTHER, "my_loss@11111111"})
