"""The table of a sweep: one row for each point, from its plan and its records alone."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from harness.errors import HarnessError
from harness.judgement.fairness import spread
from harness.metrics.names import EMBEDDINGS, title_of
from harness.records.layout import PLAN, SWEEP_CSV, SWEEP_LATEX, SWEEP_MARKDOWN, find_validations
from harness.records.records import (
    TEST_SELECTED,
    FoldFacts,
    RecordError,
    TestRecord,
    ValidationRecord,
)
from harness.records.rows import read_tests
from harness.records.sweep_plan import Point, PublishedValue, SweepPlan, key_of, read_plan
from harness.system.files import write_text
from harness.tables.column import Cells, Column, Table, View, frame_of, is_missing
from harness.tables.latex import to_latex
from harness.tables.leaderboard_columns import SHOWN_METRICS, in_order
from harness.tables.mean_scores import mean_and_interval, mean_scores
from harness.tables.rendering import to_csv, to_markdown
from harness.tables.shared_columns import COST, MADE_BY, MEASURED_UNDER
from harness.tables.spelling import in_percent, with_interval
from harness.tables.training_cost import cost_of

READ_OFF = "published_read_off"


@dataclass(frozen=True)
class SweepTable:
    """The points of a sweep with their scores.

    Attributes:
        problems: records that could not be read.
        failed: of the points that were just run, those without a score, and why.
    """

    folder: Path
    plan: SweepPlan
    columns: list[Column[Line]]
    frame: pd.DataFrame
    problems: list[str]
    failed: tuple[str, ...] = ()

    @property
    def table(self) -> Table:
        """The columns with all that people read around them."""
        commands = sorted(set(self.frame["command"].dropna()))
        return Table(_title(self), self.columns, self.frame, _remarks(self), commands)


@dataclass(frozen=True)
class Line:
    """What one line of a sweep's table is made from."""

    point: Point
    validated: Sequence[ValidationRecord]
    tested: Sequence[TestRecord]
    published: Sequence[PublishedValue]

    @cached_property
    def records(self) -> list[ValidationRecord | TestRecord]:
        return [*self.validated, *self.tested]

    @cached_property
    def repetitions(self) -> list[Sequence[FoldFacts]]:
        """The models of each; a repetition that was tested had been validated, too."""
        return list({record.repetition: record.folds for record in self.records}.values())

    @cached_property
    def models(self) -> list[FoldFacts]:
        return [fold for folds in self.repetitions for fold in folds]

    @cached_property
    def last(self) -> ValidationRecord | TestRecord | None:
        return max(self.records, key=lambda record: record.provenance["time"], default=None)

    @cached_property
    def cost(self) -> Mapping[str, Any]:
        return cost_of(self.models) if self.models else {}

    @cached_property
    def validation(self) -> dict[str, Any]:
        return _validation(self.repetitions)

    @cached_property
    def scores(self) -> dict[str, float]:
        return mean_scores(list(self.tested))

    @cached_property
    def printed(self) -> dict[str, Any]:
        """What the paper has for the point."""
        has = self.point["values"].get
        own = [v for v in self.published if all(has(a) == at for a, at in v["values"].items())]
        if not own:
            return {}
        numbers = {_printed_name(value): value["value"] / 100 for value in own}
        return {**numbers, READ_OFF: any(value["read_off"] for value in own)}


def build(folder: Path) -> SweepTable:
    """The table of one sweep."""
    plan = read_plan(folder)
    if plan is None:
        raise HarnessError(f"no sweep in {folder}: it has no {PLAN}")
    problems: list[str] = []
    validated, tested = _records(folder, plan, problems)
    runs = [_run(p["table"], p["method"], p["params"], p["seed"]) for p in plan.points]
    lines = [
        Line(point, validated[run], tested[run], plan.published)
        for point, run in zip(plan.points, runs, strict=True)
    ]
    scored = [record for line in lines for record in line.tested]
    metrics = in_order(m for record in scored for m in record.scores["concatenated"])
    single = all("separated" not in record.scores for record in scored)
    columns = columns_of(plan, metrics if any(tested.values()) else [], single)
    return SweepTable(folder, plan, columns, frame_of(columns, lines), problems)


def write(sweep: SweepTable) -> list[Path]:
    """Write the table beside its records; returns the files."""
    table = sweep.table
    texts = {
        SWEEP_CSV: to_csv(table.frame),
        SWEEP_MARKDOWN: to_markdown(table),
        SWEEP_LATEX: to_latex(table),
    }
    for name, text in texts.items():
        write_text(sweep.folder / name, text)
    return [sweep.folder / name for name in texts]


