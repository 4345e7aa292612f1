"""The verdict as Markdown, made from a judgement."""

from __future__ import annotations

import re
import textwrap
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

from harness.judgement.judge import find_rows
from harness.judgement.judged import JudgedPair, JudgedRow, JudgedTable, Judgement
from harness.judgement.ranks import rank_tables
from harness.judgement.words import (
    critical_words,
    interval_words,
    listed,
    p_words,
    pair_notes,
    row_notes,
    scope_words,
    score_words,
    sentence,
    short_answer,
    signed,
)
from harness.metrics.names import title_of
from harness.plain_text import markdown_cell, markdown_code, markdown_text
from harness.verdicts import conclusions
from harness.verdicts.commands import steps_for
from harness.verdicts.gains import ABOUT_GAINS, Gain, gains


def write_verdict(
    judgement: Judgement, method: str | None, published: Path, full_name: Callable[[str], str]
) -> str:
    """What methods claim in all tables, or one method against the other rows.

    Args:
        method: name of a row, an alias or a loss file; None for all.
        published: folder of the papers' numbers.
        full_name: as in `find_rows`.
    """
    if method is None:
        return verdict_text(judgement, published)
    return method_text(find_rows(judgement, method, full_name))


def verdict_text(judgement: Judgement, published: Path) -> str:
    """All tables: what methods claim, groups of rows, and what would decide the rest.

    Args:
        published: folder of the papers' numbers.
    """
    tables = judgement.tables
    parts = [
        ["# Verdict"],
        [markdown_text(conclusions.of_tables(tables))],
        [conclusions.HOW_TO_READ],
    ]
    for table in tables:
        parts += _table(table, gains(table, published))
    parts += _ranks(tables)
    return _joined(parts)


def method_text(rows: Sequence[tuple[JudgedTable, JudgedRow]]) -> str:
    """One method against all other rows.

    Args:
        rows: its row in every table that has it.
    """
    name = markdown_text(rows[0][1].name)
    parts = [[f"# {name} against the other rows"]]
    parts += [[markdown_text(conclusions.of_row(table, row))] for table, row in rows[:1]]
    parts += [[conclusions.HOW_TO_READ]]
    for place, (table, row) in enumerate(rows):
        parts += [[f"## {_title(table)}"]]
        parts += [[markdown_text(conclusions.of_row(table, row))]] if place else []
        pairs = table.pairs_of(row.name)
        declared = [pair for pair in pairs if pair.relation and table.by_name[pair.rival].trained]
        parts += [[_item(sentence(table, pair)) for pair in declared]]
        notes = row_notes(row)
        parts += [[_item(f"Notes on {row.name}: {'; '.join(notes)}.")] if notes else []]
        parts += [_pairs_table(table, pairs, of_one_row=True)] if pairs else []
        parts += [_commands(table, [row])]
    parts += _ranks([table for table, _ in rows])
    return _joined(parts)


def _joined(parts: Sequence[Sequence[str]]) -> str:
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _title(table: JudgedTable) -> str:
    where = markdown_text(f"{table.dataset}, {table.trunk}")
    return f"{where}, protocol {markdown_code(table.protocol)}"


def _table(table: JudgedTable, left: Sequence[Gain]) -> list[list[str]]:
    planned = conclusions.planned_pairs(table)
    return [
        [f"## {_title(table)}"],
        [markdown_text(conclusions.of_table(table))],
        _rows_table(table),
        _section("### Planned comparisons", _pairs_table(table, planned) if planned else []),
        _notes(table, planned),
        _section("### What is left of the papers' gains", _gains(left)),
        _section("### Remarks", _remarks(table)),
        _commands(table, table.trained_rows),
    ]


def _section(heading: str, lines: Sequence[str]) -> list[str]:
    return [heading, "", *lines] if lines else []


def _rows_table(table: JudgedTable) -> list[str]:
    rows = [
        {
            "rank": "" if row.rank is None else str(row.rank),
            "row": row.name,
            "MAP@R (%)": score_words(row),
            "group": row.letters,
            "notes": "; ".join(row_notes(row)),
        }
        for row in table.rows
    ]
    return [
        *_markdown(rows),
        "",
        "Two rows share a group letter exactly if they are not shown to differ.",
    ]


def _pairs_table(
    table: JudgedTable, pairs: Sequence[JudgedPair], of_one_row: bool = False
) -> list[str]:
    """Differences with intervals, p-values and answers."""
    cells = []
    scopes = {scope_words(pair) for pair in pairs}
    for shown in pairs:
        what = {"against": shown.rival}
        if not of_one_row:
            what = {"comparison": f"{shown.method} - {shown.rival}"}
        cells.append(
            {
                **what,
                "difference": signed(shown.estimate.difference),
                "95% interval": interval_words(shown),
                "p (Holm)": p_words(shown),
                "answer": short_answer(table, shown)
                + (f" ({scope_words(shown)})" if len(scopes) > 1 else ""),
            }
        )
    said = [f"Scope of all answers: {scopes.pop()}."] if len(scopes) == 1 else []
    return [*_markdown(cells), *([""] if said else []), *said]


