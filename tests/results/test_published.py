"""The papers' numbers: complete, printable, and beside ours only where the protocols agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from made_records import make_record, put, put_scores

from harness import registry
from harness.cli import main
from harness.results.published import COLUMNS, PAPERS, beside, find_folder, read, tables_of

FOLDER = Path(__file__).parents[2] / "results" / "published"
TABLES = [path for path in sorted(FOLDER.glob("*.csv")) if "source" in read(path)]
# MLRC, contrastive on CUB, concatenated: P@1 68.13, RP 37.24, MAP@R 26.53; DRML prints 67.2 ± 0.5.
TEN = [0.25 + 0.002 * i for i in range(10)]


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_every_row_has_source_table_and_protocol_variant(path: Path) -> None:
    rows = read(path)
    for column in ("source", "paper", "table", "protocol_variant"):
        assert (rows[column] != "").all(), column
    assert set(rows["paper"]) <= set(PAPERS)
    if "value" in rows:
        assert rows["value"].astype(float).gt(0).all()


def test_every_column_is_described() -> None:
    text = (FOLDER / "README.md").read_text()
    described = text[: text.index("`trunk` ... `reproductions`")]
    for path in TABLES:
        assert f"`{path.name}`" in text
        for column in read(path):
            assert f"`{column}`" in described, (path, column)


def test_every_variant_and_method_of_the_scores_is_known() -> None:
    scores = read(FOLDER / "reality_check_tables.csv")
    methods = read(FOLDER / "methods.csv")
    assert set(scores["protocol_variant"]) <= set(
        read(FOLDER / "protocol_variants.csv")["protocol_variant"]
    )
    assert set(scores["method"]) == set(methods["method"])
    for loss in set(methods["loss"]) - {""}:
        assert registry.load_method(loss).name == loss


def test_variants_are_those_of_our_protocols() -> None:
    """Our own `mlrc`, `mlrc-ccp` and `mlrc-hpl` state the same settings as the papers' rows."""
    for variant in read(FOLDER / "protocol_variants.csv").to_dict("records"):
        if variant["protocol_variant"] == "mlrc-drml":
            continue
        protocol = registry.load_protocol(variant["protocol_variant"], "cub").identity()
        for name in ("trunk", "optimizer", "folds"):
            assert protocol[name] == variant[name]
        for name in ("lr", "weight_decay", "batch_size", "embedding_size"):
            assert protocol[name] == float(variant[name])
        assert str(protocol["clip_norm"] or "none") in (variant["clip_norm"], "10.0")


def test_known_numbers_stand_in_the_tables() -> None:
    tables = dict(tables_of(FOLDER, "mlrc", "cub"))
    (table,) = [rows for title, rows in tables.items() if title.startswith("cub: MLRC")]
    row = table.set_index("method").loc["Contrastive"]
    assert (row["P@1 512"], row["RP 512"], row["MAP@R 512"]) == ("68.13", "37.24", "26.53")