def columns_of(
    plan: SweepPlan, metrics: Sequence[str] = (), single: bool = False
) -> list[Column[Line]]:
    """Every column of sweep.csv.

    Args:
        metrics: of the tests; empty if nothing was tested.
        single: whether every test was of one model, whose scores the CSV file calls concatenated.
    """
    return [
        Column("method", "name of --loss", lambda line: line.point["method"], View.ALL),
        *_axis_columns(plan.axes),
        *_validation_columns(plan.metric, bool(metrics)),
        *_test_columns(metrics, single),
        *_printed_columns(plan.published),
        *COST,
        Column(
            "adjusted",
            "parameters that the method changed: given, used and why, as JSON",
            lambda line: key_of(line.models[0].get("adjusted", {})) if line.models else None,
        ),
        Column(
            "failure", "why there is no score", lambda line: line.point.get("failure", ""),
            View.TEXT | View.LATEX, "notes", _notes,
        ),
        *MEASURED_UNDER,
        Column("params", "all parameters, as JSON", lambda line: key_of(line.point["params"])),
        *MADE_BY,
    ]  # fmt: skip


def _axis_columns(axes: Sequence[str]) -> list[Column[Line]]:
    return [_axis_column(axis, title) for axis, title in short_names(axes).items()]


def _axis_column(axis: str, title: str) -> Column[Line]:
    return Column(
        axis,
        "what the sweep varies",
        lambda line: _plain(line.point["values"].get(axis)),
        View.CSV if axis == "loss" else View.ALL,
        title,
        lambda cells: _short(cells[axis]),
    )


def _validation_columns(metric: str, tested: bool) -> list[Column[Line]]:
    return [
        Column(
            "validation",
            "mean over folds and seeds of the best validation score",
            lambda line: line.validation.get("validation"),
            View.ALL,
            f"validation {title_of(metric)}",
            with_interval("validation"),
        ),
        Column(
            "validation_ci95",
            "half the width of its 95 % t-interval over seeds",
            lambda line: line.validation.get("validation_ci95"),
        ),
        Column(
            "validation_sd",
            "standard deviation over the folds, mean over seeds",
            lambda line: line.validation.get("validation_sd"),
            View.LATEX if tested else View.ALL,
            "fold sd",
            in_percent("validation_sd"),
        ),
        Column(
            "seeds",
            "n of the validation score",
            lambda line: line.validation.get("seeds", 0),
            View.LATEX if tested else View.ALL,
            "n",
        ),
    ]


def _test_columns(metrics: Sequence[str], single: bool) -> list[Column[Line]]:
    if not metrics:
        return []
    scores = [
        column
        for metric in metrics
        for embedding in EMBEDDINGS
        for column in _score_columns(metric, embedding, single)
    ]
    return [
        *scores,
        Column(
            "test_seeds",
            "n of the test scores",
            lambda line: len(line.tested) or None,
            View.LATEX,
            "n tested",
            lambda cells: _short(cells["test_seeds"]),
        ),
        Column(
            "kind",
            f"`{TEST_SELECTED}`: the protocol reports the epoch that was best on the test classes",
            lambda line: line.tested[0].kind if line.tested else None,
        ),
    ]


def _score_columns(metric: str, embedding: str, single: bool) -> list[Column[Line]]:
    name, title = f"{metric}_{embedding}", title_of(metric)
    half_width = f"{name}_ci95"
    first = metric in SHOWN_METRICS and embedding == EMBEDDINGS[0]
    what = f"{title} on the test classes, {embedding}"
    empty = single and embedding != EMBEDDINGS[0]
    return [
        Column(
            name,
            f"{what}: mean over seeds",
            lambda line: line.scores.get(name),
            View.ALL if first else View.CSV if empty else View.LATEX,
            title if single else f"{title} {embedding}",
            with_interval(name, metric),
        ),
        Column(
            half_width, f"{what}: half its 95 % interval", lambda line: line.scores.get(half_width)
        ),
    ]


def _printed_columns(published: Sequence[PublishedValue]) -> list[Column[Line]]:
    titles = {_printed_name(value): _printed_title(value) for value in published}
    columns = [_printed_column(name, title) for name, title in titles.items()]
    if columns:
        explanation = "whether that was read off a plot"
        columns.append(Column(READ_OFF, explanation, lambda line: line.printed.get(READ_OFF)))
    return columns


def _printed_column(name: str, title: str) -> Column[Line]:
    return Column(
        name,
        "what the paper printed, as a part of 1",
        lambda line: line.printed.get(name),
        View.ALL,
        f"published {title}",
        lambda cells: "" if is_missing(cells[name]) else f"{100 * cells[name]:.4g}",
    )


