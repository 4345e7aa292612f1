"""What to know before believing the rows of a leaderboard."""

from __future__ import annotations

from collections.abc import Mapping

from harness.judgement.judged import JudgedRow, JudgedTable
from harness.judgement.samples import Sample
from harness.judgement.words import row_notes
from harness.losses.shown_facts import FACTS
from harness.metrics.names import title_of
from harness.plain_text import counted


def notes_of(sample: Sample, judged: JudgedRow | None) -> list[str]:
    """The notes of a row: what its judgement says, its runs, and what its method reports."""
    notes = [] if judged is None else row_notes(judged, brief=True)
    searches = [row[-1].search for row in sample.searches]
    asked = sum(search["asked"]["reproductions"] for search in searches if "asked" in search)
    if len(sample.records) < asked:
        notes.append(f"{len(sample.records)} of {counted(asked, 'reproduction')}")
    for fact in FACTS:
        value = sample.fact(fact.name)
        if value is not None and value < fact.expected:
            notes.append(fact.note)
    return notes


def remarks_on(table: JudgedTable, sizes: Mapping[str, str]) -> list[str]:
    """What to know about all rows of a table together.

    Args:
        sizes: embedding -> what tables call it.
    """
    scopes = sorted({row.scope.value for row in table.rows if row.scope is not None})
    remarks = []
    if len(table.trained_rows) > 1:
        remarks.append(
            "group: rows that share a letter are not shown to differ (5% level, Holm-corrected; "
            f"{', '.join(scopes)})."
        )
    behind = [row for row in table.trained_rows if row.behind_no_training]
    if behind:
        named = "; ".join(f"{row.name} ({_scores(row, sizes)})" for row in behind)
        remarks.append(f"Below the best row without training: {named}.")
    return remarks


def _scores(row: JudgedRow, sizes: Mapping[str, str]) -> str:
    return ", ".join(f"{title_of(m)} {sizes[embedding]}" for embedding, m in row.behind_no_training)
