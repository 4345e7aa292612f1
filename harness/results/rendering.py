"""Leaderboards as files: CSV at full precision; Markdown and LaTeX to be read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from harness.metrics.names import KINDS, LENGTHS, METRICS, title_of
from harness.results.leaderboard import SAME, UNKNOWN, Leaderboard, columns_of, metrics_in
from harness.results.stats import MIN_PAIRS
from harness.system.files import write_text

# Marks behind the name of a method, as Markdown and as LaTeX write them.
INDISTINGUISHABLE, INCOMPLETE = "≈", "†"
SYMBOLS = {"≈": r"$\approx$", "†": r"$\dagger$", "±": r"$\pm$"}


def write(board: Leaderboard) -> list[Path]:
    """Write the table beside its records; returns the files."""
    texts = {
        "leaderboard.csv": board.frame.to_csv(index=False),
        "leaderboard.md": to_markdown(board.frame),
        "leaderboard.tex": to_latex(board.frame),
        "leaderboard_columns.md": describe_columns(board.frame),
    }
    for name, text in texts.items():
        write_text(board.folder / name, text)
    return [board.folder / name for name in texts]


def shown(frame: pd.DataFrame) -> pd.DataFrame:
    """The columns that people read first, as text: percent with the half-width of the interval."""
    table = pd.DataFrame({"rank": frame["rank"].astype("string").fillna("")})
    marks = frame["method"], frame["indistinguishable"] == SAME, frame["incomplete"]
    table["method"] = [_marked(*row) for row in zip(*marks, strict=True)]
    for kind in KINDS:
        for metric in metrics_in(frame):
            column, spell = f"{metric}_{kind}", length if metric in LENGTHS else percent
            table[_title(frame, metric, kind)] = [
                spell(mean, half_width)
                for mean, half_width in zip(frame[column], frame[f"{column}_ci95"], strict=True)
            ]
    table["validation MAP@R"] = [percent(value) for value in frame["validation_map_at_r"]]
    table["trials"] = frame["trials"].astype("string").fillna("")
    table["n"] = frame["reproductions"].astype("string")
    return table


def on_demand(frame: pd.DataFrame) -> list[str]:
    """The columns of `shown` that not every table has."""
    more = [metric for metric in metrics_in(frame) if metric not in METRICS]
    return [_title(frame, metric, kind) for kind in KINDS for metric in more]


def _title(frame: pd.DataFrame, metric: str, kind: str) -> str:
    return f"{title_of(metric)} {_size(frame, kind)}"


def _marked(method: str, indistinguishable: bool, incomplete: bool) -> str:
    marks = [INDISTINGUISHABLE] * indistinguishable + [INCOMPLETE] * incomplete
    return " ".join([method, *marks])


def _size(frame: pd.DataFrame, kind: str) -> int:
    """Embedding size of the trained rows; a naive row may have fewer dimensions to offer."""
    return int(frame[f"dim_{kind}"].max())


def percent(value: float | None, half_width: float = float("nan")) -> str:
    if value is None or np.isnan(value):
        return ""
    interval = "" if np.isnan(half_width) else f" ± {100 * half_width:.2f}"
    return f"{100 * value:.2f}{interval}"


def length(value: float, half_width: float) -> str:
    if np.isnan(value):
        return ""
    return f"{value:.3f}" + ("" if np.isnan(half_width) else f" ± {half_width:.3f}")


def beside_shown(rows: pd.DataFrame) -> pd.DataFrame:
    """Ours and published values as text."""

    def numbers(name: str, sign: str = "") -> list[str]:
        pairs = zip(rows[name], rows[f"{name}_ci95"], strict=True)
        return [f"{v:{sign}.2f}" + (f" ± {h:.2f}" if h == h else "") for v, h in pairs]

    return pd.DataFrame(
        {
            "method": rows["method"],
            "score": [
                f"{title_of(metric)} {kind}"
                for metric, kind in zip(rows["metric"], rows["embedding"], strict=True)
            ],
            "ours": numbers("ours"),
            "published": numbers("published"),
            "difference": numbers("difference", "+"),
            "protocol": rows["protocol_variant"],
        }
    )


def to_markdown(frame: pd.DataFrame) -> str:
    """The table with what it measures above and how to read it below."""
    lines = [f"# {heading(frame, '`')}", "", *markdown_table(shown(frame)), "", *notes_on(frame)]
    return "\n".join(lines) + "\n"


def markdown_table(table: pd.DataFrame) -> list[str]:
    return [
        f"| {' | '.join(table.columns)} |",
        f"|{'---|' * len(table.columns)}",
        *(f"| {' | '.join(row)} |" for row in table.astype(str).to_numpy()),
    ]


def heading(frame: pd.DataFrame, quote: str = "") -> str:
    first = frame.iloc[0]
    return f"{first['dataset']}, {first['trunk']}, protocol {quote}{first['protocol']}{quote}"


def notes_on(frame: pd.DataFrame) -> list[str]:
    """What a reader must know to read the table right."""
    together, single = (_size(frame, kind) for kind in KINDS)
    notes = [
        "Percent on the test classes; ± is half the 95 % interval over n reproductions.",
        f"{together}: embeddings of the four fold models side by side. {single}: mean of the four.",
    ]
    if (frame["kind"] == "single").any():
        notes.append("single: one model of that size, trained on all trainval classes; no rank.")
    if (frame["indistinguishable"] == SAME).any():
        notes.append(f"{INDISTINGUISHABLE} not distinguishable from the best (paired, Holm, 5 %).")
    if (frame["indistinguishable"] == UNKNOWN).any():
        notes.append(
            f"Below {MIN_PAIRS} reproductions shared with the best row, no claim is made about "
            "which leads are real."
        )
    if frame["incomplete"].any():
        notes.append(f"{INCOMPLETE} fewer trials or reproductions than the protocol asks for.")
    if left_out := frame["missing_images"].max():
        notes.append(f"Images left out because they are missing or broken: {left_out:,}.")
    return notes


def to_latex(frame: pd.DataFrame) -> str:
    """A table environment to \\input; plain LaTeX, no package needed."""
    table = shown(frame)
    scores = [_title(frame, metric, kind) for kind in KINDS for metric in METRICS]
    table = table[["rank", "method", *scores, "n"]]
    titles = " & ".join(title_of(metric) for metric in METRICS)
    groups = " & ".join(
        rf"\multicolumn{{{len(METRICS)}}}{{c}}{{{kind} ({_size(frame, kind)})}}" for kind in KINDS
    )
    notes = escape(" ".join([f"{heading(frame)}.", *notes_on(frame)]))
    lines = [
        r"\begin{table}",
        r"\centering\scriptsize",
        r"\setlength{\tabcolsep}{2pt}",
        rf"\begin{{tabular}}{{rl{'r' * len(scores)}r}}",
        r"\hline",
        rf" & & {groups} & \\",
        rf" & method & {titles} & {titles} & $n$ \\",
        r"\hline",
        *(rf"{' & '.join(map(_tight, row))} \\" for row in table.astype(str).to_numpy()),
        r"\hline",
        r"\end{tabular}",
        rf"\caption{{{notes}}}",
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
    **SYMBOLS,
}


def escape(text: str) -> str:
    """Text that LaTeX prints as it stands."""
    return "".join(LATEX_SPECIAL.get(character, character) for character in text)


def describe_columns(frame: pd.DataFrame) -> str:
    """The data dictionary of leaderboard.csv."""
    columns = columns_of(metrics_in(frame))
    lines = [
        "# Columns of leaderboard.csv",
        "",
        "Scores are fractions at full precision; an empty cell means that there is no such value.",
        "",
        *markdown_table(
            pd.DataFrame(
                {
                    "column": [f"`{column}`" for column in columns],
                    "what it holds": list(columns.values()),
                }
            )
        ),
    ]
    return "\n".join(lines) + "\n"
