"""Our scores beside the numbers that papers printed, where the protocols agree."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd

from harness.metrics.names import EMBEDDINGS, title_of
from harness.records.published import CLASSIC, METHODS, SCORES, VARIANTS, read
from harness.records.records import TEST_SELECTED
from harness.records.rows import Row, label_of, read_rows, setting
from harness.tables.column import Cells, Column, Table, View, frame_of, is_missing
from harness.tables.mean_scores import mean_and_interval

# At whose values a row is still that of the paper.
PRESETS = ("paper", "official", "ccp")


@dataclass(frozen=True)
class Beside:
    """Our scores with the published ones.

    Attributes:
        rows: what may be compared, in percent.
        differences: why the rest may not.
    """

    rows: pd.DataFrame
    differences: list[str] = field(default_factory=list)

    @property
    def table(self) -> Table:
        return Table("Ours and published, in percent", COLUMNS, self.rows)


Compared = Mapping[str, Any]  # one score of ours with that of a paper, by column


def _percent(name: str, explanation: str, sign: str = "") -> Column[Compared]:
    """A number that people see with its interval."""

    def spell(cells: Cells) -> str:
        half_width = cells[f"{name}_ci95"]
        interval = "" if is_missing(half_width) else f" ± {half_width:.2f}"
        return f"{cells[name]:{sign}.2f}{interval}"

    return Column(name, explanation, shown=View.ALL, text=spell)


def _spell_score(cells: Cells) -> str:
    return f"{title_of(cells['metric'])} {cells['embedding']}"


COLUMNS: tuple[Column[Compared], ...] = (
    Column("method", "name of --loss", shown=View.ALL),
    Column("embedding", "concatenated or separated"),
    Column("metric", "what was measured", shown=View.ALL, title="score", text=_spell_score),
    _percent("ours", "mean over our reproductions, in percent"),
    Column("ours_ci95", "half the width of its 95 % interval"),
    _percent("published", "the paper's value"),
    Column("published_ci95", "the paper's interval, where it gives one"),
    Column("ours_sd", "standard deviation over our reproductions"),
    Column("published_sd", "the paper's, where it gives one"),
    _percent("difference", "ours minus published", "+"),
    Column(
        "difference_ci95",
        "root of the sum of the squares of both; of ours alone without the paper's",
    ),
    Column("protocol_variant", "protocol of the paper", shown=View.ALL, title="protocol"),
    Column("source", "where the value is printed"),
)


# Protocol of a paper's row, data set -> every field that a result depends on, by harness.registry.
SettingsOf = Callable[[str, str], dict[str, Any]]


def beside(table: Path, folder: Path, settings_of: SettingsOf) -> Beside:
    """The rows of a table with the published values that were measured in the same way."""
    rows = read_rows(table, [])
    dataset = rows[0][0].identity["dataset"] if rows else ""
    scores = _scores_on(dataset, folder)
    if scores.empty:
        return Beside(frame_of(COLUMNS, []), [f"no paper has numbers on {dataset}"])
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
    return Beside(frame_of(COLUMNS, found), reasons)


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
