"""Commands that search and test methods, and those that made the rows of a table."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from harness.judgement.judged import JudgedRow, JudgedTable
from harness.plain_text import one_line
from harness.records.layout import spec_of_label


def search_and_test(table: JudgedTable, methods: Sequence[str], *flags: str) -> list[str]:
    """A search of some methods for a table, then their test.

    Args:
        flags: further flags of the search.
    """
    where = ["--dataset", spec_of_label(table.dataset), "--protocol", table.protocol]
    where += ["--trunk", table.trunk]
    where += ["--allow-missing"] if any(row.missing_images for row in table.rows) else []
    # A user's loss is given by its file: the digest behind its name is of what was searched.
    losses = [re.sub(r"@[0-9a-f]{8}$", ".py", method) for method in methods]
    return [
        one_line(shlex.join(["harness", command, "--loss", *losses, *where, *more]))
        for command, more in (("search", flags), ("eval", ()))
    ]


def commands_that_made(table: JudgedTable, rows: Sequence[JudgedRow]) -> list[str]:
    """Searches and tests of equal budgets together; rows at fixed parameters one by one."""
    by_flags: dict[tuple[str, ...], list[str]] = {}
    fixed = []
    for row in rows:
        if row.searches:
            by_flags.setdefault(_budget_flags(row), []).append(row.method)
        elif row.trained and row.command.startswith("harness "):
            fixed.append(one_line(row.command))
    searched = [search_and_test(table, methods, *flags) for flags, methods in by_flags.items()]
    return [*(command for commands in searched for command in commands), *dict.fromkeys(fixed)]


def _budget_flags(row: JudgedRow) -> tuple[str, ...]:
    """What differs from the defaults of the protocol."""
    trials = ("--trials", str(row.trials)) if row.trials != row.asked and row.trials else ()
    searches = ("--searches", str(row.searches)) if row.searches > 1 else ()
    return (*trials, *searches)
