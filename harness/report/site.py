"""A static site of all tables: a leaderboard to publish, which makes no requests to other hosts."""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from urllib.parse import quote

import pandas as pd
from markupsafe import Markup

from harness.errors import HarnessError
from harness.judgement.judged import EMBEDDING, METRIC, JudgedRow, JudgedTable
from harness.judgement.words import row_notes, score_words, signed
from harness.losses._tools.formulas import formulas_of
from harness.losses.method import Method
from harness.metrics.names import title_of
from harness.records.published import CLASSIC, METHODS, SCORES, find_folder, read
from harness.registry import items
from harness.report.forest import forest
from harness.report.page import Report, plotly_script, render, render_template
from harness.report.papers import gains_of
from harness.report.table import Table
from harness.verdicts import conclusions
from harness.verdicts.gains import ABOUT_GAINS, Gain

PLOTLY = "plotly.js"  # shared by the pages of tables


@dataclass(frozen=True)
class Place:
    """A row of a table, as the site lists it."""

    table: Table
    judged: JudgedTable
    row: JudgedRow

    @property
    def to_base(self) -> str:
        """Difference to the row of its base in points; empty without one."""
        line = next(line for line in self.table.board.lines if line.name == self.row.name)
        return "" if line.to_base is None else signed(line.to_base.difference)

    @property
    def conclusion(self) -> str:
        return conclusions.of_row(self.judged, self.row) if self.row.trained else ""

    @property
    def p_at_1(self) -> str:
        found = self.row.scores[EMBEDDING].get("p_at_1")
        return "" if found is None else f"{100 * found.mean:.2f}"

    @property
    def score(self) -> str:
        return score_words(self.row)

    @property
    def notes(self) -> str:
        return "; ".join(row_notes(self.row))


@dataclass(frozen=True)
class MethodPage:
    """What the site says about a method.

    Attributes:
        known: the loss as it is registered; None for others, such as loss files.
    """

    name: str
    known: Method | None
    places: list[Place]
    gains: list[tuple[Table, Gain]]
    printed: list[dict[str, str]]

    @property
    def formulas(self) -> list[tuple[str, Markup]]:
        """LaTeX and its drawing."""
        return [(formula, _drawn(formula)) for formula in formulas_of(self.name)]


@dataclass(frozen=True)
class Site:
    """All pages of a site, made from a report."""

    report: Report

    def write(self, folder: Path) -> list[Path]:
        """Write every page; returns the files."""
        texts = {"index.html": self._index(), PLOTLY: plotly_script()}
        for table in self.report.tables:
            # One table after the other: a page has the figures of its own table only.
            report = Report(self.report.results, [table])
            texts[self.path_of(table)] = render(
                report, home="../../index.html", shared=f"../../{PLOTLY}"
            )
            self.report.problems.extend(report.problems)
        for page in self.methods.values():
            texts[self.path_of_method(page.name)] = render_template(
                "method.html", page=page, link=self._link, about_gains=ABOUT_GAINS
            )
        try:
            for name, text in texts.items():
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise HarnessError(f"cannot write {folder}: {error.strerror}; --output DIR") from None
        return [folder / name for name in texts]

    def path_of(self, table: Table) -> str:
        """Path of a table's page in the site."""
        return f"tables/{_slug(table.folder.parent.name)}/{_slug(table.folder.name)}.html"

    def path_of_method(self, name: str) -> str:
        """Path of a method's page in the site."""
        return f"methods/{_slug(name)}.html"

    def _link(self, place: Place) -> str:
        return f"../{quote(self.path_of(place.table))}"

    def _index(self) -> str:
        tables = self.report.tables
        return render_template(
            "index.html",
            conclusion=conclusions.of_tables([p[1] for p in self._judged]),
            how_to_read=conclusions.HOW_TO_READ,
            tables=[
                (table, quote(self.path_of(table)), conclusions.of_table(judged))
                for table, judged in self._judged
            ],
            first=forest(tables[0]),
            places=self._places,
            table_link=lambda place: quote(self.path_of(place.table)),
            method_link=lambda name: quote(self.path_of_method(_method_of(name))),
            paper_of=self._paper_of,
            methods=self.methods,
            problems=self.report.problems,
        )

    def _paper_of(self, row: str) -> str:
        known = self.methods[_method_of(row)].known
        return "" if known is None else known.paper

    @cached_property
    def _judged(self) -> list[tuple[Table, JudgedTable]]:
        found = [(table, table.board.judged) for table in self.report.tables]
        return [(table, judged) for table, judged in found if judged is not None]

    @cached_property
    def _places(self) -> list[Place]:
        return [Place(table, judged, row) for table, judged in self._judged for row in judged.rows]

    @cached_property
    def methods(self) -> dict[str, MethodPage]:
        """A page for each method that has a row, by name."""
        known = items("loss")
        by_name: dict[str, list[Place]] = {}
        for place in self._places:
            by_name.setdefault(_method_of(place.row.name), []).append(place)
        gains = [(t, gain) for t, _ in self._judged for gain in gains_of(t, self.report.results)]
        printed = _printed(self.report.results)
        return {
            name: MethodPage(
                name,
                known.get(name),
                places,
                [(t, gain) for t, gain in gains if _method_of(gain.method) == name],
                [row for row in printed if row["loss"] == name],
            )
            for name, places in sorted(by_name.items())
        }


def _method_of(row: str) -> str:
    """The method of a row: its name without another space, fixed values or origin."""
    return re.sub(r"(\+\w+=|[@ ]).*", "", row)


def _slug(name: str) -> str:
    """A file name for any name of a table or method; different names get different ones."""
    return re.sub(r"[^\w.+=-]", lambda found: f"_{ord(found[0]):x}", name)


def _printed(results: Path) -> list[dict[str, str]]:
    """What papers print about losses: data set, metric, value and source."""
    try:
        folder = find_folder(results)
    except HarnessError:
        return []
    methods = read(folder / METHODS)
    losses = dict(zip(methods["method"], methods["loss"], strict=True))
    reality_check, classic = read(folder / SCORES), read(folder / CLASSIC)
    concatenated = reality_check["embedding"] == EMBEDDING
    chosen = [
        reality_check[concatenated & (reality_check["metric"] == METRIC)],
        classic[classic["metric"] == "recall_at_1"],
    ]
    rows = pd.concat(chosen).fillna("")
    rows = rows[rows["note"] == ""]
    rows = rows.assign(loss=rows["method"].map(losses).fillna(""))
    rows = rows.assign(metric=rows["metric"].map(title_of))
    return [
        {str(name): str(value) for name, value in row.items()} for row in rows.to_dict("records")
    ]


def _drawn(formula: str) -> Markup:
    """A formula as an SVG in the colour of the text."""
    from matplotlib import rc_context
    from matplotlib.font_manager import FontProperties
    from matplotlib.mathtext import math_to_image

    image = io.StringIO()
    with rc_context({"mathtext.fontset": "stix", "svg.hashsalt": "harness"}):
        math_to_image(
            f"${formula}$",
            image,
            prop=FontProperties(size=16),
            dpi=72,
            format="svg",
            color="#010101",
        )
    drawing = image.getvalue()
    drawing = drawing[drawing.index("<svg") :].replace("#010101", "currentColor")
    return Markup(re.sub(r"<metadata>.*?</metadata>", "", drawing, flags=re.DOTALL))
