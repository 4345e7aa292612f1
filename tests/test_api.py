"""Python functions do what the commands do; notebooks show what they return."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_records import put_scores
from made_tables import put_table

import harness
from harness.cli import main
from harness.config import RunConfig
from harness.errors import HarnessError
from harness.searching.summary import SearchSummary


def files_of(results: Path) -> dict[str, str]:
    return {
        path.relative_to(results).as_posix(): path.read_text()
        for path in sorted(results.glob("*/*/leaderboard*"))
    }


def test_leaderboard_writes_the_files_of_the_command(tmp_path: Path) -> None:
    put_table(tmp_path, methods=("ms", "triplet"))
    (board,) = harness.leaderboard(results_dir=str(tmp_path))
    written = files_of(tmp_path)
    assert len(written) == 4 and set(board.frame["method"]) >= {"ms", "triplet"}
    assert main(["leaderboard", "--results-dir", str(tmp_path)]) == 0
    assert files_of(tmp_path) == written
    with pytest.raises(HarnessError, match="no such table in"):
        harness.leaderboard("cars", protocol="other", results_dir=str(tmp_path))


def test_merge_copies_records_and_writes_their_tables(tmp_path: Path) -> None:
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    put_scores(theirs, "ms", [0.5, 0.6])
    merged = harness.merge(theirs, results_dir=str(ours))
    assert (merged.copied, merged.known, merged.refused) == (2, 0, [])
    assert "ms" in next(text for name, text in files_of(ours).items() if name.endswith(".csv"))
    assert harness.merge(theirs, results_dir=str(ours)).known == 2


def test_write_report_writes_a_page(tmp_path: Path) -> None:
    put_table(tmp_path, methods=("ms", "triplet"))
    page = harness.write_report(output=tmp_path / "page.html", results_dir=str(tmp_path))
    assert page == tmp_path / "page.html" and "triplet" in page.read_text()


def test_a_notebook_shows_a_table_with_no_training_last(tmp_path: Path) -> None:
    put_scores(tmp_path, "ms", [0.25])
    put_scores(tmp_path, "pretrained", [0.5], kind="naive")
    (board,) = harness.leaderboard(results_dir=str(tmp_path), against="none")
    assert list(board.frame["method"]) == ["pretrained", "ms"]  # by score, as the CSV file
    for shown in (board._repr_html_(), (board.folder / "leaderboard.md").read_text()):
        assert shown.index("pretrained") > shown.index("ms")
        assert "25.00" in shown and "<script" not in shown


def test_a_notebook_shows_a_search_in_percent(folder_config: RunConfig) -> None:
    settings = {**folder_config.shown(), "trials": 1}
    summary = harness.search(**settings)
    assert isinstance(summary, SearchSummary)
    shown = summary._repr_html_()
    assert f"{summary.best_score:.2%}" in shown and "loss_lr" in shown


def test_models_of_a_row_embed_and_are_exported(folder_config: RunConfig, tmp_path: Path) -> None:
    settings = {**folder_config.shown(), "trials": 1, "reproductions": 1}
    harness.search(**settings)
    del settings["preset"]
    loss = settings.pop("loss")
    harness.evaluate(loss, **settings)
    arrays = harness.embed(loss, **settings)
    images, size = arrays["concatenated"].shape
    assert arrays["separated"].shape == (4, images, size // 4)
    assert len(arrays["labels"]) == len(arrays["files"]) == images
    exported = harness.export(loss, tmp_path / "model", **settings)
    assert max(exported.differences.values()) < 1e-5
    assert harness.load(tmp_path / "model").size == size
    with pytest.raises(HarnessError, match="no format named 'onx'"):
        harness.export(loss, tmp_path / "other", formats=["onx"], **settings)
