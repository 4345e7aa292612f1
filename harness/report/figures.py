"""Single figures for a paper: vector graphics that read in grey, one or two columns wide."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.errors import HarnessError, unknown
from harness.judgement.judged import Answer
from harness.metrics.names import title_of
from harness.report.costs import PRICES, costs
from harness.report.differences import matrix
from harness.report.searches import carry_over, searches
from harness.report.table import Table
from harness.report.trainings import score_title, trainings
from harness.tables.leaderboard import validation_column

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTHS = {1: 3.3, 2: 6.9}  # inches of one column and of both
FORMATS = (".svg", ".pdf", ".png")

# Okabe and Ito's colours; dashes and markers differ, too, for readers who do not see colours.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
DASHES = ("-", "--", ":", "-.")
MARKERS = ("o", "s", "D", "^", "v", "P", "X")

# Of the matrix of pairs, from black to white.
SHADES = {
    **{Answer.BETTER: 0.7, Answer.WORSE: 0.7},
    **{Answer.EQUIVALENT: 0.88, Answer.NOT_DECIDED: 1.0},
}


@dataclass(frozen=True)
class Choice:
    """What a figure shows.

    Attributes:
        methods: rows of the table; all if there are none.
    """

    table: Table
    methods: tuple[str, ...] = ()
    embedding: str = "concatenated"
    metric: str = "map_at_r"

    def shown(self, there: Sequence[str]) -> list[str]:
        """The methods that were asked for, of those that have what is drawn."""
        for method in self.methods:
            if method not in there:
                raise unknown("method", method, there, "these have what this figure shows")
        found = list(self.methods) or list(there)
        if not found:
            raise HarnessError(
                f"the records of {self.table.name} hold nothing for this figure: they were written "
                "before it was kept; made anew by harness eval they have it"
            )
        return found


@dataclass(frozen=True)
class Styles:
    """Colour, dash and marker of each method: the same in every figure of a table."""

    methods: Sequence[str]
    index: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "index", {m: i for i, m in enumerate(self.methods)})

    def line(self, method: str) -> dict[str, Any]:
        i = self.index[method]
        return {"color": COLORS[i % len(COLORS)], "linestyle": DASHES[i % len(DASHES)]}

    def point(self, method: str) -> dict[str, Any]:
        i = self.index[method]
        return {"color": COLORS[i % len(COLORS)], "marker": MARKERS[i % len(MARKERS)]}


def scores(axes: Axes, choice: Choice) -> None:
    """Scores with their intervals and groups, filled if not separated from the best row.

    Rows without training are vertical lines.
    """
    table, column = choice.table, f"{choice.metric}_{choice.embedding}"
    if column not in table.frame:
        raise HarnessError(f"{table.name} has no column {column} to draw")
    rows = table.frame.set_index("method")
    found = table.scores(choice.metric, choice.embedding)
    methods = choice.shown([m for m in table.trained if not np.isnan(found[m].mean)])
    for place, method in enumerate(reversed(methods)):
        leads = method in table.leaders
        half = found[method].half_width
        axes.errorbar(
            100 * found[method].mean,
            place,
            xerr=None if half is None else 100 * half,
            fmt="o",
            color="black",
            markerfacecolor="black" if leads else "white",
            capsize=2,
        )
    for name, dash in zip(rows.index[rows["kind"] == "naive"], cycle((":", "--")), strict=False):
        at = 100 * found[name].mean
        axes.axvline(
            at, label=f"{name} (no training)", color="grey", linestyle=dash, linewidth=1, zorder=0
        )
    if axes.get_legend_handles_labels()[0]:
        axes.legend()
    axes.set_yticks(range(len(methods)), methods[::-1])
    for place, method in enumerate(reversed(methods)):
        group = str(rows["group"].get(method) or "")
        axes.annotate(group, (1.02, place), xycoords=("axes fraction", "data"), va="center")
    axes.set_xlabel(f"{title_of(choice.metric)} on test classes, %, {choice.embedding}")


def differences(axes: Axes, choice: Choice) -> None:
    """The matrix of pairs: differences, darker where they are significant."""
    found = matrix(choice.table)
    if found is None:
        raise HarnessError(f"{choice.table.name} has no two methods to compare")
    size = len(found.methods)
    image = np.full((size, size), np.nan)
    for i, line in enumerate(found.cells):
        for j, cell in enumerate(line):
            if cell is not None:
                image[i, j] = SHADES[cell.answer]
                # So that numbers do not touch where there are many, in a figure of one column.
                axes.text(j, i, cell.text, ha="center", va="center", size=min(6, 42 / size))
    axes.imshow(image, cmap="gray", vmin=0, vmax=1)
    axes.set_xticks(range(size), found.methods, rotation=90)
    axes.set_yticks(range(size), found.methods)
    axes.set_xlabel(
        "row minus column, points of MAP@R\n"
        "dark: better or worse; light: equivalent; white: not decided"
    )


def search(axes: Axes, choice: Choice) -> None:
    """Best validation score so far against trials."""
    found = searches(choice.table)
    styles = Styles(choice.table.methods)
    for method in choice.shown(list(found)):
        scores = [np.nan if s is None else s for s in found[method]["scores"]]
        best = np.fmax.accumulate(np.array(scores, dtype=float))
        trials = np.arange(1, len(best) + 1)
        axes.step(trials, best, where="post", label=method, **styles.line(method))
    axes.set_xlabel("trials")
    axes.set_ylabel(f"{validation_column(choice.table.frame)}, %")
    axes.legend()


def contour(axes: Axes, choice: Choice) -> None:
    """Validation score of one method over its two parameters that matter most."""
    found = {m: facts for m, facts in searches(choice.table).items() if facts["contour"]}
    method, *others = choice.shown(list(found))
    if len(choice.methods) > 1 or (others and not choice.methods):
        raise HarnessError(f"a contour takes one method: --method {method}")
    facts = found[method]
    drawn = facts["contour"]
    heights = np.array(drawn["z"], dtype=float)  # None becomes NaN: nothing was tried there
    shades = axes.contourf(drawn["x"], drawn["y"], heights, levels=12, cmap="cividis")
    across, up = drawn["names"]
    trials = [i for i, score in enumerate(facts["scores"]) if score is not None]
    style: dict[str, Any] = {"facecolors": "white", "edgecolors": "black", "linewidths": 0.5}
    for places, size, marker in ((trials, 8, "o"), ([facts["best"]], 60, "*")):
        x, y = ([facts["params"][name][i] for i in places] for name in (across, up))
        axes.scatter(x, y, size, marker=marker, **style)
    for name, scale in ((across, axes.set_xscale), (up, axes.set_yscale)):
        scale("log" if facts["ranges"][name].get("log") else "linear")
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    bar = axes.figure.colorbar(shades, ax=axes)
    bar.set_label(f"{method}: {validation_column(choice.table.frame)}, %")


def training(axes: Axes, choice: Choice) -> None:
    """Mean validation score over models against steps, with the range between them."""
    found = trainings(choice.table)
    styles = Styles(choice.table.methods)
    for method in choice.shown(list(found)):
        models = [model for model in found[method] if model["score"]]
        steps = sorted({step for model in models for step in model["steps"]})
        # A model that ended keeps the score of its last checkpoint that was validated.
        curves = np.array([np.interp(steps, model["steps"], model["score"]) for model in models])
        style = styles.line(method)
        axes.plot(steps, curves.mean(axis=0), label=method, **style)
        low, high = curves.min(axis=0), curves.max(axis=0)
        axes.fill_between(steps, low, high, color=style["color"], alpha=0.15, linewidth=0)
    axes.set_xlabel("step")
    axes.set_ylabel(f"{score_title(choice.table)}, %")
    axes.legend()


def selection(axes: Axes, choice: Choice) -> None:
    """Validation against test score over methods."""
    found = carry_over(choice.table)
    if found is None:
        raise HarnessError("validation against test score takes five searched methods")
    styles = Styles(choice.table.methods)
    columns = (found["methods"], found["validation"], found["test"][choice.embedding])
    points = {method: (x, y) for method, x, y in zip(*columns, strict=True)}
    for method in choice.shown(list(points)):
        axes.scatter(*points[method], label=method, **styles.point(method))
        axes.annotate(method, points[method], (3, 3), textcoords="offset points", size=6)
    axes.set_xlabel(f"{validation_column(choice.table.frame)}, %")
    axes.set_ylabel(f"test MAP@R, %, {choice.embedding}")


def classes(axes: Axes, choice: Choice) -> None:
    """Scores of each test class, one method against another."""
    there = [m for m in choice.table.methods if choice.table.class_scores(m) is not None]
    one, other, *rest = [*choice.shown(there)[:2], *choice.methods[2:], ""]
    if not other or rest[:-1]:
        raise HarnessError("a figure of classes takes two methods: --method A --method B")
    across, up = (np.array(choice.table.class_scores(m), dtype=float) * 100 for m in (other, one))
    top = float(np.nanmax([across, up]))
    axes.plot([0, top], [0, top], color="grey", linestyle=":", linewidth=1)
    gains = up >= across
    axes.scatter(across[gains], up[gains], s=12, color=COLORS[0], marker="o")
    axes.scatter(across[~gains], up[~gains], s=12, marker="D", facecolors="none", edgecolors="k")
    axes.set_xlabel(f"{other}, MAP@R of a class, %")
    axes.set_ylabel(f"{one}, MAP@R of a class, %")


def cost(axes: Axes, choice: Choice) -> None:
    """Score against time per step, with the Pareto front."""
    points = {point.method: point for point in costs(choice.table)}
    styles = Styles(choice.table.methods)
    for method in choice.shown(list(points)):
        at = (points[method].prices[0], points[method].score)
        axes.scatter(*at, **styles.point(method))
        axes.annotate(method, at, (3, 3), textcoords="offset points", size=6)
    front = sorted((p.prices[0], p.score) for p in points.values() if p.front[0])
    axes.step(*zip(*front, strict=True), where="post", color="grey", linewidth=1, zorder=0)
    axes.set_xlabel(PRICES["ms_per_step"][0])
    axes.set_ylabel("test MAP@R, %")


# What `harness plot` draws, by name: the first line of each says what it shows.
FIGURES: dict[str, Callable[[Axes, Choice], None]] = {
    draw.__name__: draw
    for draw in (scores, differences, search, contour, training, selection, classes, cost)
}


@contextmanager
def paper_figure(columns: int, serif: bool, height: float) -> Iterator[Figure]:
    """An empty figure of the width of one or two columns, laid out when the block ends.

    Args:
        height: as a part of the width.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    if columns not in WIDTHS:
        raise HarnessError(f"a figure is 1 or 2 columns wide, got {columns}")
    width = WIDTHS[columns]
    style: dict[Any, Any] = {
        "font.family": "serif" if serif else "sans-serif",
        "mathtext.fontset": "stix" if serif else "dejavusans",
        **{"font.size": 8, "legend.fontsize": 7, "xtick.labelsize": 7, "ytick.labelsize": 7},
        **{"axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False},
        "text.parse_math": False,  # a dollar in a name begins no formula
    }
    with mpl.rc_context(style):
        figure = Figure(figsize=(width, height * width), layout="constrained")
        yield figure
        figure.draw_without_rendering()


def draw(name: str, choice: Choice, columns: int = 1, serif: bool = False) -> Figure:
    """A figure of one table."""
    if name not in FIGURES:
        raise unknown("figure", name, FIGURES)
    rows = len(choice.methods) or len(choice.table.trained)
    tall = (0.6 + 0.2 * rows) / WIDTHS.get(columns, 1)
    height = {"scores": tall, "differences": 1.0}.get(name, 0.7)
    with paper_figure(columns, serif, height) as figure:
        FIGURES[name](figure.add_subplot(), choice)
    return figure


def save(figure: Figure, path: Path) -> None:
    """As the ending says."""
    import matplotlib as mpl

    dated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix)
    # Text stays text; the same figure has the same bytes.
    kept = {"svg.fonttype": "none", "pdf.fonttype": 42, "svg.hashsalt": "harness"}
    with mpl.rc_context(dict[Any, Any](kept)):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(path, dpi=300, metadata=dated)
        except OSError as error:
            raise HarnessError(f"cannot write {path}: {error.strerror}") from None
