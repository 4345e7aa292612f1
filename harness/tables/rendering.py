"""A table for people: the columns they read first, marks, notes; and as Markdown."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd

from harness.judgement.selection import correlations, selection_in
from harness.judgement.stats import MIN_PAIRS
from harness.metrics.names import EMBEDDINGS, LENGTHS, METRICS, title_of
from harness.plain_text import markdown_cell, markdown_code, markdown_text, spreadsheet_text
from harness.protocols.selection import SCHEMES
from harness.records.records import TEST_SELECTED
from harness.tables.columns import (
    columns_of,
    is_of_a_paper,
    leads_are_claimed,
    metrics_in,
    validation_title,
)
from harness.tables.marks import explanations, marked_names

# The metric whose standard deviation stands in tables of the papers' protocols.
SD_OF = "p_at_1"

# Data sets whose test classes are those of training.
CLOSED = ("imagenet_closed",)


def shown(frame: pd.DataFrame) -> pd.DataFrame:
    """The columns that people read first, as text: percent with the half-width of the interval."""
    table = pd.DataFrame({"rank": frame["rank"].astype("string").fillna("")})
    table["method"] = marked_names(frame)
    for embedding in embeddings_in(frame):
        for metric in metrics_in(frame):
            column, spell = f"{metric}_{embedding}", length if metric in LENGTHS else percent
            table[column_title(frame, metric, embedding)] = [
                spell(mean, half_width)
                for mean, half_width in zip(frame[column], frame[f"{column}_ci95"], strict=True)
            ]
    if is_of_a_paper(frame):  # papers print deviations, mostly of Recall@1
        table[f"{title_of(SD_OF)} sd"] = [percent(value) for value in frame[f"{SD_OF}_sd"]]
    if (frame["kind"] == TEST_SELECTED).any():
        for metric in metrics_in(frame):
            lasts = [percent(value) for value in frame[f"{metric}_last"]]
            table[f"{title_of(metric)} last"] = lasts
    table[validation_column(frame)] = [percent(value) for value in frame["validation_score"]]
    table["fold sd"] = [percent(value) for value in frame["validation_sd"]]
    table["dimensions"] = frame["dimensions"].astype("string").fillna("")
    table["trials"] = frame["trials"].astype("string").fillna("")
    if searched_again(frame):
        table["searches"] = frame["search_scores"].map(search_scores)
    table["at limit"] = ["" if np.isnan(s) else f"{100 * s:.0f} %" for s in frame["at_step_limit"]]
    table["n"] = frame["reproductions"].astype("string")
    return table


def searched_again(frame: pd.DataFrame) -> bool:
    """Whether a table has more than one search of some method."""
    return bool((frame["search_scores"] != "[]").any())


def search_scores(scores: str) -> str:
    """The score of each search of a method, as text."""
    return ", ".join(map(percent, json.loads(scores)))


def on_demand(frame: pd.DataFrame) -> list[str]:
    """The columns of `shown` that not every table has."""
    more = [metric for metric in metrics_in(frame) if metric not in METRICS]
    return [
        column_title(frame, metric, embedding)
        for embedding in embeddings_in(frame)
        for metric in more
    ]


def embeddings_in(frame: pd.DataFrame) -> list[str]:
    """The embeddings that a table has; one model has only one."""
    return [
        embedding for embedding in EMBEDDINGS if frame[f"dim_{embedding}"].notna().any()
    ] or list(EMBEDDINGS)


def validation_column(frame: pd.DataFrame) -> str:
    return f"validation {validation_title(frame)}"


def column_title(frame: pd.DataFrame, metric: str, embedding: str) -> str:
    return f"{title_of(metric)} {embedding_size(frame, embedding)}"


def embedding_size(frame: pd.DataFrame, embedding: str) -> str:
    """What tells the embeddings apart: their size, unless they share it or lack one."""
    # A naive row may have fewer dimensions to offer than the trained ones.
    sizes = {embedding: frame[f"dim_{embedding}"].max() for embedding in EMBEDDINGS}
    found = [size for size in sizes.values() if not pd.isna(size)]
    told_apart = len(set(found)) == len(embeddings_in(frame)) == len(found) and not pd.isna(
        sizes[embedding]
    )
    return str(int(sizes[embedding])) if told_apart else embedding


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
                f"{title_of(metric)} {embedding}"
                for metric, embedding in zip(rows["metric"], rows["embedding"], strict=True)
            ],
            "ours": numbers("ours"),
            "published": numbers("published"),
            "difference": numbers("difference", "+"),
            "protocol": rows["protocol_variant"],
        }
    )


def to_markdown(frame: pd.DataFrame) -> str:
    """The table with what it measures above and how to read it below."""
    notes = map(markdown_text, notes_on(frame))
    lines = [f"# {markdown_heading(frame)}", "", *markdown_table(shown(frame)), ""]
    return "\n".join([*lines, *notes]) + "\n"


def to_csv(frame: pd.DataFrame) -> str:
    """Full precision; no text in it is one that a spreadsheet would run."""
    safe = frame.rename(columns=spreadsheet_text)
    for column in safe.columns:
        if not pd.api.types.is_numeric_dtype(safe[column]):
            safe[column] = safe[column].map(
                lambda cell: spreadsheet_text(cell) if isinstance(cell, str) else cell
            )
    return safe.to_csv(index=False)


def markdown_table(table: pd.DataFrame) -> list[str]:
    """Its lines; every cell is printed as it stands."""
    return _table_lines(table.astype(str).map(markdown_cell).rename(columns=markdown_cell))


def _table_lines(table: pd.DataFrame) -> list[str]:
    return [
        f"| {' | '.join(table.columns)} |",
        f"|{'---|' * len(table.columns)}",
        *(f"| {' | '.join(row)} |" for row in table.to_numpy()),
    ]


def heading(frame: pd.DataFrame) -> str:
    first = frame.iloc[0]
    return f"{first['dataset']}, {first['trunk']}, protocol {first['protocol']}"


def markdown_heading(frame: pd.DataFrame) -> str:
    first = frame.iloc[0]
    where = markdown_text(f"{first['dataset']}, {first['trunk']}")
    return f"{where}, protocol {markdown_code(first['protocol'])}"


def notes_on(frame: pd.DataFrame) -> list[str]:
    """What a reader must know to read the table right."""
    together, single = (embedding_size(frame, embedding) for embedding in EMBEDDINGS)
    models = (
        f"{together}: embeddings of the four fold models side by side. {single}: mean of the four."
    )
    notes = [
        "Percent on the test classes; ± is half the 95 % interval over n reproductions.",
        models if len(embeddings_in(frame)) > 1 else f"{together}: one model.",
        "fold sd: of the validation score over the folds. dimensions: parameters searched. "
        "at limit: models that ended at the step limit.",
    ]
    for scheme in frame["selection"].unique() if "selection" in frame else ():
        meaning = SCHEMES[scheme].summary if scheme in SCHEMES else "unknown to this version"
        notes.append(f"Trials were scored with selection={scheme}: {meaning}.")
    if (frame["kind"] == "single").any():
        notes.append("single: one model of that size, trained on all trainval classes; no rank.")
    if (frame["kind"] == TEST_SELECTED).any():
        notes.append(
            f"{TEST_SELECTED}: of all epochs that which was best on the test classes, as the paper "
            "reports; no rank, and not to be compared with rows of other protocols. last: the same "
            "models at their last epoch."
        )
    if frame["dataset"].isin(CLOSED).any():
        notes.append(
            "Trained and tested on the same classes, on other images of them: not to be compared "
            "with any other table, whose test classes are new to the model."
        )
    if not leads_are_claimed(frame):
        notes.append(
            f"Below {MIN_PAIRS} reproductions shared with the best row, no claim is made about "
            "which leads are real."
        )
    if searched_again(frame):
        notes.append(
            f"searches: MAP@R {together} of each search of a method, with different seeds. The "
            "score of such a row is the mean over its searches, and ± half the 95 % interval over "
            "them; its other columns describe the first search."
        )
    notes.extend(explanations(frame))
    if note := selection_note(frame):
        notes.append(note)
    if left_out := frame["missing_images"].max():
        notes.append(f"Images left out because they are missing or broken: {left_out:,}.")
    return notes


def selection_note(frame: pd.DataFrame) -> str:
    """Whether the order of validation scores is that of test scores; empty of few methods."""
    selection = selection_in(frame)
    if selection is None:
        return ""
    found = [
        f"{'none' if value is None else f'{value:.2f}'} at {embedding_size(frame, embedding)}"
        for embedding, value in correlations(selection).items()
    ]
    title = validation_title(frame)
    both = "validation and test MAP@R"
    if title != title_of("map_at_r"):
        both = f"validation {title} and test MAP@R"
    return f"Rank correlation of {both} over {len(selection.methods)} methods: {', '.join(found)}."


def describe_columns(frame: pd.DataFrame) -> str:
    """The data dictionary of leaderboard.csv."""
    columns = columns_of(metrics_in(frame), is_of_a_paper(frame), "selection" in frame)
    lines = [
        "# Columns of leaderboard.csv",
        "",
        "Scores are fractions at full precision; an empty cell means that there is no such value.",
        "",
        *_table_lines(
            pd.DataFrame(
                {
                    "column": [f"`{column}`" for column in columns],
                    "what it holds": list(columns.values()),
                }
            )
        ),
    ]
    return "\n".join(lines) + "\n"