def _notes(cells: Cells) -> str:
    """What to know about a point, in words."""
    read_off = cells.get(READ_OFF)
    of_plot = not is_missing(read_off) and bool(read_off)
    notes = ["failed" if cells["failure"] else "", "published: read off a plot" if of_plot else ""]
    return "; ".join(filter(None, notes))


Run = tuple[str, str, str, int]


def _run(table: str, method: str, params: Mapping[str, Any], seed: int) -> Run:
    return table, method, key_of(params), seed


def _records(
    folder: Path, plan: SweepPlan, problems: list[str]
) -> tuple[dict[Run, list[ValidationRecord]], dict[Run, list[TestRecord]]]:
    """The records of each point."""
    validated: dict[Run, list[ValidationRecord]] = defaultdict(list)
    tested: dict[Run, list[TestRecord]] = defaultdict(list)
    for table in sorted({point["table"] for point in plan.points}):
        for path in find_validations(folder / table):
            try:
                record = ValidationRecord.read(path)
            except RecordError as error:
                problems.append(str(error))
                continue
            validated[_run_of(table, record)].append(record)
        for test in read_tests(folder / table, problems):
            if test.kind in ("reproduction", TEST_SELECTED):
                tested[_run_of(table, test)].append(test)
    return validated, tested


def _run_of(table: str, record: ValidationRecord | TestRecord) -> Run:
    return _run(table, record.identity["method"], record.params, record.identity["seed"])


def _validation(repetitions: Iterable[Sequence[FoldFacts]]) -> dict[str, Any]:
    """Nothing of models that no class validated."""
    scores = [
        [fold["best_score"] for fold in folds if "best_score" in fold] for folds in repetitions
    ]
    scored = [folds for folds in scores if folds]
    if not scored:
        return {}
    mean, half_width = mean_and_interval([float(np.mean(folds)) for folds in scored])
    spreads = [found for found in map(spread, scored) if found is not None]
    return {
        "validation": mean,
        "validation_ci95": half_width,
        "validation_sd": np.mean(spreads) if spreads else None,
        "seeds": len(scored),
    }


def _printed_name(value: PublishedValue) -> str:
    return "_".join(filter(None, ["published", value["metric"], value["embedding"]]))


def _printed_title(value: PublishedValue) -> str:
    return " ".join(filter(None, [title_of(value["metric"]), value["embedding"]]))


def _plain(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list | dict) else value


def short_names(axes: Sequence[str]) -> dict[str, str]:
    """Axis -> its name without what it is a part of, unless another axis has that name, too."""
    last = {axis: axis.rpartition(".")[2] for axis in axes}
    names = list(last.values())
    return {axis: name if names.count(name) == 1 else axis for axis, name in last.items()}


def _short(value: Any) -> str:
    if is_missing(value):
        return ""
    return f"{value:g}" if isinstance(value, float) else str(value)


def _remarks(sweep: SweepTable) -> list[str]:
    """What a reader must know to read the table right."""
    frame = sweep.frame
    remarks = ["Percent; ± is half the 95 % interval over n seeds, none for a single one."]
    if frame["validation"].notna().any():
        remarks.append("validation: mean over the folds, of classes that were not trained on.")
    if "test_seeds" in frame:
        several = frame["map_at_r_separated"].notna().any()
        remarks.append(
            "concatenated: the embeddings of the fold models side by side; separated: their mean."
            if several
            else "Test scores are of one model."
        )
        remarks[-1] += (
            " The test classes were opened for every point: the best of them is test-selected."
        )
        if (frame["kind"] == TEST_SELECTED).any():
            remarks.append("Each point reports the epoch that was best on the test classes.")
    changed = set(zip(frame["method"], frame["adjusted"].astype(object).fillna("{}"), strict=True))
    for method, adjusted in sorted(changed):
        remarks += [
            f"{method} used {name}={note['used']}, given {note['given']}: {note['reason']}."
            for name, note in json.loads(adjusted).items()
        ]
    if sweep.plan.published:
        remarks.append("published: in percent, by the paper.")
    for method, failure in sorted(set(zip(frame["method"], frame["failure"], strict=True))):
        if failure:
            remarks.append(f"{method} failed: {failure}")
    return remarks


def _title(sweep: SweepTable) -> str:
    """What was swept, on what."""
    plan, frame = sweep.plan, sweep.frame
    axes = ", ".join(axis for axis in plan.axes if axis != "loss")
    parts = [axes, *(", ".join(sorted(frame[n].dropna().unique())) for n in ("dataset", "trunk"))]
    if "protocol" in plan.settings:
        parts.append(f"protocol {plan.settings['protocol']}")
    return f"{sweep.folder.name}: {', '.join(filter(None, parts))}"
