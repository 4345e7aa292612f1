"""The papers' numbers: found by paper, and beside ours where the protocols agree."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd

from harness.errors import HarnessError, unknown
from harness.metrics.names import EMBEDDINGS, title_of
from harness.results.layout import PUBLISHED
from harness.results.records import TEST_SELECTED
from harness.results.rows import Row, label_of, read_rows, setting
from harness.results.stats import mean_and_interval

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


# At whose values a row is still that of the paper.
PRESETS = ("paper", "official", "ccp")

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
    "ours_sd": "standard deviation over our reproductions",
    "published_sd": "the paper's, where it gives one",
    "difference": "ours minus published",
    "difference_ci95": "root of the sum of the squares of both; of ours alone without the paper's",
    "protocol_variant": "protocol of the paper",
    "source": "where the value stands",
}


# Protocol of a paper's row, data set -> every field that a result depends on, by harness.registry.
SettingsOf = Callable[[str, str], dict[str, Any]]


def beside(table: Path, folder: Path, settings_of: SettingsOf) -> Beside:
    """The rows of a table with the published values that were measured in the same way."""
    rows = read_rows(table, [])
    dataset = rows[0][0].identity["dataset"] if rows else ""
    scores = _scores_on(dataset, folder)
    if scores.empty:
        return Beside(pd.DataFrame(columns=list(COLUMNS)), [f"no paper has numbers on {dataset}"])
    variants = read(folder / VARIANTS).set_index("protocol_variant").to_dict("index")
    found: list[dict[str, Any]] = []
    refused: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        theirs = scores[scores["loss"] == _loss_of(row)]
        for key, cells in theirs.groupby(["protocol_variant", "trunk", "dim"], sort=False):
            name, trunk, dim = map(str, cast(tuple[str, str, str], key))
            variant = {**variants[_base(name)], "protocol": _protocol_of(name, variants)}
            points = points_of_difference(row, variant, trunk, dim, settings_of)
            if points:
                refused[f"{name}: {'; '.join(points)}"].append(label_of(row))
            else:
                found.extend(_together(row, cells))
    reasons = [
        f"{', '.join(dict.fromkeys(labels))} not compared with {why}"
        for why, labels in refused.items()
    ]
    if not found and not refused:
        reasons.append(f"no paper has numbers of these methods on {dataset}")
    return Beside(pd.DataFrame(found, columns=list(COLUMNS)), reasons)


def _scores_on(dataset: str, folder: Path) -> pd.DataFrame:
    """Of four fold models and of one, with the names of their losses; copied ones stay away."""
    four, one = (read(folder / name) for name in (SCORES, CLASSIC))
    scores = pd.concat([four, one.assign(embedding="concatenated")]).fillna("")
    scores = scores[(scores["dataset"] == dataset) & (scores["note"] == "")]
    methods = read(folder / METHODS)
    losses = dict(zip(methods["method"], methods["loss"], strict=True))
    return scores.assign(loss=scores["method"].map(losses))


def _loss_of(row: Row) -> str:
    """The loss of a row, also of one at the parameters of a paper or of its code."""
    label = label_of(row).removesuffix(f" ({TEST_SELECTED})")
    for preset in PRESETS:
        label = label.removesuffix(f"+preset={preset}")
    return label


def _base(variant: str) -> str:
    return variant.partition("+")[0]


def _protocol_of(variant: str, variants: dict[Any, dict[Any, str]]) -> str:
    """Our protocol of a paper's row, with what the row changes of it."""
    base, plus, changes = variant.partition("+")
    ours = variants[base]["protocol"]
    return f"{ours}{plus}{changes}" if ours else ""


def points_of_difference(
    row: Row, variant: dict[Any, str], trunk: str, dim: str, settings_of: SettingsOf
) -> list[str]:
    """Every setting of a paper that ours differ in; what it does not state is no difference.

    Args:
        trunk, dim: of the paper's row, where it says them.
    """
    record = row[0]
    if not variant["protocol"]:
        return ["no protocol here trains and tests like that"]
    asked = settings_of(variant["protocol"], record.identity["dataset"])
    theirs = {**asked, **({"trunk": trunk} if trunk else {})}
    if dim and record.dims.keys() == {"concatenated"}:
        theirs["embedding_size"] = int(dim)
    # The name in results tells trunks with other weights apart.
    ours = {**record.identity["protocol"], "trunk": record.identity["trunk"]}
    free = {"name", *variant["unstated"].split()}
    points = []
    for name in sorted({*theirs, *ours} - free):
        here, there = (setting(settings, name) for settings in (ours, theirs))
        if here != there:
            points.append(f"{name} {_spell(here)} here, {_spell(there)} there")
    for name, count in (("trials", record.search.get("trials", 0)), ("reproductions", len(row))):
        # More of them measure the same thing, only better.
        if variant[name] and count < int(variant[name]):
            points.append(f"{count} {name} here, {variant[name]} there")
    return points


def _spell(value: Any) -> str:
    return "none" if value is None else str(value)


def _together(row: Row, theirs: pd.DataFrame) -> list[dict[str, Any]]:
    lines = []
    for published in theirs.to_dict("records"):
        embedding, metric = published["embedding"], published["metric"]
        assert embedding in EMBEDDINGS
        scores = [
            100 * r.scores[embedding][metric] for r in row if metric in r.scores.get(embedding, {})
        ]
        if not scores:  # a metric that was not asked for
            continue
        mean, half_width = mean_and_interval(scores)
        value = float(published["value"])
        theirs_ci95 = float(published["ci95"] or "nan")
        both = math.hypot(half_width, 0.0 if math.isnan(theirs_ci95) else theirs_ci95)
        lines.append(
            {
                "method": label_of(row),
                "embedding": embedding,
                "metric": metric,
                "ours": mean,
                "ours_ci95": half_width,
                "published": value,
                "published_ci95": theirs_ci95,
                "ours_sd": float(np.std(scores, ddof=1)) if len(scores) > 1 else math.nan,
                "published_sd": float(published["std"] or "nan"),
                "difference": mean - value,
                "difference_ci95": both,
                "protocol_variant": published["protocol_variant"],
                "source": published["source"],
            }
        )
    return lines
