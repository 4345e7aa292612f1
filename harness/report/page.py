"""The page: one HTML file that makes no network requests.

Tables and forest plots are plain HTML. The other figures are drawn by Plotly when they come into
view, from data that the page contains in compressed form, as it contains Plotly.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from markupsafe import Markup

from harness.errors import HarnessError
from harness.judgement.judged import Answer, Budget
from harness.judgement.ranks import rank_tables
from harness.judgement.words import critical_words, friedman_words
from harness.metrics.names import title_of
from harness.records.layout import spec_of_label
from harness.records.provenance import command_line, now
from harness.report import (
    costs,
    differences,
    leaderboards,
    origins,
    papers,
    searches,
    trainings,
)
from harness.report.forest import forest
from harness.report.html import asset, environment, policy, squeezed
from harness.report.pictures import Pictures
from harness.report.table import Table, choose, read_table
from harness.tables.leaderboard import validation_column
from harness.verdicts import conclusions
from harness.verdicts.commands import steps_for
from harness.verdicts.gains import ABOUT_GAINS

NOT_RANKED = "The rows of this table are not ranked."

PARTS = {
    "conclusion": "Conclusion",
    "scores": "Scores",
    "differences": "Differences",
    "search": "Search",
    "training": "Training",
    "classes": "Classes",
    "pictures": "Pictures",
    "cost": "Cost",
    "published": "Published",
    "provenance": "Provenance",
}


@dataclass(frozen=True)
class Report:
    """What goes on the page.

    Attributes:
        problems: records that could not be used.
        pictures: name of a table -> what its test images look like to its models.
        missing: name of a table -> part -> what it lacks and which command would bring it.
    """

    results: Path
    tables: list[Table]
    problems: list[str] = field(default_factory=list)
    pictures: dict[str, Pictures] = field(default_factory=dict)
    missing: dict[str, dict[str, str]] = field(default_factory=dict)


def read_report(results: Path, wanted: Sequence[str] = (), against: str | None = None) -> Report:
    """The tables that were asked for, or all, with what is wrong with their records.

    Args:
        against: results whose rows are shown too, as `read_table` takes it.
    """
    found = choose(results, wanted)
    if not found:
        there = "".join(f"\n  {t.parent.name}/{t.name}" for t in choose(results, ()))
        raise HarnessError(
            f"no table named {' or '.join(wanted)} in {results}; there are{there}"
            if there
            else f"nothing to report: no records in {results}\n  `harness eval` writes them; "
            "--results-dir says where they are"
        )
    tables, problems = [], []
    for folder in found:
        table = read_table(folder, against)
        if table is None:
            problems.append(f"{folder}: none of its records can be used")
            continue
        problems.extend(table.problems)
        tables.append(table)
    if not tables:
        reasons = "".join(f"\n  {problem}" for problem in problems)
        raise HarnessError(f"nothing to report: no record in {results} can be used{reasons}")
    return Report(results, sorted(tables, key=_relevance, reverse=True), problems)


def _relevance(table: Table) -> tuple[int, int, str]:
    """The more a table decides between fully searched rows, the earlier it is shown."""
    judged = table.board.judged
    if judged is None:
        return 0, 0, ""
    full = {row.name for row in judged.rows if row.budget is Budget.FULL}
    separated = [p for p in judged.pairs if p.separated and {p.method, p.rival} <= full]
    classes = max((pair.num_classes for pair in separated), default=0)
    return len(separated), classes, max(row.time for row in judged.rows)


def render(report: Report) -> str:
    """The page as text."""
    templates = environment()
    templates.filters |= {"critical_words": critical_words, "friedman_words": friedman_words}
    templates.filters["title_of"] = title_of
    blocks = [block for table in report.tables for block in _shown_blocks(table, report)]
    judged = [table.board.judged for table in report.tables if table.board.judged is not None]
    scripts = [squeezed(asset("report.js")), _plotly()]
    page = templates.get_template("page.html").render(
        parts=PARTS,
        conclusion=conclusions.of_tables(judged),
        how_to_read=conclusions.HOW_TO_READ,
        about_gains=ABOUT_GAINS,
        answers=list(Answer),
        home="",
        blocks=blocks,
        ranks=rank_tables(judged),
        problems=report.problems,
        made={"time": now(), "command": command_line()},
        policy=policy(scripts),
        style=Markup(asset("report.css")),
        script=Markup(_inline(scripts[0])),
        plotly=_packed_plotly(),
        data=_pack(_json({block["name"]: block["data"] for block in blocks})),
    )
    return squeezed(page)


def _shown_blocks(table: Table, report: Report) -> list[dict[str, Any]]:
    """The block of a table; nothing if no row of it can be shown.

    A row that cannot be shown is left out, and named among the problems of the report.
    """
    try:
        return [_checked_block(table, report)]
    except Exception as error:  # whatever the values of a record make a figure stumble over
        reason = _spelled(error)
    shown, problems = [], []
    for method in table.methods:
        try:
            _checked_block(table.only([method]), report)
            shown.append(method)
        except Exception as error:
            problems.append(f"row {method} left out, because it cannot be shown: {_spelled(error)}")
    try:
        blocks = [_checked_block(table.only(shown), report)]
    except Exception:  # no row can be shown, or only together they cannot
        blocks, problems = [], [f"left out, because it cannot be shown: {reason}"]
    report.problems.extend(f"{table.folder}: {problem}" for problem in problems)
    return blocks


def _spelled(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _checked_block(table: Table, report: Report) -> dict[str, Any]:
    """The block of a table, with numbers that JSON can hold."""
    block = _block(table, report)
    _json(block["data"])
    return block


def _block(table: Table, report: Report) -> dict[str, Any]:
    """What the template and the figures of one table are made from."""
    pictures = report.pictures.get(table.name)
    priced = costs.costs(table)
    prices = [title for title, _ in costs.prices_of(table).values()]
    beside = papers.beside_papers(table, report.results)
    scores = {method: table.class_scores(method) for method in table.methods}
    names, queries = table.class_names, table.newest.class_queries
    judged = table.board.judged
    return {
        "name": table.name,
        "title": table.title,
        "dataset": table.dataset,
        "conclusion": conclusions.of_table(judged) if judged is not None else NOT_RANKED,
        "forest": forest(table),
        "steps": steps_for(judged, judged.trained_rows) if judged is not None else [],
        "gains": papers.gains_of(table, report.results),
        "boards": leaderboards.boards(table),
        "warnings": leaderboards.warnings(table),
        "matrix": differences.matrix(table),
        "costs": priced,
        "prices": prices,
        "devices": costs.devices(table),
        "beside": beside,
        "origin": origins.origin(table),
        "pictures": pictures,
        "missing": {**missing(table, pictures is None), **report.missing.get(table.name, {})},
        "carry": searches.carry_over(table),
        "data": {
            "methods": table.methods,
            "validation": validation_column(table.frame),
            "trained": table.trained,
            "search": searches.searches(table),
            "carry": searches.carry_over(table),
            "training": trainings.trainings(table),
            "course": trainings.score_title(table),
            "classes": {
                "names": names or [f"class {i + 1}" for i in range(len(queries))],
                "queries": queries,
                "scores": {m: values for m, values in scores.items() if values is not None},
            },
            "costs": {
                "titles": prices,
                "points": [asdict(point) for point in priced],
            },
            "published": beside.published,
            "ours": _ours(table),
            "pictures": None if pictures is None else pictures.data(),
        },
    }


def _ours(table: Table) -> list[dict[str, Any]]:
    frame = table.frame[table.frame["rank"].notna()]
    return [
        {"method": m, "value": round(100 * v, 2)}
        for m, v in zip(frame["method"], frame["map_at_r_concatenated"], strict=True)
    ]


def missing(table: Table, no_pictures: bool) -> dict[str, str]:
    """Part -> what its records lack, and what would bring it."""
    found = {}
    again = (
        f"harness eval --dataset {spec_of_label(table.dataset)} --protocol "
        f"{table.newest.identity['protocol']['name']}"
    )
    anew = f"that is made anew (the record moved away, then {again}) has them"
    if lacking := searches.without(table):
        found["search"] = (
            f"No parameters of the trials in the records of {', '.join(lacking)}: they were "
            f"written before trials were kept. A record {anew}."
        )
    if lacking := trainings.without(table):
        found["training"] = (
            f"No history in the records of {', '.join(lacking)}: they were written before it was "
            f"kept. A record {anew}."
        )
    if all(table.class_scores(method) is None for method in table.methods):
        found["classes"] = f"The records keep no scores of the test classes. A record {anew}."
    elif table.class_names is None:
        found["classes"] = (
            f"The names of the test classes were not written down: classes are numbered. {again} "
            "writes them, and repeats nothing else."
        )
    if no_pictures:
        found["pictures"] = (
            "This page holds no image of the data set. harness report --pictures puts them in; it "
            "opens the test classes, which the ledger counts."
        )
    return found


@cache
def _plotly() -> str:
    from plotly.offline import get_plotlyjs  # slow to import

    return str(get_plotlyjs())


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


@cache
def _packed_plotly() -> str:
    return _pack(_plotly().encode())


def _pack(content: bytes) -> str:
    """Compressed, as text that the page's script unpacks. The same content, the same text."""
    return base64.b64encode(gzip.compress(content, 9, mtime=0)).decode()


def _inline(script: str) -> str:
    """A script as it may stand within <script>: nothing in it ends the element."""
    assert "</script" not in script and "<!--" not in script
    return script
