"""The sweep that reproduces a figure of a paper, or a quick or changed form of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness import registry
from harness.errors import HarnessError, convert_value_errors, unknown
from harness.metrics.names import EMBEDDINGS, METRICS, check_metrics
from harness.protocols.protocol import with_change
from harness.records.published import PAPERS, find_folder, read
from harness.records.sweep_plan import PublishedValue
from harness.sweeping.axes import LOSS, VARIANT, Axis, config_at, make_axis, parse_axis
from harness.sweeping.paper_figures import PaperFigure
from harness.sweeping.run import Sweep

# A quick run uses the embedded data set and at most this many values of each axis.
QUICK_DATASET = "glyphs"
QUICK_VALUES = 3


def build_sweep(
    figure: PaperFigure,
    values: Mapping[str, Any] | None = None,
    axes: Sequence[Axis] = (),
    quick: bool = False,
    test: bool = False,
    seeds: int | None = None,
) -> Sweep:
    """The sweep that reproduces a figure: as in the paper, except for what the arguments change.

    Args:
        values: config values of the user. With another data set, protocol or trunk than the
            paper's, the paper's numbers are left out, and the test classes are opened only if
            `test` is set.
        axes: replace axes of the figure with the same key, or are added to them.
        quick: use the embedded data set, few steps, and the ends and the middle of each axis.
        test: open the test classes.
        seeds: runs of each point. Default: as in the paper, or 1 if `quick` is set.
    """
    values = values or {}
    elsewhere = bool({"dataset", "protocol", "trunk", "weights"} & values.keys())
    original = _original(figure, Path(values.get("results_dir", "results")))
    tested = test or (original.test and not elsewhere)
    over = {axis.key: axis for axis in original.axes}
    settings = dict(original.values)
    if quick:
        over = {key: _ends_and_middle(axis) for key, axis in over.items()}
        settings |= {"dataset": QUICK_DATASET, "protocol": _quick_protocol(figure.protocol)}
    if quick or "dataset" in values:
        over.pop("dataset", None)
    params = {**settings.get("params", {}), **values.get("params", {})}
    settings |= {**values, **({"params": params} if params else {})}
    changed = [str(values[key]) for key in ("dataset", "protocol", "trunk") if key in values]
    parts = [figure.name, *(["quick"] if quick else []), *changed]
    return replace(
        original,
        axes=list((over | {axis.key: axis for axis in axes}).values()),
        values=settings,
        name="-".join(parts).replace(":", "_").replace("/", "_"),
        test=tested,
        seeds=seeds or (1 if quick else figure.seeds),
        metrics=figure.metrics if tested else (),
        published=[] if quick or elsewhere else original.published,
    )


def _original(figure: PaperFigure, results: Path) -> Sweep:
    """The sweep of the paper, with its numbers; names that do not exist are refused."""
    with _naming(figure, "paper"):
        if figure.paper not in PAPERS:
            raise unknown("paper", figure.paper, PAPERS)
    with _naming(figure, "dataset"):
        registry.load_dataset(figure.dataset)
    with _naming(figure, "protocol"):
        registry.load_protocol(figure.protocol, figure.dataset)
    with _naming(figure, "losses"):
        for loss in figure.losses:
            registry.load_method(loss)
    with _naming(figure, "metrics"):
        check_metrics(figure.metrics)
    with _naming(figure, "axes"):
        axes = [_axis(key, found) for key, found in figure.axes.items()]
    sweep = Sweep(
        losses=figure.losses,
        axes=axes,
        values={"dataset": figure.dataset, "protocol": figure.protocol, **figure.settings},
        variants={name: _changes_of(figure, name) for name in figure.variants},
        test=figure.test,
        published=[*_read_off(figure), *_from_tables(figure, find_folder(results))],
    )
    with _naming(figure, "settings"):
        config = sweep.config
    with _naming(figure, "variants"):
        points = sweep.points()
    for point, changes in points:
        with _naming(figure, f"the point {point}"):
            at = config_at(config, {key: v for key, v in changes.items() if key != LOSS})
            method = registry.load_method(changes[LOSS])
            preset = method.preset(at.preset, at.dataset)
            registry.load_protocol(at.protocol, at.dataset, preset.protocol)
            method.cast(at.params, at.dataset, num_classes=2)
    for value in sweep.published:
        with _naming(figure, "read_off" if value["read_off"] else "tables"):
            if value["metric"] not in METRICS:
                check_metrics([value["metric"]])
            if value["embedding"] not in ("", *EMBEDDINGS):
                raise unknown("embedding", value["embedding"], EMBEDDINGS)
            if not any(value["values"].items() <= point.items() for point, _ in points):
                raise HarnessError(f"no point of the figure has the values {value['values']}")
    return sweep


def _axis(key: str, found: list[Any] | str) -> Axis:
    return parse_axis(f"{key}={found}") if isinstance(found, str) else make_axis(key, found)


def _changes_of(figure: PaperFigure, variant: str) -> dict[str, Any]:
    """All settings that a variant changes."""
    parts = figure.variants[variant]
    found: dict[str, Any] = {}
    for part in parts if isinstance(parts, list) else [parts]:
        if isinstance(part, str) and part not in figure.changes:
            with _naming(figure, f"variants.{variant}"):
                raise unknown("entry of `changes`", part, figure.changes)
        found |= figure.changes[part] if isinstance(part, str) else part
    return found


def _read_off(figure: PaperFigure) -> Iterator[PublishedValue]:
    for number, entry in enumerate(figure.read_off):
        lists = [*entry.scores.values(), *(v for v in entry.at.values() if isinstance(v, list))]
        if len({len(values) for values in lists}) != 1:
            with _naming(figure, f"read_off[{number}]"):
                raise HarnessError("all lists of `at` and `scores` must have the same length")
        for place in range(len(lists[0])):
            at = {key: v[place] if isinstance(v, list) else v for key, v in entry.at.items()}
            for measured, numbers in entry.scores.items():
                metric, _, embedding = measured.partition(" ")
                yield _published(at, metric, embedding, numbers[place], read_off=True)


def _from_tables(figure: PaperFigure, folder: Path) -> Iterator[PublishedValue]:
    for number, cited in enumerate(figure.tables):
        points = cited.rows or {name: {VARIANT: name} for name in figure.variants}
        files = {path.name: path for path in folder.glob("*.csv")}
        with _naming(figure, f"tables[{number}]"):
            if cited.file not in files:
                raise unknown("file of published numbers", cited.file, files)
            rows = read(files[cited.file])
            rows = rows[(rows["paper"] == figure.paper) & (rows["table"] == cited.table)]
            if "dim" in rows:
                sized = rows["method"] + " (" + rows["dim"] + "-d)"
                rows = rows.assign(method=sized.where(sized.isin(points), rows["method"]))
            for method in points.keys() - {*rows["method"]}:
                raise unknown(f"row of '{cited.table}'", method, rows["method"].unique())
        for row in rows.to_dict("records"):
            if row["method"] in points and row["metric"] in cited.metrics:
                on = {"dataset": row["dataset"]} if "dataset" in figure.axes else {}
                at = {**points[row["method"]], **on}
                yield _published(at, row["metric"], "", float(row["value"]), read_off=False)


def _published(
    at: dict[str, Any], metric: str, embedding: str, value: float, read_off: bool
) -> PublishedValue:
    return PublishedValue(
        values=at, metric=metric, embedding=embedding, value=value, read_off=read_off
    )


def _ends_and_middle(axis: Axis) -> Axis:
    count = len(axis.values)
    places = sorted({i * (count - 1) // (QUICK_VALUES - 1) for i in range(QUICK_VALUES)})
    return replace(axis, values=tuple(axis.values[place] for place in places))


def _quick_protocol(name: str) -> str:
    """The name of a protocol with the changes that make it short."""
    protocol = registry.load_protocol(name, QUICK_DATASET)
    if protocol.epochs:
        changes: dict[str, Any] = {"epochs": 2}
        if protocol.validate_epochs:
            changes["validate_epochs"] = None
        if protocol.warmup_epochs > 1:
            changes["warmup_epochs"] = 1
    else:
        changes = {"max_steps": 50, "validate_every": 25}
    for field_name, value in changes.items():
        name = with_change(name, field_name, value)
    return name


@contextmanager
def _naming(figure: PaperFigure, key: str) -> Iterator[None]:
    """Begin the message of every error with the file and the key that caused it."""
    try:
        with convert_value_errors():
            yield
    except HarnessError as error:
        raise HarnessError(f"{figure.path}: {key}: {error}") from None
