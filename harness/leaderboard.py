"""Records -> DataFrame -> CSV and Markdown. Needs neither torch nor the runs."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from harness.files import write_text
from harness.records import LEDGER, RecordError, TestRecord
from harness.stats import mean_and_interval

KINDS = ("concatenated", "separated")
METRICS = ("map_at_r", "r_precision", "p_at_1")
METRIC_TITLES = {"map_at_r": "MAP@R", "r_precision": "RP", "p_at_1": "P@1"}

# Column -> what it holds; the order of the columns, too.
COLUMNS = {
    "rank": "by concatenated MAP@R; naive rows have none",
    "method": "name of --loss, or of a naive baseline",
    **{
        f"{metric}_{kind}{suffix}": f"{METRIC_TITLES[metric]} on the test classes, {meaning}"
        for kind in KINDS
        for metric in METRICS
        for suffix, meaning in (
            ("", f"{kind}: mean over reproductions, 0 to 1"),
            ("_ci95", f"{kind}: half the width of its 95 % t-interval"),
        )
    },
    "dim_concatenated": "size of the concatenated embedding",
    "dim_separated": "size of one model's embedding",
    "reproductions": "n of the means and intervals; the run that the search chose is not in it",
    "incomplete": "fewer trials or reproductions than the protocol asks for",
    "validation_map_at_r": "mean over folds of the best validation score, in the search",
    "trials": "trials of the search that count",
    "trials_failed": "those among them that failed",
    "params": "best parameters, as JSON",
    "on_bound": "parameters whose best value lies on an end of its range, as JSON",
    "best_step": "steps to the best checkpoint, mean over models",
    "ms_per_step": "training time per step, mean over models",
    "train_seconds": "training time of one model, mean",
    "peak_memory_mib": "largest, of a GPU or of the process on a CPU",
    "device": "what it was trained on",
    "test_openings": "how often the test classes were opened for this method",
    "queries": "test queries that count",
    "queries_dropped": "test queries without another image of their class",
    "protocol": "name of the protocol",
    "dataset": "name of the data set",
    "trunk": "name of the trunk",
    "split": "hash of the class split",
    "data_fingerprint": "hash of the trainval images",
    "test_fingerprint": "hash of the test images",
    "commit": "of the code, with + if it had been changed; empty for an installed package",
    "versions": "of Python and the libraries, as JSON",
    "command": "that wrote the last record",
}


@dataclass(frozen=True)
class Leaderboard:
    """A table of results that may be ranked together, and the records that could not enter it."""

    folder: Path
    frame: pd.DataFrame
    problems: list[str]


def build(folder: Path) -> Leaderboard:
    """The table of one results folder, from its records alone."""
    problems: list[str] = []
    records = []
    for path in sorted(folder.glob("records/*/*.json")):
        try:
            records.append(TestRecord.read(path))
        except RecordError as error:
            problems.append(str(error))
    openings = _openings(folder, problems)
    rows = [_row(group, openings) for group in _groups(records, problems)]
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    return Leaderboard(folder, _ranked(frame), problems)


def _groups(records: Sequence[TestRecord], problems: list[str]) -> list[list[TestRecord]]:
    """The records of each row: a method's at the parameters that did best in validation."""
    data = [_data_of(record) for record in records]
    newest = max(zip((r.provenance["time"] for r in records), data, strict=True), default=None)
    by_method: dict[str, dict[str, list[TestRecord]]] = defaultdict(lambda: defaultdict(list))
    for record, measured_on in zip(records, data, strict=True):
        if newest is not None and measured_on != newest[1]:
            problems.append(
                f"{record.identity['method']}, reproduction {record.repetition}: measured on "
                "another version of the data or the split, left out"
            )
            continue
        params = json.dumps(record.params, sort_keys=True)
        by_method[record.identity["method"]][params].append(record)
    return [max(groups.values(), key=_claim) for groups in by_method.values()]


def _data_of(record: TestRecord) -> tuple[str, str, str]:
    identity = record.identity
    return identity["data_fingerprint"], identity["split"], record.test_fingerprint


def _claim(group: Sequence[TestRecord]) -> tuple[float, float]:
    """What makes a set of parameters the method's: validation score, never a test score."""
    search = group[0].search
    return search.get("validation", 0.0), search.get("trials", 0)


def _row(group: Sequence[TestRecord], openings: dict[str, int]) -> dict[str, Any]:
    last = max(group, key=lambda record: record.provenance["time"])
    identity, search = last.identity, last.search
    folds = [fold for record in group for fold in record.folds]
    row: dict[str, Any] = {
        "method": identity["method"],
        **_scores(group),
        **{f"dim_{kind}": last.dims[kind] for kind in KINDS},
        "reproductions": len(group),
        "validation_map_at_r": search.get("validation"),
        "trials": search.get("trials"),
        "trials_failed": search.get("failed"),
        "params": json.dumps(last.params, sort_keys=True),
        "on_bound": json.dumps(search.get("on_bound", {}), sort_keys=True),
        "test_openings": openings[identity["method"]],
        "queries": last.queries,
        "queries_dropped": last.queries_dropped,
        "protocol": identity["protocol"]["name"],
        "dataset": identity["dataset"],
        "trunk": identity["trunk"],
        "split": identity["split"],
        "data_fingerprint": identity["data_fingerprint"],
        "test_fingerprint": last.test_fingerprint,
        "commit": _commit(last.provenance),
        "versions": json.dumps(
            {"python": last.provenance["python"], **last.provenance["versions"]}, sort_keys=True
        ),
        "command": last.provenance["command"],
    }
    asked = search.get("asked", {"trials": 0, "reproductions": 0})
    row["incomplete"] = (
        search.get("trials", 0) < asked["trials"] or len(group) < asked["reproductions"]
    )
    return {**row, **_cost(folds)} if folds else row


