"""Records -> DataFrame: one row per method. Needs neither torch nor the runs."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from harness.metrics.names import KINDS, LENGTHS, METRICS, MORE, title_of
from harness.results.records import (
    LEDGER,
    MetricsRecord,
    RecordError,
    TestRecord,
    read_ledger,
    read_record,
)
from harness.results.stats import LEVEL, holm, mean_and_interval, paired

# What `indistinguishable` may say of a row.
BEST, SAME, WORSE, UNKNOWN = "best", "yes", "no", "too few reproductions"

# Column -> what it holds, before and behind the scores; the order of the columns, too.
BEFORE = {
    "rank": "by concatenated MAP@R, among the rows of kind `reproduction`",
    "method": "name of --loss, or of a naive baseline",
    "kind": (
        "`reproduction`: four fold models; `single`: one model of their size together, trained on "
        "all trainval classes; `naive`: PCA of a network's features or of pixels"
    ),
    "indistinguishable": (
        f"from the best row: `{SAME}` or `{WORSE}` by a paired t-test of concatenated MAP@R over "
        f"shared reproductions, Holm-corrected, at {LEVEL}; or `{UNKNOWN}` to say"
    ),
}
BEHIND = {
    "dim_concatenated": "size of the concatenated embedding, or of the single model's",
    "dim_separated": "size of one model's embedding",
    "reproductions": "n of the means and intervals; the run that the search chose is not in it",
    "incomplete": "fewer trials or reproductions than the protocol asks for",
    "validation_map_at_r": "mean over folds of the best validation score, in the search",
    "trials": "trials of the search that count",
    "trials_failed": "those among them that failed",
    "trials_pruned": "those among them that were stopped early",
    "params": "best parameters, as JSON",
    "on_bound": "parameters whose best value lies on an end of its range, as JSON",
    "best_step": "steps to the best checkpoint, mean over models",
    "ms_per_step": "training time per step, mean over models",
    "convergence_seconds": "training time to the best checkpoint, mean over models",
    "train_seconds": "training time of one model, mean",
    "peak_memory_mib": "largest, of a GPU or of the process on a CPU",
    "device": "what it was trained on",
    "test_openings": "how often the test classes were opened for this method",
    "queries": "test queries, with those dropped",
    "queries_dropped": "test queries without another image of their class, left out of all scores",
    "missing_images": "images of the data set that were missing or broken and were left out",
    "protocol": "name of the protocol",
    "dataset": "name of the data set",
    "trunk": "name of the trunk",
    "weights": "hash of the trunk's pretrained weights; empty without any",
    "split": "hash of the class split",
    "data_fingerprint": "hash of the trainval images",
    "test_fingerprint": "hash of the test images",
    "commit": "of the code, with + if it had been changed; empty for an installed package",
    "versions": "of Python and the libraries, as JSON",
    "command": "that wrote the last record",
}


def columns_of(metrics: Sequence[str]) -> dict[str, str]:
    """Every column of a table with these metrics, and what it holds."""
    scores = {}
    for kind in KINDS:
        for metric in metrics:
            name = f"{title_of(metric)} on the test classes, {kind}"
            more = f" ({MORE[metric]})" if metric in MORE else ""
            unit = "" if metric in LENGTHS else ", 0 to 1"
            scores[f"{metric}_{kind}"] = f"{name}: mean over reproductions{unit}{more}"
            scores[f"{metric}_{kind}_ci95"] = f"{name}: half the width of its 95 % t-interval"
    return {**BEFORE, **scores, **BEHIND}


def metrics_in(frame: pd.DataFrame) -> list[str]:
    """The metrics of a table: those of every test, then those that were asked for."""
    suffix = "_concatenated"
    names = [name.removesuffix(suffix) for name in frame.columns if name.endswith(suffix)]
    return [name for name in names if name != "dim"]


# Whole numbers that some rows lack.
COUNTS = ("rank", "dim_separated", "trials", "trials_failed", "trials_pruned")


@dataclass(frozen=True)
class Leaderboard:
    """A table of results that may be ranked together, and the records that could not enter it."""

    folder: Path
    frame: pd.DataFrame
    problems: list[str]


Row = list[TestRecord]


def find_tables(results: Path) -> list[Path]:
    """Every folder of results that has records, in the order of the names."""
    return sorted(path.parent for path in results.glob("*/*/records"))


def build(folder: Path) -> Leaderboard:
    """The table of one results folder, from its records alone."""
    problems: list[str] = []
    rows = read_rows(folder, problems)
    openings = _openings(folder, problems)
    verdicts = _verdicts([row for row in rows if row[0].kind == "reproduction"])
    more = {m for row in rows for record in row for m in record.scores["concatenated"]}
    metrics = [*METRICS, *sorted(more - set(METRICS), key=_place)]
    frame = pd.DataFrame(
        [
            {**_columns(row, openings), "indistinguishable": verdicts.get(label_of(row))}
            for row in rows
        ],
        columns=list(columns_of(metrics)),
    )
    return Leaderboard(folder, _ranked(frame), problems)


def _place(metric: str) -> tuple[bool, int, str]:
    """Recalls first, by rank."""
    rank = metric.removeprefix("recall_at_")
    return (False, int(rank), "") if rank.isdigit() else (True, 0, metric)


def label_of(row: Row) -> str:
    """What a row is called."""
    first = row[0]
    method = first.identity["method"]
    return f"{method} (single {first.dims['concatenated']})" if first.kind == "single" else method


def read_rows(folder: Path, problems: list[str]) -> list[Row]:
    """The records of each row: a method's at the parameters that did best in validation."""
    records = read_records(folder, problems)
    found = {path: r for path, r in records.items() if isinstance(r, TestRecord)}
    if not found:
        return []
    found = _with_metrics(found, [r for r in records.values() if isinstance(r, MetricsRecord)])
    newest = measured_on(max(found.values(), key=lambda record: record.provenance["time"]))
    by_label: dict[str, dict[str, Row]] = defaultdict(lambda: defaultdict(list))
    first: dict[str, Path] = {}
    for path, record in found.items():
        strange = [what for what, value in measured_on(record).items() if value != newest[what]]
        if strange:
            problems.append(f"{path}: measured on another {' and '.join(strange)}, left out")
            continue
        twin = first.setdefault(key_of(record), path)
        if twin != path:
            problems.append(f"{path}: the same run as {twin}, left out")
            continue
        params = json.dumps(record.params, sort_keys=True)
        by_label[label_of([record])][params].append(record)
    return [max(by_params.values(), key=_claim) for by_params in by_label.values()]


