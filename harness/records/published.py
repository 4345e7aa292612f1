"""The numbers that papers printed, as results/published holds them."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd

from harness.errors import HarnessError, unknown
from harness.metrics.names import title_of
from harness.records.layout import PUBLISHED

VARIANTS, METHODS = "protocol_variants.csv", "methods.csv"
# Of four fold models, and of one.
SCORES, CLASSIC = "reality_check_tables.csv", "classic_retrieval_tables.csv"

# Data sets as the reality check writes them.
THEIR_NAMES = {"cub": ("CUB200", "CUB200_bs256"), "cars": ("Cars196",), "sop": ("SOP",)}

NOTE_MARKS = ("†", "‡", "§")

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
            rows = rows[rows["dataset"].isin([dataset, *THEIR_NAMES.get(dataset, ())])]
        keys = ["source", "table", *(["dataset"] if "value" in rows else [])]
        for _, group in rows.groupby(keys, sort=False):
            first = group.iloc[0]
            if "value" in group:
                group, remarks = _marked(group)
                tables.append((f"{first['dataset']}: {first['source']}{remarks}", _spread(group)))
            else:
                tables.append((first["table"], _plain(group)))
    return tables


def _plain(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.drop(columns=[c for c in ORIGIN if c in rows and c != "dataset"])


def _marked(rows: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """Values with a mark where there is a note, and what the marks mean."""
    if "note" not in rows:
        return rows, ""
    found = [note for note in dict.fromkeys(rows["note"]) if note]
    marks = dict(zip(found, NOTE_MARKS, strict=False))
    cells = rows["value"] + rows["note"].map(lambda note: f" {marks[note]}" if note else "")
    remarks = "".join(f"; {mark} {note}" for note, mark in marks.items())
    return rows.assign(value=cells), remarks


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
