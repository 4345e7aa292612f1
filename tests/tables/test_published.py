"""The papers' numbers: complete, printable, and beside ours only where the protocols agree."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from made_records import make_record, put, put_scores

from harness import registry
from harness.cli import main
from harness.records.published import CLASSIC, PAPERS, SCORES, find_folder, read, tables_of
from harness.tables.beside_published import COLUMNS, beside

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
    described = text[: text.index("`trials` ... `reproductions`")]
    for path in TABLES:
        assert f"`{path.name}`" in text
        for column in read(path):
            assert f"`{column}`" in described, (path, column)


def test_every_variant_and_method_of_the_scores_is_known() -> None:
    scores = pd.concat([read(FOLDER / name) for name in (SCORES, CLASSIC)])
    methods = read(FOLDER / "methods.csv")
    variants = {name.partition("+")[0] for name in scores["protocol_variant"]}
    assert variants <= set(read(FOLDER / "protocol_variants.csv")["protocol_variant"])
    assert set(scores["method"]) == set(methods["method"])
    for loss in set(methods["loss"]) - {""}:
        assert registry.load_method(loss).name == loss


def test_every_variant_has_a_protocol_here_or_says_why_not() -> None:
    variants = read(FOLDER / "protocol_variants.csv").set_index("protocol_variant")
    rows = pd.concat([read(FOLDER / name) for name in (SCORES, CLASSIC)])
    for name, dataset in rows[["protocol_variant", "dataset"]].drop_duplicates().to_numpy():
        base, plus, changes = name.partition("+")
        protocol, note = variants.loc[base, ["protocol", "note"]]
        if protocol:
            assert registry.settings_of(f"{protocol}{plus}{changes}", dataset)
        else:
            assert note


def test_values_that_are_not_a_papers_own_measurement_are_marked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    copied = read(FOLDER / SCORES)
    copied = copied[(copied["paper"] == "ccp") & (copied["method"] == "HPL-PA")]
    assert len(copied) and set(copied["note"]) == {"copied from another paper"}
    closed = read(FOLDER / CLASSIC)
    closed = closed[closed["dataset"] == "imagenet"].pivot(
        index="method", columns="metric", values=["value", "note"]
    )
    values = closed["value"].astype(float)
    assert (values["map_at_r_other"] > values["r_precision"]).all()  # which it cannot be
    for metric in ("map_at_r_other", "r_precision"):
        assert closed["note"][metric].str.startswith("impossible").all()
    assert main(["tables", "ccp", "--dataset", "cub", "--results-dir", str(FOLDER.parent)]) == 0
    assert "† copied from another paper" in capsys.readouterr().out


@pytest.mark.parametrize("dataset", ["cub", "cars", "sop"])
def test_the_best_trials_of_the_reality_check_are_found_by_our_names(dataset: str) -> None:
    titles = [title for title, _ in tables_of(FOLDER, "mlrc", dataset)]
    assert "Best trial of each search" in titles


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


def protocol_of(spec: str, dataset: str = "cub") -> dict[str, Any]:
    """As a record holds it."""
    return json.loads(json.dumps(registry.settings_of(spec, dataset)))


def beside_ours(results: Path, spec: str = "mlrc", **changes: Any) -> Any:
    changes.setdefault("protocol", protocol_of(spec))
    table = put_scores(results, "contrastive", TEN, **changes)
    return beside(table, FOLDER, registry.settings_of)


def test_ours_stands_beside_the_published_value_where_protocols_agree(tmp_path: Path) -> None:
    found = beside_ours(tmp_path)
    assert list(found.rows.columns) == [column.name for column in COLUMNS]
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
    found = beside_ours(tmp_path, "mlrc+lr=0.003+optimizer=adam", trunk="convnet")
    assert found.rows.empty
    (first, *_) = [text for text in found.differences if "with mlrc:" in text]
    assert first == (
        "contrastive not compared with mlrc: lr 0.003 here, 1e-06 there; "
        "optimizer adam here, rmsprop there; trunk convnet here, bninception there"
    )


@pytest.mark.parametrize(
    "change", ["pooling=max", "max_steps=100", "frozen=true", "norm=layer", "head_bias=false"]
)
def test_every_field_of_a_protocol_counts(tmp_path: Path, change: str) -> None:
    found = beside_ours(tmp_path, f"mlrc+{change}")
    name = change.partition("=")[0]
    assert found.rows.empty or set(found.rows["protocol_variant"]) == {"mlrc-drml"}
    assert any(f"with mlrc: {name} " in text for text in found.differences)


def test_fewer_trials_or_reproductions_are_a_difference(tmp_path: Path) -> None:
    search = {**make_record().search, "trials": 10}
    for repetition in (1, 2):
        record = make_record(
            "contrastive", repetition, 0.2, search=search, protocol=protocol_of("mlrc")
        )
        path = put(tmp_path, record)
    found = beside(path.parent.parent.parent, FOLDER, registry.settings_of)
    assert "10 trials here, 50 there; 2 reproductions here, 10 there" in found.differences[0]
    assert set(found.rows["protocol_variant"]) == {"mlrc-drml"}  # which states neither


@pytest.mark.parametrize(("dataset", "cells"), [("cub", 6), ("sop", 6), ("inshop", 6)])
def test_the_ccp_paper_is_met_by_its_own_protocol_alone(
    tmp_path: Path, dataset: str, cells: int
) -> None:
    """On SOP with its official split, on In-Shop with its own folds."""
    for spec, expected in (("mlrc-ccp", cells), ("mlrc", 0)):
        protocol = protocol_of(spec, dataset)
        table = put_scores(tmp_path, "ccp-c2", TEN, protocol=protocol, dataset=dataset)
        found = beside(table, FOLDER, registry.settings_of)
        assert len(found.rows) == expected
        assert set(found.rows["protocol_variant"]) <= {"mlrc-ccp"}


@pytest.mark.parametrize(("dataset", "published"), [("cub", 26.02), ("sop", 50.77)])
def test_softtriple_stands_beside_the_ccp_papers_at_its_size_there(
    tmp_path: Path, dataset: str, published: float
) -> None:
    for preset, cells in (("ccp", 6), ("ccp-s", 0), ("ccp-l", 0)):
        table = put_scores(
            tmp_path / preset,
            f"softtriple+preset={preset}",
            TEN,
            protocol=protocol_of("mlrc-ccp", dataset),
            dataset=dataset,
        )
        rows = beside(table, FOLDER, registry.settings_of).rows
        rows = rows[rows["protocol_variant"] == "mlrc-ccp"]
        assert len(rows) == cells
        if cells:
            rows = rows.set_index(["embedding", "metric"])
            assert rows.loc[("concatenated", "map_at_r"), "published"] == published


def put_one_model(
    results: Path, method: str, spec: str, trunk: str, count: int, dataset: str, **changes: Any
) -> Path:
    """Records of single models whose R@1 is 70 %; returns the folder of their table."""
    protocol = protocol_of(spec, dataset)
    scores = {"map_at_r": 0.3, "r_precision": 0.4, "p_at_1": 0.7, "recall_at_1": 0.7, "nmi": 0.6}
    for repetition in range(1, count + 1):
        record = make_record(
            method,
            repetition,
            protocol=protocol,
            dataset=dataset,
            trunk=trunk,
            scores={"concatenated": scores},
            dims={"concatenated": protocol["embedding_size"]},
            separated=[],
            **changes,
        )
        path = put(results, record)
    return path.parent.parent.parent


def test_a_test_selected_row_stands_beside_its_papers(tmp_path: Path) -> None:
    method, spec = "proxygml+preset=paper", "classic-proxygml"
    table = put_one_model(
        tmp_path, method, spec, "bninception", 1, "cars", kind="test-selected", last={}
    )
    found = beside(table, FOLDER, registry.settings_of)
    (row,) = found.rows.to_dict("records")
    assert (row["published"], row["protocol_variant"]) == (85.5, "classic-proxygml")
    assert row["method"] == "proxygml+preset=paper (test-selected)"
    other = put_one_model(
        tmp_path, method, f"{spec}+epochs=5", "bninception", 1, "cars", kind="test-selected"
    )
    assert beside(other, FOLDER, registry.settings_of).rows.empty


@pytest.mark.parametrize(("dim", "published"), [(2048, 72.2), (512, 69.0)])
def test_a_two_stage_row_stands_beside_that_of_its_size(
    tmp_path: Path, dim: int, published: float
) -> None:
    spec = "two_stage" + ("" if dim == 2048 else f"+embedding_size={dim}")
    table = put_one_model(tmp_path, "proxynca++", spec, "resnet50", 5, "cub")
    found = beside(table, FOLDER, registry.settings_of)
    rows = found.rows.set_index("metric")
    assert rows.loc["recall_at_1", "published"] == published
    assert rows.loc["recall_at_1", "published_sd"] > 0
    assert "embedding_size" in " ".join(found.differences)  # the paper's other sizes


def test_a_data_set_without_published_numbers_says_so(tmp_path: Path) -> None:
    found = beside_ours(tmp_path, dataset="glyphs")
    assert found.rows.empty and found.differences == ["no paper has numbers on glyphs"]


def test_the_command_prints_and_writes_both(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = put_scores(tmp_path, "contrastive", TEN, protocol=protocol_of("mlrc"))
    assert main(["leaderboard", "--results-dir", str(tmp_path), "--published"]) == 0
    assert "Ours and published, in percent" in capsys.readouterr().out
    frame = pd.read_csv(table / "published.csv")
    assert (
        list(frame.columns) == [column.name for column in COLUMNS]
        and frame["published"].dtype == np.float64
    )


def test_numbers_are_found_in_the_package_and_missing_ones_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert find_folder(tmp_path).resolve() == FOLDER
    monkeypatch.setattr("harness.records.published.__file__", str(tmp_path / "a" / "b.py"))
    assert main(["tables", "ccp", "--results-dir", str(tmp_path)]) == 2
    assert f"no published numbers in {tmp_path / 'published'}" in capsys.readouterr().err


def test_an_unknown_paper_or_data_set_is_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tables", "cpp", "--results-dir", str(FOLDER.parent)]) == 2
    assert "Did you mean 'ccp'" in capsys.readouterr().err
    assert main(["tables", "hpl", "--dataset", "glyphs", "--results-dir", str(FOLDER.parent)]) == 2
    assert "no numbers of hpl on 'glyphs'" in capsys.readouterr().err
