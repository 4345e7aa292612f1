"""The tutorial runs from its first cell to a verdict."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from conftest import QUICK
from documents import ROOT
from nbclient import NotebookClient


@pytest.mark.slow
def test_the_tutorial_ends_with_a_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("TRIALS", "1"), ("REPRODUCTIONS", "1"), ("PROTOCOL", QUICK)):
        monkeypatch.setenv(f"TUTORIAL_{name}", value)
    notebook = nbformat.read(ROOT / "examples" / "tutorial.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "commit it without outputs"
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = {
        kind: text
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        for kind, text in output.get("data", {}).items()
    }
    assert "my_loss@" in shown["text/markdown"] and "my_loss@" in shown["text/html"]
    assert "image/png" in shown  # the curves of the best trial
