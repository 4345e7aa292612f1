"""The conclusions of the verdict, in a few sentences: of all tables, of a table, of a row."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from harness.judgement.answers import FIRST_SEARCHES
from harness.judgement.judged import Answer, Beats, JudgedPair, JudgedRow, JudgedTable, Scope
from harness.judgement.statistic import LEVEL
from harness.judgement.words import listed, no_training_words, score_words
from harness.plain_text import counted

HOW_TO_READ = (
    "All differences are points of MAP@R of the concatenated embeddings, on classes that no search "
    "has seen. Intervals and p-values account for test classes, seeds and, where searches were "
    f"repeated, search noise; p-values are corrected by Holm within each family, at {LEVEL:.0%}. "
    "docs/statistics.md explains the method."
)


def planned_pairs(table: JudgedTable) -> list[JudgedPair]:
    """Each trained row against its base and its declared rivals."""
    return [pair for pair in table.pairs if pair.relation and table.by_name[pair.rival].trained]


def of_tables(tables: Sequence[JudgedTable]) -> str:
    """Three sentences about all tables."""
    planned = [pair for table in tables for pair in planned_pairs(table)]
    counts = Counter(pair.answer for pair in planned)
    better = f"{counts[Answer.BETTER]} of {counted(len(planned), 'planned comparison')}"
    claims = (
        f"In {counted(len(tables), 'table')}, a method is shown to be better than its base or a "
        f"declared rival in {better}, worse in {counts[Answer.WORSE]} and equivalent in "
        f"{counts[Answer.EQUIVALENT]}; {counts[Answer.NOT_DECIDED]} are not decided."
    )
    return f"{claims} {_no_training(tables)} {_scope(tables)}"


def of_table(table: JudgedTable) -> str:
    """Who leads, what holds of the planned comparisons, and what training is worth."""
    trained = table.trained_rows
    if not trained:
        return "This table has no trained row."
    best = trained[0]
    if len(trained) == 1:
        said = [f"{best.name} is the only trained row, with {score_words(best)}% MAP@R."]
    elif len(table.leaders) == 1:
        said = [f"{best.name} leads with {score_words(best)}% MAP@R, ahead of all other rows."]
    else:
        others = listed([name for name in table.leaders if name != best.name])
        said = [f"{best.name} leads with {score_words(best)}% MAP@R, not separated from {others}."]
    planned = planned_pairs(table)
    shown = [f"{pair.method} over {pair.rival}" for pair in planned if pair.answer is Answer.BETTER]
    if planned:
        names = f": {listed(shown)}" if shown else ""
        said.append(f"{len(shown)} of {counted(len(planned), 'planned claim')} hold{names}.")
    said.append(_no_training([table]))
    return " ".join(said)


def of_row(table: JudgedTable, row: JudgedRow) -> str:
    """Place of a row, its answers, and what its training is worth, in three sentences."""
    count = len(table.trained_rows)
    place = (
        f"{row.name} ranks {row.rank} of {count} on {table.dataset} with {score_words(row)}% MAP@R."
    )
    answers: dict[Answer, list[str]] = defaultdict(list)
    for pair in table.pairs_of(row.name):
        if table.by_name[pair.rival].trained:
            answers[pair.answer].append(pair.rival)
    if not answers:
        said = "There is no other trained row to compare it with."
    else:
        said = (
            f"It is better than {listed(answers[Answer.BETTER]) or 'no row'} and worse than "
            f"{listed(answers[Answer.WORSE]) or 'no row'}"
        )
        if equal := answers[Answer.EQUIVALENT]:
            said += f", and equivalent to {listed(equal)}"
        undecided = answers[Answer.NOT_DECIDED]
        said += f"; against {listed(undecided)} it is not decided." if undecided else "."
    training = no_training_words(row)
    last = f"Better than no training: {training}." if training else _scope([table])
    return f"{place} {said} {last}"


def _no_training(tables: Sequence[JudgedTable]) -> str:
    rows = [row for table in tables for row in table.rows if row.beats_no_training is not None]
    found = Counter(row.beats_no_training for row in rows)
    if not rows:
        return "No row without training was evaluated for comparison."
    ahead = found[Beats.YES] + found[Beats.IN_PART]
    part = found[Beats.IN_PART]
    but = f"; {part} of these {'is' if part == 1 else 'are'} behind it in P@1 or with single models"
    better = f"{'is' if ahead == 1 else 'are'} better than no training in MAP@R"
    return f"{ahead} of {counted(len(rows), 'trained row')} {better}{but if part else ''}."


def _scope(tables: Sequence[JudgedTable]) -> str:
    scopes = {pair.scope for table in tables for pair in table.pairs if pair.scope is not None}
    if Scope.ONE_SEARCH in scopes:
        every = "All" if scopes <= {Scope.ONE_SEARCH, Scope.FIXED} else "Some"
        return (
            f"{every} answers rest on one search for each method, so a difference may still be due "
            f"to a lucky search; searches with --searches {FIRST_SEARCHES} would measure that."
        )
    return "The answers account for search noise where methods were searched."