def _with_metrics(
    found: dict[Path, TestRecord], more: Sequence[MetricsRecord]
) -> dict[Path, TestRecord]:
    """The records with the scores that were measured on demand among the others."""
    scores: dict[str, dict[str, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    for record in more:
        for kind, values in record.scores.items():
            scores[key_of(record)][kind] |= values
    return {
        path: replace(
            record,
            scores={k: {**v, **scores[key_of(record)][k]} for k, v in record.scores.items()},
        )
        for path, record in found.items()
    }


def key_of(record: TestRecord | MetricsRecord) -> str:
    """What two records share if they are of the same run, whatever their files are called."""
    parts = [record.kind, record.identity, record.params, record.repetition]
    return json.dumps(parts, sort_keys=True)


def read_records(folder: Path, problems: list[str]) -> dict[Path, TestRecord | MetricsRecord]:
    """Every record of a table that can be read, by its file; the others are named."""
    found = {}
    for path in sorted(folder.glob("records/*/*.json")):
        try:
            found[path] = read_record(path)
        except RecordError as error:
            problems.append(str(error))
    return found


def measured_on(record: TestRecord | MetricsRecord) -> dict[str, str]:
    """What two records must share to stand in one table, beside the protocol."""
    return {
        "version of the trainval images": record.identity["data_fingerprint"],
        "class split": record.identity["split"],
        "version of the test images": record.test_fingerprint,
    }


def _claim(row: Row) -> tuple[float, float]:
    """What makes a set of parameters the method's: validation score, never a test score."""
    search = row[0].search
    return search.get("validation", 0.0), search.get("trials", 0)


def run_of(record: TestRecord) -> tuple[int, int]:
    """What two records share if their random streams are the same: seed and repetition."""
    return record.identity["seed"], record.repetition


def _verdicts(rows: Sequence[Row]) -> dict[str, str]:
    """Row -> whether the best one is better than it, or only ahead."""
    if not rows:
        return {}
    scores = [{run_of(r): r.scores["concatenated"]["map_at_r"] for r in row} for row in rows]
    means = [np.mean(list(values.values())) for values in scores]
    best = int(np.argmax(means))
    verdicts = {label_of(row): UNKNOWN for row in rows} | {label_of(rows[best]): BEST}
    tested = {}
    for row, values in zip(rows, scores, strict=True):
        shared = sorted(values.keys() & scores[best].keys())
        p_value = paired([scores[best][run] - values[run] for run in shared]).t_test
        if row is not rows[best] and p_value is not None:
            tested[label_of(row)] = p_value
    for label, p_value in zip(tested, holm(list(tested.values())), strict=True):
        verdicts[label] = WORSE if p_value < LEVEL else SAME
    return verdicts


def _columns(row: Row, openings: dict[str, int]) -> dict[str, Any]:
    last = max(row, key=lambda record: record.provenance["time"])
    identity, search = last.identity, last.search
    searched = bool(search)
    folds = [fold for record in row for fold in record.folds]
    asked = search.get("asked", {"trials": 0, "reproductions": 0})
    return {
        "method": label_of(row),
        "kind": last.kind,
        **_scores(row),
        **{f"dim_{kind}": last.dims.get(kind) for kind in KINDS},
        "reproductions": len(row),
        "incomplete": (
            search.get("trials", 0) < asked["trials"] or len(row) < asked["reproductions"]
        ),
        "validation_map_at_r": search.get("validation"),
        "trials": search.get("trials"),
        "trials_failed": search.get("failed"),
        "trials_pruned": search.get("pruned", 0) if searched else None,
        "params": json.dumps(last.params, sort_keys=True),
        "on_bound": json.dumps(search.get("on_bound", {}), sort_keys=True),
        "test_openings": openings[identity["method"]],
        "queries": last.queries,
        "queries_dropped": last.queries_dropped,
        "missing_images": last.missing_images,
        "protocol": identity["protocol"]["name"],
        "dataset": identity["dataset"],
        "trunk": identity["trunk"],
        "weights": identity.get("weights") or "",
        "split": identity["split"],
        "data_fingerprint": identity["data_fingerprint"],
        "test_fingerprint": last.test_fingerprint,
        "commit": _commit(last.provenance),
        "versions": json.dumps(
            {"python": last.provenance["python"], **last.provenance["versions"]}, sort_keys=True
        ),
        "command": last.provenance["command"].replace("\n", " "),
        **(_cost(folds) if folds else {}),
    }


def _commit(provenance: dict[str, Any]) -> str:
    if provenance["commit"] is None:
        return ""
    return provenance["commit"] + ("" if provenance["clean"] else "+")


def _scores(row: Row) -> dict[str, float]:
    values = {}
    for kind in KINDS:
        for metric in {m for record in row for m in record.scores.get(kind, {})}:
            scores = [r.scores[kind][metric] for r in row if metric in r.scores.get(kind, {})]
            mean, half_width = mean_and_interval(scores)
            values[f"{metric}_{kind}"] = mean
            values[f"{metric}_{kind}_ci95"] = half_width
    return values


def _cost(folds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    seconds_per_step = [fold["train_seconds"] / fold["steps"] for fold in folds]
    best_steps = [fold["best_step"] for fold in folds]
    return {
        "best_step": np.mean(best_steps),
        "ms_per_step": 1000 * np.mean(seconds_per_step),
        "convergence_seconds": np.mean(np.multiply(seconds_per_step, best_steps)),
        "train_seconds": np.mean([fold["train_seconds"] for fold in folds]),
        "peak_memory_mib": max(fold["peak_memory"] for fold in folds) / 2**20,
        "device": ", ".join(sorted({fold["device"] for fold in folds})),
    }


def _openings(folder: Path, problems: list[str]) -> dict[str, int]:
    """How often the ledger says that each method was tested."""
    counts: dict[str, int] = defaultdict(int)
    for entry in read_ledger(folder / LEDGER, problems):
        counts[entry["method"]] += 1
    return counts


def _ranked(frame: pd.DataFrame) -> pd.DataFrame:
    """Best first; only rows of four trained models have a rank."""
    frame = frame.sort_values("map_at_r_concatenated", ascending=False, ignore_index=True)
    trained = frame["kind"] == "reproduction"
    frame.loc[trained, "rank"] = frame.loc[trained, "map_at_r_concatenated"].rank(
        ascending=False, method="min"
    )
    for column in COUNTS:
        frame[column] = frame[column].astype("Int64")
    return frame
