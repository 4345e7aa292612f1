"""Any table as LaTeX, to \\input into a paper."""

from __future__ import annotations

from harness.plain_text import one_line
from harness.tables.column import Table, View

LEFT = ("method", "notes")


def to_latex(table: Table) -> str:
    """A table environment to \\input; plain LaTeX, no package needed."""
    text = table.texts(View.LATEX)
    columns = "".join("l" if title in LEFT else "r" for title in text.columns)
    caption = escape(" ".join([f"{table.title}.", *table.remarks]))
    lines = [
        r"\begin{table}",
        r"\centering\scriptsize",
        r"\setlength{\tabcolsep}{2pt}",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\hline",
        rf"{' & '.join(map(escape, text.columns))} \\",
        r"\hline",
        *(rf"{' & '.join(map(_tight, row))} \\" for row in text.astype(str).to_numpy()),
        r"\hline",
        r"\end{tabular}",
        rf"\caption{{{caption}}}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _tight(cell: str) -> str:
    """A cell without spaces around its interval, so that the table fits into a text column."""
    return escape(cell.replace(" ± ", "±"))


LATEX_SPECIAL = {
    **{character: rf"\{character}" for character in "&%$#_{}"},
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
    **{"<": "$<$", ">": "$>$", "|": "$|$", "`": r"\textasciigrave{}"},
    # Behind the end of a row they would be its arguments.
    **{"[": "{[}", "]": "{]}", "*": "{*}"},
    "±": r"$\pm$",
}


def escape(text: str) -> str:
    """Text that LaTeX prints as it stands, on one line."""
    return "".join(LATEX_SPECIAL.get(character, character) for character in one_line(text))