@pytest.mark.parametrize("paper", PAPERS)
def test_every_value_of_a_paper_is_printed(paper: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tables", paper, "--results-dir", str(FOLDER.parent)]) == 0
    text = capsys.readouterr().out
    rows = pd.concat([read(p) for p in TABLES if "value" in read(p)])
    values = rows.loc[rows["paper"] == paper, "value"]
    assert len(values) > 10
    missing = [value for value in values if value not in text]
    assert missing == []


def beside_ours(results: Path, **changes: Any) -> Any:
    table = put_scores(results, "contrastive", TEN, **changes)
    return beside(table, FOLDER)


def test_ours_stands_beside_the_published_value_where_protocols_agree(tmp_path: Path) -> None:
    found = beside_ours(tmp_path)
    assert list(found.rows.columns) == list(COLUMNS)
    rows = found.rows.set_index(["protocol_variant", "embedding", "metric"])
    row = rows.loc[("mlrc", "concatenated", "map_at_r")]
    assert row["published"] == 26.53 and np.isnan(row["published_ci95"])
    assert row["ours"] == pytest.approx(25.9)
    assert row["difference"] == pytest.approx(25.9 - 26.53)
    assert row["difference_ci95"] == row["ours_ci95"]  # the source gives no interval
    theirs = rows.loc[("mlrc-drml", "concatenated", "p_at_1")]
    assert theirs["published_ci95"] > 0
    expected = (theirs["ours_ci95"] ** 2 + theirs["published_ci95"] ** 2) ** 0.5
    assert theirs["difference_ci95"] == pytest.approx(expected)
    assert found.differences == []


def test_what_differs_is_named_instead_of_compared(tmp_path: Path) -> None:
    record = make_record()
    protocol = {**record.identity["protocol"], "trunk": "convnet", "optimizer": "adam", "lr": 3e-3}
    found = beside_ours(tmp_path, protocol=protocol, trunk="convnet")
    assert found.rows.empty
    (first, *_) = [text for text in found.differences if "with mlrc:" in text]
    assert first == (
        "contrastive not compared with mlrc: trunk convnet here, bninception there; "
        "optimizer adam here, rmsprop there; lr 0.003 here, 1e-6 there"
    )


def test_fewer_trials_or_reproductions_are_a_difference(tmp_path: Path) -> None:
    search = {**make_record().search, "trials": 10}
    for repetition in (1, 2):
        path = put(tmp_path, make_record("contrastive", repetition, 0.2, search=search))
    found = beside(path.parent.parent.parent, FOLDER)
    assert "10 trials here, 50 there; 2 reproductions here, 10 there" in found.differences[0]
    assert set(found.rows["protocol_variant"]) == {"mlrc-drml"}  # which states neither


def test_the_ccp_paper_is_met_by_its_own_protocol_alone(tmp_path: Path) -> None:
    changes = {
        "name": "mlrc-ccp",
        "optimizer": "adam",
        "lr": 1e-5,
        "folds": "ccp",
        "clip_norm": 10.0,
    }
    protocol = {**make_record().identity["protocol"], **changes}
    table = put_scores(tmp_path, "ccp-c2", TEN, protocol=protocol)
    found = beside(table, FOLDER)
    assert set(found.rows["protocol_variant"]) == {"mlrc-ccp"} and len(found.rows) == 6
    mlrc = put_scores(tmp_path, "ccp-c2", TEN)
    assert beside(mlrc, FOLDER).rows.empty


def test_a_data_set_without_published_numbers_says_so(tmp_path: Path) -> None:
    found = beside_ours(tmp_path, dataset="glyphs")
    assert found.rows.empty and found.differences == ["no paper has numbers on glyphs"]


def test_the_command_prints_and_writes_both(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = put_scores(tmp_path, "contrastive", TEN)
    assert main(["leaderboard", "--results-dir", str(tmp_path), "--published"]) == 0
    assert "Ours and published, in percent" in capsys.readouterr().out
    frame = pd.read_csv(table / "published.csv")
    assert list(frame.columns) == list(COLUMNS) and frame["published"].dtype == np.float64


def test_numbers_are_found_in_the_package_and_missing_ones_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert find_folder(tmp_path).resolve() == FOLDER
    monkeypatch.setattr("harness.results.published.__file__", str(tmp_path / "a" / "b.py"))
    assert main(["tables", "ccp", "--results-dir", str(tmp_path)]) == 2
    assert f"no published numbers in {tmp_path / 'published'}" in capsys.readouterr().err


def test_an_unknown_paper_or_data_set_is_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tables", "cpp", "--results-dir", str(FOLDER.parent)]) == 2
    assert "Did you mean 'ccp'" in capsys.readouterr().err
    assert main(["tables", "hpl", "--dataset", "glyphs", "--results-dir", str(FOLDER.parent)]) == 2
    assert "no numbers of hpl on 'glyphs'" in capsys.readouterr().err
