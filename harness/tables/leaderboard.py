"""The table of a results folder, made from its records alone, and its files."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from filelock import FileLock

from harness.judgement.almost_base import almost_base
from harness.judgement.fairness import share_at_first, share_at_limit, spread, still_rises
from harness.judgement.search_luck import scores_of_searches
from harness.judgement.stats import LEVEL, holm, mean_and_interval, paired
from harness.metrics.names import EMBEDDINGS, METRICS
from harness.records.layout import COLUMNS, CSV, LATEX, LEDGER, MARKDOWN, table_lock
from harness.records.ledger import read_ledger
from harness.records.provenance import commit_of, versions_of
from harness.records.records import FoldFacts
from harness.records.rows import Row, Searches, label_of, read_searches, run_of, setting
from harness.system.files import remove_old_leftovers, write_text
from harness.tables.columns import (
    BEST,
    COUNTS,
    SAME,
    UNKNOWN,
    WORSE,
    columns_of,
    in_order,
)
from harness.tables.latex import to_latex
from harness.tables.rendering import describe_columns, to_csv, to_markdown
from harness.tables.training_cost import cost_of


@dataclass(frozen=True)
class Leaderboard:
    """A table of results that may be ranked together, and the records that could not enter it.

    Attributes:
        searches: the records that each line of the frame is made from, those that it shows first.
    """

    folder: Path
    frame: pd.DataFrame
    problems: list[str]
    searches: list[Searches]


class Leaderboards(list[Leaderboard]):
    """Tables, and what could not be evaluated for them, each with the reason."""

    def __init__(self, boards: Iterable[Leaderboard], problems: Sequence[str]) -> None:
        super().__init__(boards)
        self.problems = list(problems)


def build(folder: Path) -> Leaderboard:
    """The table of one results folder, from its records alone."""
    problems: list[str] = []
    searches = read_searches(folder, problems)
    frame = frame_of(searches, _openings(folder, problems))
    return Leaderboard(folder, frame, problems, searches)


def frame_of(searches: Sequence[Searches], openings: Counter[str] | None = None) -> pd.DataFrame:
    """The columns of a table, best row first.

    Args:
        openings: method -> how often it was tested; not known of rows from several places.
    """
    openings = Counter() if openings is None else openings
    rows = [of_method[0] for of_method in searches]
    everything = [[record for row in of_method for record in row] for of_method in searches]
    verdicts = _verdicts([row for row in everything if row[0].kind == "reproduction"])
    metrics = in_order(m for row in rows for r in row for m in r.scores["concatenated"])
    frame = pd.DataFrame(
        [
            {
                **_columns(row, openings),
                **_over_searches(of_method),
                "search_scores": json.dumps(scores_of_searches(of_method)),
                "indistinguishable": verdicts.get(label_of(row)),
            }
            for row, of_method in zip(rows, searches, strict=True)
        ],
        columns=list(columns_of(metrics, _of_a_paper(rows), _scored_together(rows))),
    )
    return _ranked(frame)


def write(board: Leaderboard) -> list[Path]:
    """Write the table beside its records; returns the files."""
    texts = {
        CSV: to_csv(board.frame),
        MARKDOWN: to_markdown(board.frame),
        LATEX: to_latex(board.frame),
        COLUMNS: describe_columns(board.frame),
    }
    with FileLock(table_lock(board.folder)):
        remove_old_leftovers(board.folder)
        for name, text in texts.items():
            write_text(board.folder / name, text)
    return [board.folder / name for name in texts]


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


def _columns(row: Row, openings: Counter[str]) -> dict[str, Any]:
    last = max(row, key=lambda record: record.provenance["time"])
    identity, search = last.identity, last.search
    searched = bool(search.get("trials"))
    fold_scores = search.get("validation_folds", [])
    folds = [fold for record in row for fold in record.folds]
    stopped_by = [fold["stopped_by"] for fold in folds if "stopped_by" in fold]
    validated = [
        (fold["best_step"], fold["history"]["steps"])
        for fold in folds
        if "score" in fold.get("history", {})
    ]
    return {
        "method": label_of(row),
        "kind": last.kind,
        **mean_scores(row),
        **(_as_a_paper_has_it(row) if _of_a_paper([row]) else {}),
        **{f"dim_{embedding}": last.dims.get(embedding) for embedding in EMBEDDINGS},
        "reproductions": len(row),
        "incomplete": _is_incomplete(row),
        "validation_score": search.get("validation"),
        "validation_metric": identity["protocol"].get("metric", METRICS[0]),
        "validation_sd": spread(fold_scores),
        "dimensions": search.get("dimensions"),
        "trials": search["trials"] if searched else None,
        "trials_failed": search.get("failed"),
        "trials_pruned": search.get("pruned", 0) if searched else None,
        "not_flat": still_rises(search),
        "params": json.dumps(last.params, sort_keys=True),
        "almost_base": almost_base(last),
        "on_bound": json.dumps(search.get("on_bound", {}), sort_keys=True),
        "test_openings": openings[identity["method"]],
        "queries": last.queries,
        "queries_dropped": last.queries_dropped,
        "missing_images": last.missing_images,
        "protocol": identity["protocol"]["name"],
        "selection": setting(identity["protocol"], "selection"),
        "dataset": identity["dataset"],
        "trunk": identity["trunk"],
        "weights": identity.get("weights") or "",
        "split": identity["split"],
        "data_fingerprint": identity["data_fingerprint"],
        "test_fingerprint": last.test_fingerprint,
        "commit": commit_of(last.provenance),
        "versions": versions_of(last.provenance),
        "command": last.provenance["command"].replace("\n", " "),
        "instances": _mean_instances(folds),
        # A single model is always stopped by steps.
        "at_step_limit": share_at_limit(stopped_by) if last.kind == "reproduction" else None,
        "at_first_validation": share_at_first(validated),
        **(cost_of(folds) if folds else {}),
    }


def _over_searches(searches: Searches) -> dict[str, Any]:
    """Columns that depend on all searches of a method: scores are means over its searches."""
    if len(searches) == 1:
        return {}
    by_search = [mean_scores(row) for row in searches]
    values: dict[str, Any] = {"reproductions": sum(map(len, searches))}
    values["incomplete"] = any(_is_incomplete(row) for row in searches)
    for name in set.intersection(*(set(scores) for scores in by_search)):
        if not name.endswith(INTERVAL):
            mean, half_width = mean_and_interval([scores[name] for scores in by_search])
            values |= {name: mean, f"{name}{INTERVAL}": half_width}
    return values


def _is_incomplete(row: Row) -> bool:
    """Whether a search has fewer trials or reproductions than were asked for."""
    search = max(row, key=lambda record: record.provenance["time"]).search
    asked = search.get("asked", {"trials": 0, "reproductions": 0})
    return search.get("trials", 0) < asked["trials"] or len(row) < asked["reproductions"]


INTERVAL = "_ci95"  # behind the name of a score: half the width of its interval


def mean_scores(row: Row) -> dict[str, float]:
    """Column -> mean over the records of a row, and half the width of its interval."""
    values = {}
    for embedding in EMBEDDINGS:
        for metric in {m for record in row for m in record.scores.get(embedding, {})}:
            scores = [
                r.scores[embedding][metric] for r in row if metric in r.scores.get(embedding, {})
            ]
            mean, half_width = mean_and_interval(scores)
            values[f"{metric}_{embedding}"] = mean
            values[f"{metric}_{embedding}{INTERVAL}"] = half_width
    return values


def _of_a_paper(rows: Sequence[Row]) -> bool:
    """Whether their protocol selects as some paper does, and not by validation alone."""
    return any("select" in row[0].identity["protocol"] for row in rows)


def _scored_together(rows: Sequence[Row]) -> bool:
    """Whether their protocol scores several models of a trial together."""
    return any("selection" in row[0].identity["protocol"] for row in rows)


def _as_a_paper_has_it(row: Row) -> dict[str, float]:
    """Deviations over the records of a row, and what its last epochs scored."""
    values = {}
    for metric in row[0].scores["concatenated"]:
        scores = [record.scores["concatenated"].get(metric, np.nan) for record in row]
        # Metrics that were asked for later are of the best epoch alone.
        of_last = [record.last.get("concatenated", {}) for record in row]
        lasts = [values_of[metric] for values_of in of_last if metric in values_of]
        values[f"{metric}_sd"] = float(np.std(scores, ddof=1)) if len(scores) > 1 else np.nan
        values[f"{metric}_last"] = float(np.mean(lasts)) if lasts else np.nan
    return values


def _mean_instances(folds: Sequence[FoldFacts]) -> float | None:
    """Of the models whose hook counts them."""
    counted = [fold["hook"]["instances"] for fold in folds if "instances" in fold.get("hook", {})]
    return float(np.mean(counted)) if counted else None


def _openings(folder: Path, problems: list[str]) -> Counter[str]:
    """How often the ledger says that each method was tested."""
    return Counter(entry["method"] for entry in read_ledger(folder / LEDGER, problems))


def _ranked(frame: pd.DataFrame) -> pd.DataFrame:
    """Best first; only rows of four trained models have a rank."""
    frame = frame.sort_values("map_at_r_concatenated", ascending=False, ignore_index=True)
    trained = frame["kind"] == "reproduction"
    frame.loc[trained, "rank"] = frame.loc[trained, "map_at_r_concatenated"].rank(
        ascending=False, method="min"
    )
    for column in COUNTS:
        frame[column] = frame[column].astype("Int64")
    frame["not_flat"] = frame["not_flat"].astype("boolean")
    for column in ("at_step_limit", "at_first_validation", "instances"):
        frame[column] = frame[column].astype(float)
    return frame
