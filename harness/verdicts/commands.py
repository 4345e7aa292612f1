"""Commands that would decide what a table leaves open, each with the time that it takes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from harness.judgement.answers import FIRST_SEARCHES
from harness.judgement.judged import Budget, JudgedRow, JudgedTable, Reason
from harness.judgement.statistic import MIN_PAIRS
from harness.judgement.words import spell_time
from harness.plain_text import one_line
from harness.tables.commands import search_and_test


@dataclass(frozen=True)
class Step:
    """What to do next.

    Attributes:
        purpose: what it is good for.
        commands: as a shell takes them.
        seconds: of training, by the records; None where nobody knows.
    """

    purpose: str
    commands: list[str]
    seconds: float | None

    @property
    def lines(self) -> list[str]:
        """A comment with the estimated time, then the commands."""
        time = f", about {spell_time(self.seconds)} of training" if self.seconds else ""
        return [f"# {self.purpose}{time}", *self.commands]


def steps_for(table: JudgedTable, rows: Sequence[JudgedRow]) -> list[Step]:
    """The steps that concern some rows of a table."""
    steps = [
        _missing_rivals(table, rows),
        *_short_searches(table, rows),
        _search_noise(table, rows),
        *_few_seeds(table, rows),
    ]
    return [step for step in steps if step is not None]


def _missing_rivals(table: JudgedTable, rows: Sequence[JudgedRow]) -> Step | None:
    names = {row.name for row in rows}
    rivals = list(dict.fromkeys(rival for name, rival in table.missing if name in names))
    if not rivals:
        return None
    typical = _typical_seconds(table)
    seconds = None if typical is None else typical * len(rivals)
    return Step("Search rivals without a row", search_and_test(table, rivals), seconds)


def _short_searches(table: JudgedTable, rows: Sequence[JudgedRow]) -> list[Step]:
    """Searches whose missing trials leave a pair open."""
    left_open = _rows_with(table, Reason.UNDER_BUDGET)
    steps = []
    for row in rows:
        if row.budget is Budget.SHORT and row.name in left_open and row.trials and row.asked:
            commands = search_and_test(table, [row.method], "--trials", str(row.asked))
            seconds = (row.search_seconds or 0) * (row.asked - row.trials) / row.trials
            steps.append(Step(f"Finish the search of {row.name}", commands, seconds))
    return steps


def _search_noise(table: JudgedTable, rows: Sequence[JudgedRow]) -> Step | None:
    single = [row for row in rows if row.searches == 1]
    if not single:
        return None
    methods = list(dict.fromkeys(row.method for row in single))
    commands = search_and_test(table, methods, "--searches", str(FIRST_SEARCHES))
    seconds = sum(row.search_seconds or 0 for row in single) * (FIRST_SEARCHES - 1)
    return Step("Measure search noise", commands, seconds)


def _few_seeds(table: JudgedTable, rows: Sequence[JudgedRow]) -> list[Step]:
    """Rows at fixed parameters are repeated by the command that made them."""
    few = _rows_with(table, Reason.FEW_RUNS)
    steps = []
    for row in rows:
        if not row.searches and row.name in few:
            made = re.sub(r" --reproductions[ =]\S+", "", row.command)
            command = one_line(f"{made} --reproductions {MIN_PAIRS}")
            steps.append(Step("Repeat with more seeds", [command], None))
    return steps


def _rows_with(table: JudgedTable, reason: Reason) -> set[str]:
    """Rows of pairs that are not decided for a reason."""
    pairs = [pair for pair in table.pairs if pair.reason is reason]
    return {name for pair in pairs for name in (pair.method, pair.rival)}


def _typical_seconds(table: JudgedTable) -> float | None:
    """Mean training time of one search in the table."""
    known = [row.search_seconds for row in table.rows if row.search_seconds]
    return sum(known) / len(known) if known else None
