"""The table of a sweep: one row for each point, from its plan and its records alone."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import numpy as np
import pandas as pd

from harness.errors import HarnessError
from harness.judgement.fairness import spread
from harness.judgement.stats import mean_and_interval
from harness.metrics.names import EMBEDDINGS, LENGTHS, title_of
from harness.plain_text import markdown_code, markdown_text
from harness.records.layout import PLAN, SWEEP_CSV, SWEEP_LATEX, SWEEP_MARKDOWN, find_validations
from harness.records.provenance import commit_of, versions_of
from harness.records.records import (
    TEST_SELECTED,
    FoldFacts,
    Record,
    RecordError,
    Setting,
    TestRecord,
    ValidationRecord,
)
from harness.records.rows import read_tests
from harness.system.files import write_text
from harness.tables.columns import COST, MADE_BY, MEASURED_UNDER, in_order
from harness.tables.latex import escape
from harness.tables.leaderboard import mean_scores
from harness.tables.rendering import length, markdown_table, percent, to_csv
from harness.tables.training_cost import cost_of

Spell = Callable[[str], str]


class Point(TypedDict):
    """One point of a sweep, and how its records are told from others.

    Attributes:
        values: axis -> value.
        table: protocol / data set - trunk.
        failure: why it has no score, if it has none.
    """

    values: dict[str, Setting]
    method: str
    table: str
    params: dict[str, Setting]
    seed: int
    failure: NotRequired[str]


class PublishedValue(TypedDict):
    """What a paper printed of some points.

    Attributes:
        values: axis -> value that those points have.
        metric: as papers count: in percent.
        embedding: concatenated or separated, where a paper tells them apart.
        read_off: from a plot, hence not exact.
    """

    values: dict[str, Setting]
    metric: str
    embedding: str
    value: float
    read_off: bool


@dataclass(frozen=True)
class SweepPlan(Record):
    """What a sweep varies.

    Attributes:
        axes: in the order in which they were given.
        settings: of the config, what all points share.
        metric: that validation measures.
    """

    axes: list[str]
    settings: dict[str, Any]
    metric: str
    points: list[Point] = field(default_factory=list)
    published: list[PublishedValue] = field(default_factory=list)

    def joined(self, other: SweepPlan, folder: Path) -> SweepPlan:
        """With the points of a later command of the same name; another sweep is refused."""
        for what in ("axes", "settings", "metric"):
            ours, theirs = getattr(self, what), getattr(other, what)
            if ours != theirs:
                raise HarnessError(
                    f"{folder} holds another sweep: its {what} are {_differing(ours, theirs)}, now "
                    f"{_differing(theirs, ours)}\n  give this one a name of its own: --name"
                )
        points = {key_of(point["values"]): point for point in (*self.points, *other.points)}
        return replace(other, points=list(points.values()))


def _differing(one: Any, other: Any) -> str:
    if not isinstance(one, dict):
        return ", ".join(one) if isinstance(one, list) else str(one)
    differing = {name: value for name, value in one.items() if other.get(name) != value}
    return ", ".join(f"{name}={value}" for name, value in differing.items()) or "the same"


def key_of(values: Mapping[str, Any]) -> str:
    """What tells one set of values from another."""
    return json.dumps(values, sort_keys=True)


def read_plan(folder: Path) -> SweepPlan | None:
    """Of a sweep that is there."""
    path = folder / PLAN
    return SweepPlan.read(path) if path.exists() else None


@dataclass(frozen=True)
class SweepTable:
    """The points of a sweep with their scores.

    Attributes:
        problems: records that could not be read.
        failed: of the points that were just run, those without a score, and why.
    """

    folder: Path
    plan: SweepPlan
    frame: pd.DataFrame
    problems: list[str]
    failed: tuple[str, ...] = ()


def build(folder: Path) -> SweepTable:
    """The table of one sweep."""
    plan = read_plan(folder)
    if plan is None:
        raise HarnessError(f"no sweep in {folder}: it has no {PLAN}")
    problems: list[str] = []
    validated, tested = _records(folder, plan, problems)
    rows = []
    for point in plan.points:
        run = _run(point["table"], point["method"], point["params"], point["seed"])
        rows.append(
            {
                **_row(point, validated[run], tested[run]),
                **_published(point, plan.published),
            }
        )
    metrics = in_order(m for row in tested.values() for r in row for m in r.scores["concatenated"])
    printed = list(dict.fromkeys(_column_of(value) for value in plan.published))
    columns = columns_of(plan.axes, metrics if any(tested.values()) else [], printed)
    frame = pd.DataFrame(rows, columns=list(columns))
    return SweepTable(folder, plan, frame, problems)


def write(table: SweepTable) -> list[Path]:
    """Write the table beside its records; returns the files."""
    texts = {
        SWEEP_CSV: to_csv(table.frame),
        SWEEP_MARKDOWN: to_markdown(table),
        SWEEP_LATEX: to_latex(table),
    }
    for name, text in texts.items():
        write_text(table.folder / name, text)
    return [table.folder / name for name in texts]


def columns_of(
    axes: Sequence[str], metrics: Sequence[str], printed: Sequence[str] = ()
) -> dict[str, str]:
    """Every column of sweep.csv, and what it holds."""
    tested = {
        f"{metric}_{embedding}{end}": f"{title_of(metric)} on the test classes, {embedding}{what}"
        for metric in metrics
        for embedding in EMBEDDINGS
        for end, what in (("", ": mean over seeds"), ("_ci95", ": half its 95 % interval"))
    }
    return {
        "method": "name of --loss",
        **{axis: "what the sweep varies" for axis in axes},
        "validation": "mean over folds and seeds of the best validation score",
        "validation_ci95": "half the width of its 95 % t-interval over seeds",
        "validation_sd": "standard deviation over the folds, mean over seeds",
        "seeds": "n of the validation score",
        **tested,
        **({"test_seeds": "n of the test scores", "kind": TEST_SELECTED_MEANS} if metrics else {}),
        **{column: "what the paper printed, as a part of 1" for column in printed},
        **({READ_OFF: "whether that was read off a plot"} if printed else {}),
        **COST,
        "adjusted": "parameters that the method changed: given, used and why, as JSON",
        "failure": "why there is no score",
        **MEASURED_UNDER,
        "params": "all parameters, as JSON",
        **MADE_BY,
    }


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


def _row(
    point: Point, validated: Sequence[ValidationRecord], tested: Sequence[TestRecord]
) -> dict[str, Any]:
    row: dict[str, Any] = {
        "method": point["method"],
        **{axis: _plain(value) for axis, value in point["values"].items()},
        "params": key_of(point["params"]),
        "failure": point.get("failure", ""),
        "seeds": 0,
    }
    # A repetition that was tested had been validated, too.
    records: list[ValidationRecord | TestRecord] = [*validated, *tested]
    by_repetition: dict[int, Sequence[FoldFacts]] = {r.repetition: r.folds for r in records}
    if not by_repetition:
        return row
    models = [fold for folds in by_repetition.values() for fold in folds]
    last = max(records, key=lambda record: record.provenance["time"])
    identity = last.identity
    row |= {
        **_validation(by_repetition.values()),
        **cost_of(models),
        "adjusted": key_of(models[0].get("adjusted", {})),
        "protocol": identity["protocol"]["name"],
        "dataset": identity["dataset"],
        "trunk": identity["trunk"],
        "commit": commit_of(last.provenance),
        "versions": versions_of(last.provenance),
        "command": last.provenance["command"].replace("\n", " "),
    }
    if tested:
        row |= {**mean_scores(list(tested)), "test_seeds": len(tested), "kind": tested[0].kind}
    return row


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


READ_OFF = "published_read_off"
TEST_SELECTED_MEANS = (
    f"`{TEST_SELECTED}`: the protocol reports the epoch that was best on the test classes"
)


def _column_of(value: PublishedValue) -> str:
    return "_".join(filter(None, ["published", value["metric"], value["embedding"]]))


def _published(point: Point, published: Sequence[PublishedValue]) -> dict[str, Any]:
    """What the paper has for a point."""
    has = point["values"].get
    own = [v for v in published if all(has(axis) == at for axis, at in v["values"].items())]
    if not own:
        return {}
    numbers = {_column_of(value): value["value"] / 100 for value in own}
    return {**numbers, READ_OFF: any(value["read_off"] for value in own)}


def _plain(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list | dict) else value


def short_names(axes: Sequence[str]) -> dict[str, str]:
    """Axis -> its name without what it is a part of, unless another axis has that name, too."""
    last = {axis: axis.rpartition(".")[2] for axis in axes}
    names = list(last.values())
    return {axis: name if names.count(name) == 1 else axis for axis, name in last.items()}


def shown(table: SweepTable) -> pd.DataFrame:
    """The columns that people read first, as text: percent with the half-width of the interval."""
    frame = table.frame
    text = pd.DataFrame({"method": frame["method"]})
    for axis, name in short_names(table.plan.axes).items():
        if axis != "loss":
            text[name] = [_short(value) for value in frame[axis]]
    if frame["validation"].notna().any() or "test_seeds" not in frame:
        text[f"validation {title_of(table.plan.metric)}"] = [
            percent(mean, half)
            for mean, half in zip(
                frame["validation"].astype(float),
                frame["validation_ci95"].astype(float),
                strict=True,
            )
        ]
        text["fold sd"] = [percent(value) for value in frame["validation_sd"].astype(float)]
        text["n"] = frame["seeds"].astype(str)
    for column in [c for c in frame.columns if c.endswith(EMBEDDINGS)]:
        metric, _, embedding = column.rpartition("_")
        spell = length if metric in LENGTHS else percent
        values = frame[column].astype(float)
        if values.notna().any():
            text[f"{title_of(metric)} {embedding}"] = [
                spell(mean, half)
                for mean, half in zip(values, frame[f"{column}_ci95"].astype(float), strict=True)
            ]
    if "test_seeds" in frame:
        text["n tested"] = frame["test_seeds"].astype("Int64").astype("string").fillna("")
    for column in [c for c in frame.columns if c.startswith("published_") and c != READ_OFF]:
        metric, _, embedding = column.removeprefix("published_").rpartition("_")
        name = (
            f"{title_of(metric)} {embedding}" if embedding in EMBEDDINGS else title_of(column[10:])
        )
        text[f"published {name}"] = [
            f"{'≈ ' if read_off is True else ''}{100 * value:.4g}" if value == value else ""
            for value, read_off in zip(frame[column].astype(float), frame[READ_OFF], strict=True)
        ]
    if frame["failure"].any():
        text["failed"] = ["failed" if failure else "" for failure in frame["failure"]]
    return text


def _short(value: Any) -> str:
    if isinstance(value, float) and np.isnan(value):
        return ""
    return f"{value:g}" if isinstance(value, float) else str(value)


def notes_on(table: SweepTable) -> list[str]:
    """What a reader must know to read the table right."""
    frame = table.frame
    notes = ["Percent; ± is half the 95 % interval over n seeds, none for a single one."]
    if frame["validation"].notna().any():
        notes.append("validation: mean over the folds, of classes that were not trained on.")
    if "test_seeds" in frame:
        notes.append(
            "concatenated: the embeddings of the fold models side by side; separated: their mean. "
            "The test classes were opened for every point: the best of them is test-selected."
        )
        if (frame["kind"] == TEST_SELECTED).any():
            notes.append("Each point reports the epoch that was best on the test classes.")
    changed = set(zip(frame["method"], frame["adjusted"].astype(object).fillna("{}"), strict=True))
    for method, adjusted in sorted(changed):
        notes += [
            f"{method} used {name}={note['used']}, given {note['given']}: {note['reason']}."
            for name, note in json.loads(adjusted).items()
        ]
    if table.plan.published:
        notes.append("published: in percent, by the paper; ≈ was read off a plot.")
    for method, failure in sorted(set(zip(frame["method"], frame["failure"], strict=True))):
        if failure:
            notes.append(f"{method} failed: {failure}")
    return notes


def heading(table: SweepTable, text: Spell = str, code: Spell = str) -> str:
    """What was swept, on what.

    Args:
        text, code: how names are written.
    """
    plan, frame = table.plan, table.frame
    axes = ", ".join(code(axis) for axis in plan.axes if axis != "loss")
    on = [", ".join(sorted(frame[name].dropna().unique())) for name in ("dataset", "trunk")]
    parts = [axes, *map(text, on)]
    if "protocol" in plan.settings:
        parts.append(f"protocol {code(str(plan.settings['protocol']))}")
    return f"{text(table.folder.name)}: {', '.join(filter(None, parts))}"


def to_markdown(table: SweepTable) -> str:
    """The table with what it varies above and how to read it below."""
    commands = map(markdown_code, sorted(set(table.frame["command"].dropna())))
    made = ", ".join(commands)
    lines = [
        f"# {heading(table, markdown_text, markdown_code)}",
        "",
        *markdown_table(shown(table)),
        "",
        *map(markdown_text, notes_on(table)),
        *(["", f"Made by {made}."] if made else []),
    ]
    return "\n".join(lines) + "\n"


def to_latex(table: SweepTable) -> str:
    """A table environment to \\input; plain LaTeX, no package needed."""
    text = shown(table)
    lines = [
        r"\begin{table}",
        r"\centering\scriptsize",
        rf"\begin{{tabular}}{{l{'r' * (len(text.columns) - 1)}}}",
        r"\hline",
        rf"{' & '.join(map(escape, text.columns))} \\",
        r"\hline",
        *(rf"{' & '.join(map(escape, row))} \\" for row in text.astype(str).to_numpy()),
        r"\hline",
        r"\end{tabular}",
        rf"\caption{{{escape(' '.join([heading(table) + '.', *notes_on(table)]))}}}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"
