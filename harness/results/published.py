"""The papers' numbers: found by paper, and beside ours where the protocols agree."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from harness.errors import HarnessError, unknown
from harness.metrics.names import KINDS, title_of
from harness.results.layout import PUBLISHED
from harness.results.rows import Row, label_of, read_rows
from harness.results.stats import mean_and_interval

VARIANTS, METHODS = "protocol_variants.csv", "methods.csv"
SCORES, CLASSIC = "reality_check_tables.csv", "classic_retrieval_tables.csv"

PAPERS = {
    "mlrc": "A Metric Learning Reality Check (ECCV 2020)",
    "ccp": "Deep Metric Learning with Chance Constraints (WACV 2024)",
    "drml": "Deep Relational Metric Learning (ICCV 2021)",
    "hpl": "Hierarchical Proxy-based Loss for Deep Metric Learning (WACV 2022)",
    "proxygml": "Fewer is More: Deep Graph Metric Learning Using Fewer Proxies (NeurIPS 2020)",
    "proxynca++": "ProxyNCA++ (ECCV 2020)",
}


def year_of(paper: str) -> int | None:
    """When a paper came out, by the end of its title."""
    found = re.search(r"(\d{4})\)$", PAPERS.get(paper, ""))
    return int(found[1]) if found else None


# Columns that tell where a row is from; those that name a row of a printed table.
ORIGIN = ("dataset", "source", "paper", "table", "protocol_variant")
NAMES = ("method", "trunk", "dim", "hardware")


def find_folder(results: Path) -> Path:
    """The numbers lie beside results; those of the source code are part of the package, too."""
    places = [results / PUBLISHED, Path(__file__).parent / PUBLISHED]
    for place in places:
        if (place / SCORES).exists():
            return place
    raise HarnessError(
        f"no published numbers in {' or '.join(map(str, places))}\n"
        "  they are in the folder results/published of the source code: give it as --results-dir"
    )


def read(path: Path) -> pd.DataFrame:
    """A file of published numbers, every cell as it is printed."""
    return pd.read_csv(path, dtype=str, keep_default_na=False)


def tables_of(
    folder: Path, paper: str, dataset: str | None = None
) -> list[tuple[str, pd.DataFrame]]:
    """Title and content of every table of a paper that we hold."""
    if paper not in PAPERS:
        raise unknown("paper", paper, PAPERS)
    tables = []
    for path in sorted(folder.glob("*.csv"), reverse=True):  # scores first, ablations last
        rows = read(path)
        if "paper" not in rows:
            continue
        rows = rows[rows["paper"] == paper]
        if dataset is not None and "dataset" in rows:
            rows = rows[rows["dataset"] == dataset]
        keys = ["source", "table", *(["dataset"] if "value" in rows else [])]
        for _, group in rows.groupby(keys, sort=False):
            first = group.iloc[0]
            if "value" in group:
                tables.append((f"{first['dataset']}: {first['source']}", _spread(group)))
            else:
                tables.append((first["table"], _plain(group)))
    return tables


def _plain(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.drop(columns=[c for c in ORIGIN if c in rows and c != "dataset"])


def _spread(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per method, one column per metric."""
    if "embedding" in rows:
        measured = rows["metric"].map(title_of) + " " + rows["dim"]
        names = ["method"]
    else:
        titles = rows["quantity"].str.replace("_", " ") if "quantity" in rows else None
        measured = rows["metric"].map(title_of) if titles is None else titles + ", " + rows["unit"]
        names = [name for name in NAMES if name in rows and rows[name].any()]
    spread = rows.get("ci95", rows.get("std", pd.Series("", index=rows.index)))
    cells = rows["value"] + spread.map(lambda text: f" ± {text}" if text else "")
    table = rows[names].assign(measured=measured, cell=cells)
    order = list(dict.fromkeys(measured))
    # A method that a source prints twice keeps both values.
    wide = table.pivot_table(
        index=names, columns="measured", values="cell", aggfunc=", ".join, sort=False
    )
    return wide[order].fillna("").reset_index().rename_axis(columns=None)


