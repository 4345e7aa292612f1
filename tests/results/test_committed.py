"""The committed tables are what their records say."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.experiment import Experiment
from harness.results import leaderboard, rendering
from harness.system.files import read_json

ROOT = Path(__file__).parents[2]
TABLES = sorted(path.parent for path in (ROOT / "results").glob("*/*/leaderboard.csv"))


def test_there_is_a_table_on_glyphs() -> None:
    assert ROOT / "results" / "mlrc" / "glyphs-convnet" in TABLES


@pytest.mark.parametrize("table", TABLES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_the_committed_table_is_current(table: Path) -> None:
    board = leaderboard.build(table)
    assert board.problems == []
    assert board.frame.to_csv(index=False) == (table / "leaderboard.csv").read_text()
    assert rendering.to_markdown(board.frame) == (table / "leaderboard.md").read_text()
    assert rendering.to_latex(board.frame) == (table / "leaderboard.tex").read_text()
    described = rendering.describe_columns(board.frame)
    assert described == (table / "leaderboard_columns.md").read_text()


@pytest.mark.parametrize("table", TABLES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_records_come_from_committed_code_and_name_no_folder_of_a_machine(table: Path) -> None:
    for path in table.glob("records/*/*.json"):
        provenance = read_json(path)["provenance"]
        assert provenance["commit"] and provenance["clean"], path
        assert "/home/" not in path.read_text() and "/tmp/" not in path.read_text(), path
        assert not re.search(r'["\s=:]/\w', path.read_text()), path


@pytest.mark.parametrize("table", TABLES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_the_readme_shows_the_committed_table(table: Path) -> None:
    lines = (table / "leaderboard.md").read_text().splitlines()
    rows = [line for line in lines if line.startswith("|")]
    assert len(rows) > 4
    assert "\n".join(rows) in (ROOT / "README.md").read_text()


def test_a_run_of_today_has_the_identity_of_a_committed_record(
    make_experiment: Callable[..., Experiment],
) -> None:
    folder = ROOT / "results" / "mlrc" / "glyphs-convnet" / "records" / "proxyanchor"
    record = read_json(next(folder.glob("*.json")))
    identity = json.loads(json.dumps(make_experiment(protocol="mlrc").identity()))
    # Glyphs are rendered by the installed matplotlib and Pillow, which may differ.
    assert identity | {"data_fingerprint": ""} == record["identity"] | {"data_fingerprint": ""}
