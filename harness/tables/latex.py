"""A table as LaTeX, to \\input into a paper."""

from __future__ import annotations

import pandas as pd

from harness.metrics.names import METRICS, title_of
from harness.plain_text import one_line
from harness.tables.columns import is_of_a_paper, metrics_in
from harness.tables.marks import MARKS
from harness.tables.rendering import (
    column_title,
    embedding_size,
    embeddings_in,
    heading,
    notes_on,
    shown,
    validation_column,
)

# Columns of what the search says beside the validation score, and their short titles.
SEARCH = {
    "fold sd": "fold sd",
    "dimensions": "dim.",
    "trials": "trials",
}


def to_latex(frame: pd.DataFrame) -> str:
    """A table environment to \\input; plain LaTeX, no package needed."""
    table, embeddings = shown(frame), embeddings_in(frame)
    # A paper's own protocol has its own metrics.
    metrics = metrics_in(frame) if is_of_a_paper(frame) else list(METRICS)
    scores = [
        column_title(frame, metric, embedding) for embedding in embeddings for metric in metrics
    ]
    lasts = [name for name in (f"{title_of(metric)} last" for metric in metrics) if name in table]
    search = [validation_column(frame), *SEARCH]
    table = table[["rank", "method", *scores, *lasts, *search, "at limit", "n"]]
    titles = " & ".join(
        [*(title_of(metric) for _ in embeddings for metric in metrics), *(map(_short, lasts))]
    )
    sizes = [f"{embedding} ({embedding_size(frame, embedding)})" for embedding in embeddings]
    groups = " & ".join(rf"\multicolumn{{{len(metrics)}}}{{c}}{{{size}}}" for size in sizes)
    groups += rf" & \multicolumn{{{len(lasts)}}}{{c}}{{last epoch}}" if lasts else ""
    notes = escape(" ".join([f"{heading(frame)}.", *notes_on(frame)]))
    lines = [
        r"\begin{table}",
        r"\centering\scriptsize",
        r"\setlength{\tabcolsep}{2pt}",
        rf"\begin{{tabular}}{{rl{'r' * (len(table.columns) - 2)}}}",
        r"\hline",
        rf" & & {groups} & \multicolumn{{{len(search)}}}{{c}}{{search}} & & \\",
        rf" & method & {titles} & val. & {' & '.join(SEARCH.values())} & at limit & $n$ \\",
        r"\hline",
        *(rf"{' & '.join(map(_tight, row))} \\" for row in table.astype(str).to_numpy()),
        r"\hline",
        r"\end{tabular}",
        rf"\caption{{{notes}}}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _short(title: str) -> str:
    return title.removesuffix(" last")


def _tight(cell: str) -> str:
    """A cell without spaces around its interval, so that the table fits into a text column."""
    return escape(cell.replace(" ± ", "±"))


LATEX_SPECIAL = {
    **{character: rf"\{character}" for character in "&%$#_{}"},
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
    **{"<": "$<$", ">": "$>$", "|": "$|$", "`": r"\textasciigrave{}"},
    # Behind the end of a row they would be its arguments.
    **{"[": "{[}", "]": "{]}", "*": "{*}"},
    **{"±": r"$\pm$"},
    **{mark.symbol: mark.latex for mark in MARKS},
}


def escape(text: str) -> str:
    """Text that LaTeX prints as it stands, on one line."""
    return "".join(LATEX_SPECIAL.get(character, character) for character in one_line(text))
