"""The protocol of papers since 2022 from search to export, with a tiny network of its kind."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from conftest import folders_of, write_images

import harness
from harness.cli import main

# Shorter training on smaller images; all else is that of the protocol.
SMALL = "vit+crop=32+epochs=2+finalists=0+resize=32"


@pytest.mark.slow
def test_a_vision_transformer_goes_from_search_to_export(tmp_path: Path) -> None:
    write_images(tmp_path / "pictures")
    what = ["--dataset", f"folder:{tmp_path / 'pictures'}", "--cache-dir", str(tmp_path / "cache")]
    what += ["--trunk", "timm:test_vit:32", "--weights", "none", "--protocol", SMALL]
    how = ["--trials", "1", "--workers", "1", "--runs-dir", str(tmp_path / "runs")]
    assert main(["search", "--loss", "proxyanchor", *what, *how]) == 0
    again = ["--reproductions", "1", "--workers", "1", "--cache-dir", str(tmp_path / "cache")]
    assert main(["eval", *again, *folders_of(tmp_path)]) == 0
    (table,) = (tmp_path / "results" / SMALL).iterdir()
    header = (table / "leaderboard.csv").read_text().partition("\n")[0]
    assert {"map_at_r_concatenated", "recall_at_8_concatenated"} <= set(header.split(","))
    weights = table.name.partition("test_vit_32")[2]  # random ones are part of the trunk's name
    where = [*what[:4], "--protocol", SMALL, "--trunk", f"timm:test_vit:32{weights}"]
    output = str(tmp_path / "model")
    assert main(["export", "proxyanchor", *where, *folders_of(tmp_path), "-o", output]) == 0
    found = harness.load(output).embed(tmp_path / "pictures")
    assert found.shape == (80, 4 * 384)
    assert np.linalg.norm(found, axis=1) == pytest.approx(1, abs=1e-4)
