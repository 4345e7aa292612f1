"""Judgements in words: no more is claimed than was shown."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from harness.judgement.fairness import MOST_AT_FIRST, MOST_AT_LIMIT
from harness.judgement.judged import (
    Answer,
    Beats,
    Budget,
    JudgedPair,
    JudgedRow,
    JudgedTable,
    Reason,
    Scope,
)
from harness.judgement.ranks import Ranks
from harness.judgement.samples import Sample
from harness.judgement.statistic import MIN_CLASSES, MIN_PAIRS
from harness.metrics.names import title_of
from harness.plain_text import counted
from harness.records.provenance import spell_differing


def points(share: float) -> str:
    """A score or a bound in percent or points, without a sign."""
    return f"{100 * share:.2f}"


def signed(share: float) -> str:
    """A difference in points."""
    return f"{100 * share:+.2f}"


def score_words(row: JudgedRow) -> str:
    """Concatenated MAP@R in percent, with its interval."""
    half = row.score.half_width
    return points(row.score.mean) + ("" if half is None else f" ± {points(half)}")


def interval_words(pair: JudgedPair) -> str:
    """95% confidence interval of the difference in points; empty without one."""
    low, high = pair.estimate.low, pair.estimate.high
    return "" if low is None or high is None else f"{signed(low)} to {signed(high)}"


def spell_p(p_value: float) -> str:
    """A p-value with its sign: below a thousandth the digits say nothing."""
    return f"= {p_value:.2g}" if p_value >= 0.001 else "< 0.001"


def p_words(pair: JudgedPair) -> str:
    """Corrected p-value for a cell of a table; empty if the pair was not tested."""
    return "" if pair.holm_p is None else spell_p(pair.holm_p).removeprefix("= ")


def listed(names: Sequence[str]) -> str:
    """Names as a sentence has them: a, b and c."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def spell_time(seconds: float) -> str:
    """A duration, rounded as an estimate should be."""
    for unit, size in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= 1.5 * size:
            return counted(round(seconds / size), unit)
    return counted(max(1, round(seconds)), "second")


def scope_words(pair: JudgedPair) -> str:
    """Which noise the answer accounts for."""
    if pair.scope is not Scope.SEARCHES:
        return pair.scope.value if pair.scope else "nothing random"
    numbers = [number for number in pair.searches if number]
    if len(set(numbers)) == 1:
        return f"over {numbers[0]} searches each"
    return f"over {numbers[0]} and {numbers[1]} searches"


def short_answer(table: JudgedTable, pair: JudgedPair) -> str:
    """The answer for a cell of a table."""
    if pair.answer is Answer.EQUIVALENT:
        return f"equivalent within {points(pair.bound or 0)}"
    if pair.answer is Answer.NOT_DECIDED:
        return f"not decided: {_reason(table, pair)}"
    return f"{pair.answer.value}{_at_most(pair)}"


def sentence(table: JudgedTable, pair: JudgedPair) -> str:
    """One pair, with its difference, test and scope."""
    by = f"by {points(abs(pair.estimate.difference))} points of MAP@R on {table.dataset}"
    facts = f" ({_facts(table, pair)})." if pair.holm_p is not None else "."
    first = pair.estimate.difference > 0
    ahead, behind = (pair.method, pair.rival) if first else (pair.rival, pair.method)
    if pair.separated:
        said = f"{ahead} is better than {behind} {by}{_at_most(pair)}{facts}"
    elif pair.answer is Answer.EQUIVALENT:
        bound = points(pair.bound or 0)
        said = f"{ahead} and {behind} are equivalent: they differ by less than {bound} points of "
        said += f"MAP@R on {table.dataset}{facts}"
    else:
        reason = _reason(table, pair)
        said = f"Not decided: {reason}. {ahead} is ahead of {behind} {by}{facts}"
    return " ".join([said, *(f"{note}." for note in pair_notes(table, pair))])


def _facts(table: JudgedTable, pair: JudgedPair) -> str:
    low, high = pair.estimate.low or 0.0, pair.estimate.high or 0.0
    if pair.estimate.difference < 0:
        low, high = -high, -low
    tests = next(family.tests for family in table.families if family.name == pair.family)
    after = f" after Holm over {tests} tests" if tests > 1 else ""
    interval = f"95% interval {points(low)} to {points(high)}"
    return f"{interval}; p {spell_p(pair.holm_p or 0)}{after}; {scope_words(pair)}"


def _at_most(pair: JudgedPair) -> str:
    return f", by less than {points(pair.bound or 0)}" if pair.within_margin else ""