def _notes(table: JudgedTable, pairs: Sequence[JudgedPair]) -> list[str]:
    return [
        _item(f"{pair.method} and {pair.rival}: {'; '.join(notes)}.")
        for pair in pairs
        if (notes := pair_notes(table, pair))
    ]


def _gains(left: Sequence[Gain]) -> list[str]:
    if not left:
        return []
    rows = [
        {
            "comparison": f"{gain.method} over {gain.rival}",
            "measured by": title_of(gain.metric),
            "published": f"{gain.published:+.2f}",
            "here": f"{gain.ours:+.2f}",
            "left": f"{gain.share:.0%}" if gain.share is not None else "",
            "source": gain.source,
        }
        for gain in left
    ]
    return [
        *_markdown(rows),
        "",
        ABOUT_GAINS,
    ]


def _remarks(table: JudgedTable) -> list[str]:
    said = list(table.observations)
    missing_images = max(row.missing_images for row in table.rows)
    if missing_images:
        said.append(f"{missing_images:,} images of {table.dataset} are missing or broken.")
    by_commit: dict[str, list[str]] = defaultdict(list)
    for row in table.rows:
        by_commit[row.commit[:10] or "none"].append(row.name)
    if len(by_commit) > 1:
        each = [f"{commit}: {', '.join(names)}" for commit, names in by_commit.items()]
        said.append(f"Rows by commit of the code: {'; '.join(each)}.")
    families = [f for f in table.families if f.tests]
    if families:
        sizes = listed([f"{family.tests} ({family.name})" for family in families])
        said.append(
            f"Tests in each family: {sizes}. The chance of any false claim in this table is at "
            f"most {table.error_rate:.0%}."
        )
    return [_item(line) for line in said if line]


def _commands(table: JudgedTable, rows: Sequence[JudgedRow]) -> list[str]:
    lines = [line for step in steps_for(table, rows) for line in step.lines]
    return _section("### What would decide the rest", ["```", *lines, "```"] if lines else [])


def _ranks(tables: Sequence[JudgedTable]) -> list[list[str]]:
    """Average ranks over tables that differ in their data set alone."""
    parts = []
    for found in rank_tables(tables):
        by_method = found.ranks.by_method
        said = ", ".join(f"{method} {mean:.1f}" for method, mean in by_method.items()) + "."
        if found.partial:
            said += f" Ranked are the {len(by_method)} methods that all of these tables have."
        if found.left_out:
            said += f" Not ranked, because they share too few methods: {listed(found.left_out)}."
        said += f" {critical_words(found.ranks)}"
        names = markdown_text(listed(found.ranks.datasets))
        where = f"{markdown_text(found.trunk)}, {markdown_code(found.protocol)}"
        parts += [[f"## Average ranks over {names}, {where}"], [markdown_text(said)]]
    return parts


def _item(text: str) -> str:
    return f"- {markdown_text(text)}"


def _markdown(rows: Sequence[dict[str, str]]) -> list[str]:
    lines = [list(rows[0]), *(list(row.values()) for row in rows)]
    head, *body = [f"| {' | '.join(map(markdown_cell, line))} |" for line in lines]
    return [head, f"|{'---|' * len(rows[0])}", *body]


def wrapped(text: str, width: int) -> str:
    """Text for a terminal: no line but those of code is longer than its width."""
    lines: list[str] = []
    cells: list[list[str]] = []
    code = False
    for line in [*text.splitlines(), ""]:
        if line.startswith("|") and not code:
            inner = _CELL_BORDER.split(line)[1:-1]
            cells.append([_ESCAPED.sub(r"\1", cell.strip()) for cell in inner])
            continue
        lines += _aligned(cells, width)
        cells = []
        code ^= line.startswith("```")
        if code or line.startswith("```"):
            lines.append(line)
        else:
            plain = _ESCAPED.sub(r"\1", line)
            lines += _wrapped_line(plain, width, "  " if line.startswith("- ") else "")
    return "\n".join(lines)


_ESCAPED = re.compile(r"\\([^\w\s])")
_CELL_BORDER = re.compile(r"(?<!\\)\|")


def _aligned(cells: Sequence[Sequence[str]], width: int) -> list[str]:
    """A Markdown table with aligned columns, the last one wrapped."""
    if not cells:
        return []
    head, _, *body = cells
    widths = [max(len(row[i]) for row in (head, *body)) for i in range(len(head) - 1)]
    room = max(width - sum(widths) - 2 * len(widths), 20)
    lines = []
    for row in (head, *body):
        first = "".join(f"{cell:{size}}  " for cell, size in zip(row, widths, strict=False))
        for part in _wrapped_line(row[-1], room):
            lines.append(f"{first}{part}".rstrip())
            first = " " * len(first)
        if row is head:
            lines.append("-" * min(width, sum(widths) + 2 * len(widths) + room))
    return lines


def _wrapped_line(line: str, width: int, indent: str = "") -> list[str]:
    return textwrap.wrap(
        line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    ) or [""]
