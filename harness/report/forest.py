"""Forest plots: scores of rows, and differences of planned comparisons, with their intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, cast

from harness.judgement.judged import EMBEDDING, METRIC, JudgedPair, Score
from harness.judgement.words import interval_words, points, short_answer, signed
from harness.report.table import Table
from harness.tables.column import is_missing
from harness.verdicts.conclusions import planned_pairs

LEFT, RIGHT = 2.0, 98.0  # ends of an axis, in percent of its width
BREAK = 12.0  # width of the part behind a break of the axis
NEAR = 4  # a value within a quarter of the width is drawn without a break
MOST_TICKS = 5


@dataclass(frozen=True)
class Axis:
    """From values to places, in percent of the width.

    Attributes:
        start, end: places of the lowest and the highest value.
        breaks: places where the axis is broken; values beyond are drawn at its end.
    """

    low: float
    high: float
    start: float
    end: float
    breaks: tuple[float, ...]

    def place(self, value: float) -> float:
        if value < self.low:
            return LEFT + BREAK / 3
        if value > self.high:
            return RIGHT - BREAK / 3
        span = self.high - self.low
        return round(self.start + (self.end - self.start) * (value - self.low) / span, 2)

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """Place and text of round values."""
        step = _round_step(self.high - self.low)
        first = math.ceil(self.low / step)
        values = [i * step for i in range(first, math.floor(self.high / step) + 1)]
        return [(self.place(value), f"{100 * value:g}") for value in values]


def axis_of(values: Sequence[float], far: Sequence[float] = ()) -> Axis:
    """An axis on which `values` fill the width.

    Args:
        far: further values. Those that are not near are drawn beyond a break.
    """
    low, high = min(values), max(values)
    width = high - low or 1e-3
    near = [v for v in far if low - width / NEAR <= v <= high + width / NEAR]
    low, high = min([low, *near]) - width / 20, max([high, *near]) + width / 20
    left, right = any(value < low for value in far), any(value > high for value in far)
    start, end = LEFT + BREAK * left, RIGHT - BREAK * right
    breaks = [start - BREAK / 4] * left + [end + BREAK / 4] * right
    return Axis(low, high, start, end, tuple(breaks))


def _round_step(width: float) -> float:
    """The smallest of 1, 2, 5, 10, ... that gives few ticks."""
    smallest = 10.0 ** math.floor(math.log10(width / MOST_TICKS))
    steps = (smallest * size * 10**power for power in count() for size in (1, 2, 5))
    return next(step for step in steps if width / step <= MOST_TICKS)


@dataclass(frozen=True)
class Mark:
    """A value and its interval, at their places on an axis."""

    at: float
    low: float
    high: float


@dataclass(frozen=True)
class ScoreRow:
    """A row of a table.

    Attributes:
        kind: "leader" if it is not shown to differ from the best row, "trained" or "naive".
        letters: of its groups.
        to_base: difference to its base in points; empty without one.
        notes: what to know before believing it.
    """

    name: str
    kind: str
    letters: str
    mark: Mark
    score: str
    to_base: str
    notes: str


@dataclass(frozen=True)
class Claim:
    """A planned comparison.

    Attributes:
        answer, reason: as the verdict says it.
    """

    method: str
    rival: str
    answer: str
    reason: str
    mark: Mark
    difference: str
    interval: str


@dataclass(frozen=True)
class Forest:
    """Both plots of a table.

    Attributes:
        letters: of all groups.
        zero: place of "no difference" on the axis of the claims.
    """

    scores: list[ScoreRow]
    letters: str
    axis: Axis
    claims: list[Claim]
    claims_axis: Axis
    zero: float


def forest(table: Table) -> Forest:
    """The rows of a table, best first, and its planned comparisons."""
    scores = table.scores(METRIC, EMBEDDING)
    rows = [row for row in _rows(table) if not math.isnan(scores[row["method"]].mean)]
    naive = [row["method"] for row in rows if row["kind"] == "naive"]
    ends = [end for name, score in scores.items() if name not in naive for end in _ends(score)]
    far = [scores[name].mean for name in naive]
    axis = axis_of(ends or far, far)
    judged = table.board.judged
    shown = set(table.methods)
    pairs = planned_pairs(judged) if judged is not None else []
    pairs = [pair for pair in pairs if {pair.method, pair.rival} <= shown]
    claims_axis = axis_of([0.0, *(end for pair in pairs for end in _interval(pair))])
    return Forest(
        scores=[_row(row, scores[row["method"]], axis, table.leaders) for row in rows],
        letters="".join(sorted({letter for row in rows for letter in _text(row["group"])})),
        axis=axis,
        claims=[_claim(table, pair, claims_axis) for pair in pairs],
        claims_axis=claims_axis,
        zero=claims_axis.place(0.0),
    )


def _rows(table: Table) -> list[dict[str, Any]]:
    """The cells of each row, by column."""
    return cast(list[dict[str, Any]], table.frame.to_dict("records"))


def _row(row: dict[str, Any], score: Score, axis: Axis, leaders: Sequence[str]) -> ScoreRow:
    name, naive = str(row["method"]), row["kind"] == "naive"
    half = "" if score.half_width is None else f" ± {points(score.half_width)}"
    return ScoreRow(
        name=name,
        kind="naive" if naive else "leader" if name in leaders else "trained",
        letters=_text(row["group"]),
        mark=Mark(axis.place(score.mean), *map(axis.place, _ends(score))),
        score=points(score.mean) + half,
        to_base="" if is_missing(row["to_base"]) else signed(row["to_base"]),
        notes=_text(row["notes"]),
    )


def _claim(table: Table, pair: JudgedPair, axis: Axis) -> Claim:
    assert table.board.judged is not None
    ends = _interval(pair)
    answer = pair.answer.value
    reason = short_answer(table.board.judged, pair).removeprefix(answer).lstrip(":, ")
    return Claim(
        method=pair.method,
        rival=pair.rival,
        answer=answer,
        reason=reason,
        mark=Mark(axis.place(pair.estimate.difference), *map(axis.place, ends)),
        difference=signed(pair.estimate.difference),
        interval=interval_words(pair),
    )


def _ends(score: Score) -> tuple[float, float]:
    half = score.half_width or 0.0
    return score.mean - half, score.mean + half


def _interval(pair: JudgedPair) -> tuple[float, float]:
    found = pair.estimate
    if found.low is None or found.high is None:
        return found.difference, found.difference
    return found.low, found.high


def _text(value: object) -> str:
    return "" if is_missing(value) else str(value)
