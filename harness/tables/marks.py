"""Marks behind the name of a method: what a reader must know before believing its row."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd

from harness.judgement.fairness import MOST_AT_FIRST, MOST_AT_LIMIT
from harness.tables.columns import SAME

FEWEST_INSTANCES = 1.5  # CCP with fewer is its first problem alone


@dataclass(frozen=True)
class Mark:
    """A symbol behind some names.

    Attributes:
        latex: the symbol as LaTeX writes it.
        applies: which rows of a table have it.
        explain: the note below the table, from those rows.
        brief: the reason to doubt a row, in few words; empty if the mark is none.
    """

    symbol: str
    latex: str
    applies: Callable[[pd.DataFrame], pd.Series]
    explain: Callable[[pd.DataFrame], str]
    brief: str = ""


def _bounds(rows: pd.DataFrame) -> str:
    found = [
        f"{method} ({', '.join(f'{name} {end}' for name, end in json.loads(ends).items())})"
        for method, ends in zip(rows["method"], rows["on_bound"], strict=True)
    ]
    return f"a best value lies on an end of its range: {', '.join(found)}."


def _almost(rows: pd.DataFrame) -> str:
    found = [f"{m} ({base})" for m, base in zip(rows["method"], rows["almost_base"], strict=True)]
    return f"at its best values it trains almost as its base does: {', '.join(found)}."


MARKS = (
    Mark(
        "≈",
        r"$\approx$",
        lambda frame: frame["indistinguishable"] == SAME,
        lambda rows: "not distinguishable from the best (paired, Holm, 5 %).",
    ),
    Mark(
        "†",
        r"$\dagger$",
        lambda frame: frame["incomplete"],
        lambda rows: "fewer trials or reproductions than the protocol asks for.",
        "fewer trials or reproductions",
    ),
    Mark(
        "‡",
        r"$\ddagger$",
        lambda frame: frame["at_step_limit"] > MOST_AT_LIMIT,
        lambda rows: (
            f"more than {100 * MOST_AT_LIMIT:.0f} % of the models ended at the step limit: they "
            "may not have converged."
        ),
        "cut at the step limit",
    ),
    Mark(
        "◁",
        r"$\triangleleft$",
        lambda frame: frame["at_first_validation"] > MOST_AT_FIRST,
        lambda rows: (
            "most models were best when they were first validated, and may have been better before."
        ),
        "best at the first validation",
    ),
    Mark(
        "§",
        r"\S",
        lambda frame: frame["instances"] < FEWEST_INSTANCES,
        lambda rows: "most models ended before CCP could change its proxies once.",
        "no time to change its proxies",
    ),
    Mark(
        "↑",
        r"$\uparrow$",
        lambda frame: frame["not_flat"].fillna(False),
        lambda rows: (
            "the search was still rising: in the last fifth of its trials, by more than one "
            "standard error of the differences on the same folds."
        ),
        "search still rising",
    ),
    Mark(
        "⊣",
        r"$\dashv$",
        lambda frame: frame["on_bound"] != "{}",
        _bounds,
        "best values on the ends of their ranges",
    ),
    Mark(
        "≡",
        r"$\equiv$",
        lambda frame: frame["almost_base"] != "",
        _almost,
        "best where it is almost its base",
    ),
)


def marked_names(frame: pd.DataFrame) -> list[str]:
    """Every method with its marks."""
    applies = [mark.applies(frame) for mark in MARKS]
    return [
        " ".join([method, *(mark.symbol for mark, rows in zip(MARKS, of_row, strict=True) if rows)])
        for method, *of_row in zip(frame["method"], *applies, strict=True)
    ]


def doubts(row: pd.DataFrame) -> list[str]:
    """Why one row of a table may show less than its method can do, or more."""
    return [mark.brief for mark in MARKS if mark.brief and bool(mark.applies(row).iloc[0])]


def explanations(frame: pd.DataFrame) -> list[str]:
    """What the marks of a table mean; those that it does not have are not mentioned."""
    found = [(mark, frame[mark.applies(frame).astype(bool)]) for mark in MARKS]
    return [f"{mark.symbol} {mark.explain(rows)}" for mark, rows in found if len(rows)]