def _commit(provenance: dict[str, Any]) -> str:
    if provenance["commit"] is None:
        return ""
    return provenance["commit"] + ("" if provenance["clean"] else "+")


def _scores(group: Sequence[TestRecord]) -> dict[str, float]:
    values = {}
    for kind in KINDS:
        for metric in METRICS:
            scores = [record.scores[kind][metric] for record in group]
            mean, half_width = mean_and_interval(scores)
            values[f"{metric}_{kind}"] = mean
            values[f"{metric}_{kind}_ci95"] = half_width
    return values


def _cost(folds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {
        "best_step": np.mean([fold["best_step"] for fold in folds]),
        "ms_per_step": np.mean([1000 * fold["train_seconds"] / fold["steps"] for fold in folds]),
        "train_seconds": np.mean([fold["train_seconds"] for fold in folds]),
        "peak_memory_mib": max(fold["peak_memory"] for fold in folds) / 2**20,
        "device": ", ".join(sorted({fold["device"] for fold in folds})),
    }


def _openings(folder: Path, problems: list[str]) -> dict[str, int]:
    """How often the ledger says that each method was tested."""
    counts: dict[str, int] = defaultdict(int)
    path = folder / LEDGER
    lines = path.read_text().splitlines() if path.exists() else []
    for number, line in enumerate(lines, start=1):
        try:
            counts[json.loads(line)["method"]] += 1
        except (ValueError, KeyError):
            problems.append(f"{path}, line {number}: not a ledger entry")
    return counts


def _ranked(frame: pd.DataFrame) -> pd.DataFrame:
    """Best first; only methods that were trained have a rank."""
    frame = frame.sort_values("map_at_r_concatenated", ascending=False, ignore_index=True)
    trained = frame["trials"].notna()
    frame.loc[trained, "rank"] = frame.loc[trained, "map_at_r_concatenated"].rank(
        ascending=False, method="min"
    )
    for column in ("rank", "trials", "trials_failed"):
        frame[column] = frame[column].astype("Int64")
    return frame


def write(board: Leaderboard) -> list[Path]:
    """Write the table beside its records, at full precision and to be read; returns the files."""
    csv, markdown = board.folder / "leaderboard.csv", board.folder / "leaderboard.md"
    write_text(csv, board.frame.to_csv(index=False))
    write_text(markdown, to_markdown(board.frame))
    return [csv, markdown]


def shown(frame: pd.DataFrame) -> pd.DataFrame:
    """The columns that people read first, as text: percent with the half-width of the interval."""
    table = pd.DataFrame({"rank": frame["rank"].astype("string").fillna("")})
    table["method"] = frame["method"] + np.where(frame["incomplete"], " †", "")
    for kind in KINDS:
        size = _size(frame, kind)
        for metric in METRICS:
            title = f"{METRIC_TITLES[metric]} {size}"
            column = f"{metric}_{kind}"
            table[title] = [
                _percent(mean, half_width)
                for mean, half_width in zip(frame[column], frame[f"{column}_ci95"], strict=True)
            ]
    table["validation MAP@R"] = [_percent(value) for value in frame["validation_map_at_r"]]
    table["trials"] = frame["trials"].astype("string").fillna("")
    table["n"] = frame["reproductions"].astype("string")
    return table


def _size(frame: pd.DataFrame, kind: str) -> int:
    """Embedding size of the trained rows; a naive row may have fewer dimensions to offer."""
    return int(frame[f"dim_{kind}"].max())


def _percent(value: float | None, half_width: float = float("nan")) -> str:
    if value is None or np.isnan(value):
        return ""
    interval = "" if np.isnan(half_width) else f" ± {100 * half_width:.2f}"
    return f"{100 * value:.2f}{interval}"


def to_markdown(frame: pd.DataFrame) -> str:
    """The table with what it measures above and how to read it below."""
    table = shown(frame)
    lines = [
        title_of(frame),
        "",
        f"| {' | '.join(table.columns)} |",
        f"|{'---|' * len(table.columns)}",
        *(f"| {' | '.join(row)} |" for row in table.astype(str).to_numpy()),
        "",
        *notes_on(frame),
    ]
    return "\n".join(lines) + "\n"


def title_of(frame: pd.DataFrame) -> str:
    first = frame.iloc[0]
    return f"# {first['dataset']}, {first['trunk']}, protocol `{first['protocol']}`"


def notes_on(frame: pd.DataFrame) -> list[str]:
    """What a reader must know to read the table right."""
    together, single = (_size(frame, kind) for kind in KINDS)
    notes = [
        "Percent on the test classes; ± is half the 95 % interval over n reproductions.",
        f"{together}: embeddings of the four fold models side by side. {single}: mean of the four.",
    ]
    if frame["incomplete"].any():
        notes.append("† fewer trials or reproductions than the protocol asks for.")
    return notes