def _reason(table: JudgedTable, pair: JudgedPair) -> str:
    """Why a pair is not decided, with what would decide it."""
    if pair.reason is Reason.UNDER_BUDGET:
        first_ahead = pair.estimate.difference > 0
        row = table.by_name[pair.rival if first_ahead else pair.method]
        return f"{row.name} had {row.trials} of {row.asked} trials"
    if pair.reason is Reason.COINCIDES:
        rows = [table.by_name[name] for name in (pair.method, pair.rival)]
        row, base = rows if rows[0].coincides_with == rows[1].method else rows[::-1]
        return f"{row.name} coincides with its base, {base.name}, at its best parameters"
    if pair.reason is Reason.FEW_RUNS:
        return f"too few shared reproductions ({MIN_PAIRS} are needed)"
    if pair.reason is Reason.FEW_CLASSES:
        return f"too few test classes ({pair.num_classes}, and {MIN_CLASSES} are needed)"
    if pair.reason is Reason.NOISE and pair.needed is not None:
        cost = "" if pair.needed.seconds is None else f", about {spell_time(pair.needed.seconds)}"
        more = f"{pair.needed.searches} searches each ({pair.needed.further} more{cost})"
        measured = pair.scope is not Scope.ONE_SEARCH
        return f"{more} would {'decide it' if measured else 'measure the search noise'}"
    assert pair.reason is not None
    return pair.reason.value


def pair_notes(table: JudgedTable, pair: JudgedPair) -> list[str]:
    """Other scores that contradict the answer, and how far two searches may differ."""
    dims = table.by_name[pair.method].dims
    found = []
    for embedding, metric in pair.contradictions:
        estimate = pair.estimates[embedding][metric]
        ahead = pair.method if estimate.difference > 0 else pair.rival
        found.append(
            f"In {score_title(dims, embedding, metric)}, {ahead} is ahead by "
            f"{points(abs(estimate.difference))} (uncorrected p {spell_p(estimate.p or 0)})"
        )
    return found


def score_title(dims: Mapping[str, int], embedding: str, metric: str) -> str:
    """A metric with the dimension of its embedding."""
    size = dims.get(embedding)
    return f"{title_of(metric)} at {size} dimensions" if size else f"{embedding} {title_of(metric)}"


def row_notes(row: JudgedRow, brief: bool = False) -> list[str]:
    """What a reader must know before believing a row.

    Args:
        brief: without names of parameters and bases, for a cell of a table.
    """
    notes = []
    if row.budget is Budget.SHORT:
        notes.append(f"{row.trials} of {row.asked} trials")
    if row.budget is Budget.FIXED:
        notes.append("fixed parameters")
    if (row.at_step_limit or 0) > MOST_AT_LIMIT:
        notes.append("stopped by the step limit")
    if (row.best_at_first or 0) > MOST_AT_FIRST:
        notes.append("best at first validation")
    if row.still_rising:
        notes.append("search still improving")
    if row.on_bound:
        names = "" if brief else f": {', '.join(row.on_bound)}"
        notes.append(f"best value at the edge of its range{names}")
    if row.versions:
        names = "" if brief else f": {spell_differing(row.versions)}"
        notes.append(f"trials of different versions{names}")
    if row.coincides_with:
        notes.append(f"coincides with its base{'' if brief else f', {row.coincides_with}'}")
    if row.beats_no_training is Beats.NO:
        notes.append("worse than no training")
    elif behind := behind_no_training(row):
        notes.append(f"behind no training in {behind}")
    return [*notes, *run_notes(row)]


def run_notes(row: JudgedRow | Sample) -> list[str]:
    """Those of its runs, which rows without a judgement have, too."""
    missing = row.reproductions < row.asked_reproductions
    of_asked = f"{row.reproductions} of {counted(row.asked_reproductions, 'reproduction')}"
    return [*([of_asked] if missing else []), *row.method_notes]


def behind_no_training(row: JudgedRow) -> str:
    """Scores in which a row is behind no training; empty without any."""
    by_metric: dict[str, list[str]] = defaultdict(list)
    for embedding, metric in row.behind_no_training:
        by_metric[metric].append(str(row.dims.get(embedding, embedding)))
    return listed([f"{title_of(m)} at {listed(d)} dimensions" for m, d in by_metric.items()])


def place_words(table: JudgedTable, row: JudgedRow) -> str:
    """Where a trained row is among all rows of its table."""
    return (
        f"{row.name}: place {row.rank} of {len(table.trained_rows)} in {table.dataset}, protocol "
        f"{table.protocol}, group {row.letters}"
    )


def no_training_words(row: JudgedRow) -> str:
    """Whether a row is better than no training; empty where nothing was compared."""
    if row.beats_no_training is None:
        return ""
    if row.beats_no_training is Beats.IN_PART:
        return f"in part, but it is behind in {behind_no_training(row)}"
    return row.beats_no_training.value


def table_remarks(table: JudgedTable, sizes: Mapping[str, str]) -> list[str]:
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
    behind = {
        row.name: ", ".join(f"{title_of(m)} {sizes[e]}" for e, m in row.behind_no_training)
        for row in table.trained_rows
        if row.behind_no_training
    }
    if behind:
        named = "; ".join(f"{name} ({scores})" for name, scores in behind.items())
        remarks.append(f"Below the best row without training: {named}.")
    return remarks


def critical_words(ranks: Ranks) -> str:
    """Which average ranks are not separated."""
    if ranks.critical is None:
        return "Two data sets are too few for a critical difference."
    return f"Ranks closer than {ranks.critical:.1f} are not separated (Nemenyi)."


def friedman_words(ranks: Ranks) -> str:
    """Whether all methods may be equal."""
    if ranks.p_value is None:
        return "A Friedman test takes three methods and five data sets."
    return f"Friedman test of all being equal: p {spell_p(ranks.p_value)}."