@dataclass(frozen=True)
class Beside:
    """Our scores with the published ones.

    Attributes:
        rows: what may be compared, in percent.
        differences: why the rest may not.
    """

    rows: pd.DataFrame
    differences: list[str] = field(default_factory=list)


COLUMNS = {
    "method": "name of --loss",
    "embedding": "concatenated or separated",
    "metric": "what was measured",
    "ours": "mean over our reproductions, in percent",
    "ours_ci95": "half the width of its 95 % interval",
    "published": "the paper's value",
    "published_ci95": "the paper's interval, where it gives one",
    "difference": "ours minus published",
    "difference_ci95": "root of the sum of the squares of both; of ours alone without the paper's",
    "protocol_variant": "protocol of the paper",
    "source": "where the value stands",
}


def beside(table: Path, folder: Path) -> Beside:
    """The rows of a table with the published values that were measured in the same way."""
    rows = read_rows(table, [])
    scores, methods = read(folder / SCORES), read(folder / METHODS)
    losses = dict(zip(methods["method"], methods["loss"], strict=True))
    scores = scores.assign(loss=scores["method"].map(losses))
    dataset = rows[0][0].identity["dataset"] if rows else ""
    scores = scores[scores["dataset"] == dataset]
    if scores.empty:
        return Beside(pd.DataFrame(columns=list(COLUMNS)), [f"no paper has numbers on {dataset}"])
    found: list[dict[str, Any]] = []
    refused: dict[str, list[str]] = defaultdict(list)
    for variant in read(folder / VARIANTS).to_dict("records"):
        name = variant["protocol_variant"]
        for row in rows:
            theirs = scores[
                (scores["protocol_variant"] == name) & (scores["loss"] == label_of(row))
            ]
            if theirs.empty:
                continue
            points = points_of_difference(row, variant)
            if points:
                refused[f"{name}: {'; '.join(points)}"].append(label_of(row))
            else:
                found.extend(_together(row, theirs))
    reasons = [f"{', '.join(labels)} not compared with {why}" for why, labels in refused.items()]
    if not found and not refused:
        reasons.append(f"no paper has numbers of these methods on {dataset}")
    return Beside(pd.DataFrame(found, columns=list(COLUMNS)), reasons)


def points_of_difference(row: Row, variant: dict[Any, str]) -> list[str]:
    """Every setting of a paper that ours differ in; what it does not state is no difference."""
    record = row[0]
    protocol = record.identity["protocol"]
    points = []
    for name, stated in variant.items():
        if name in ("protocol_variant", "note", "trials", "reproductions") or not stated:
            continue
        theirs = None if stated == "none" else stated
        # The name in results tells trunks with other weights apart.
        ours = record.identity["trunk"] if name == "trunk" else protocol.get(name)
        same = ours is theirs is None or (ours is not None and _equal(ours, theirs))
        if not same:
            points.append(f"{name} {'none' if ours is None else ours} here, {stated} there")
    for name, count in (("trials", record.search.get("trials", 0)), ("reproductions", len(row))):
        # More of them measure the same thing, only better.
        if variant[name] and count < int(variant[name]):
            points.append(f"{count} {name} here, {variant[name]} there")
    return points


def _equal(ours: Any, theirs: str | None) -> bool:
    if theirs is None:
        return False
    return math.isclose(ours, float(theirs)) if isinstance(ours, int | float) else ours == theirs


def _together(row: Row, theirs: pd.DataFrame) -> list[dict[str, Any]]:
    lines = []
    for published in theirs.to_dict("records"):
        kind, metric = published["embedding"], published["metric"]
        assert kind in KINDS
        mean, half_width = mean_and_interval([100 * record.scores[kind][metric] for record in row])
        value = float(published["value"])
        theirs_ci95 = float(published["ci95"] or "nan")
        both = math.hypot(half_width, 0.0 if math.isnan(theirs_ci95) else theirs_ci95)
        lines.append(
            {
                "method": label_of(row),
                "embedding": kind,
                "metric": metric,
                "ours": mean,
                "ours_ci95": half_width,
                "published": value,
                "published_ci95": theirs_ci95,
                "difference": mean - value,
                "difference_ci95": both,
                "protocol_variant": published["protocol_variant"],
                "source": published["source"],
            }
        )
    return lines
