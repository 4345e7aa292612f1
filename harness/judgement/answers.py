"""Answers: the pairs of one family, with corrected p-values and what follows from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from harness.judgement.estimates import Measured
from harness.judgement.judged import (
    EMBEDDING,
    METRIC,
    Answer,
    Budget,
    JudgedPair,
    Needed,
    Outperforming,
    Reason,
    Scope,
)
from harness.judgement.samples import Sample
from harness.judgement.statistic import (
    LEVEL,
    NO_NOISE,
    holm,
    outperforming,
    searches_to_decide,
    together,
)
from harness.metrics.names import EMBEDDINGS

# Scores with an interval of their own: each class has a score in them.
SCORES = tuple(product(EMBEDDINGS, ("map_at_r", "p_at_1")))

# Searches of each row that measure search noise, where none was measured.
FIRST_SEARCHES = 3


def answer_family(members: Sequence[Measured], untested: int, margin: float) -> list[JudgedPair]:
    """The pairs of one family with their answers.

    Args:
        untested: planned pairs that count in the family although one row is missing.
    """
    tested = [m for m in members if m.reason is None]
    p_values = np.array([m.ranked.p for m in tested], float)
    count = len(tested) + untested
    corrected = holm(p_values, count)
    # What Holm multiplies each p-value with.
    factors = count - np.argsort(np.argsort(p_values, kind="stable"))
    beyond = holm([m.spread.p_beyond(m.ranked.difference, margin) for m in tested], count)
    found = {
        id(m): _judged(m, margin, float(p), float(apart), LEVEL / int(factor))
        for m, p, apart, factor in zip(tested, corrected, beyond, factors, strict=True)
    }
    return [found.get(id(m)) or _untested(m) for m in members]


def _untested(measured: Measured) -> JudgedPair:
    pair = measured.pair
    return JudgedPair(
        method=pair.one.name,
        rival=pair.other.name,
        family=pair.family,
        relation=pair.relation,
        estimates=measured.estimates,
        holm_p=None,
        answer=Answer.NOT_DECIDED,
        reason=measured.reason,
        bound=None,
        within_margin=False,
        outperforming=None,
        needed=None,
        scope=measured.scope,
        searches=(pair.one.num_searches, pair.other.num_searches),
        num_classes=measured.num_classes,
        contradictions=(),
    )


def _judged(
    measured: Measured, margin: float, holm_p: float, beyond: float, level: float
) -> JudgedPair:
    """One pair with its answer.

    Args:
        holm_p: corrected p-value of no difference.
        beyond: corrected p-value of a difference beyond the margin.
        level: that the uncorrected p-value would have to be below.
    """
    value = measured.ranked.difference
    bound = float(measured.spread.bound(value))
    within = bound <= margin and beyond < LEVEL
    needed = None if holm_p < LEVEL else _needed(measured, level)
    answer, reason = _answer(measured, holm_p < LEVEL, within, needed, level)
    return replace(
        _untested(measured),
        holm_p=holm_p,
        answer=answer,
        reason=reason,
        bound=bound,
        within_margin=within,
        outperforming=_outperforming(measured, value),
        needed=needed if reason is Reason.NOISE else None,
        contradictions=_contradictions(measured, value, answer, reason),
    )


def _outperforming(measured: Measured, value: float) -> Outperforming | None:
    """None where nobody knows what another search would change."""
    if measured.noise is None or measured.scope is Scope.ONE_SEARCH:
        return None
    return Outperforming(*map(float, outperforming(value, *measured.noise)))


def _answer(
    measured: Measured, separated: bool, within: bool, needed: Needed | None, level: float
) -> tuple[Answer, Reason | None]:
    one, other = measured.pair.one, measured.pair.other
    value = measured.ranked.difference
    first_ahead = value > 0
    ahead, behind = (one, other) if first_ahead else (other, one)
    if other.method == one.coincides_with or one.method == other.coincides_with:
        return Answer.NOT_DECIDED, Reason.COINCIDES
    if _had_less(behind, ahead):
        return Answer.NOT_DECIDED, Reason.UNDER_BUDGET
    if separated:
        return (Answer.BETTER if first_ahead else Answer.WORSE), None
    if within:
        return Answer.EQUIVALENT, None
    classes = together(NO_NOISE, NO_NOISE, measured.classes, measured.num_classes)
    searched = one.searched or other.searched
    if classes.p_value(value) >= level or (searched and needed is None):
        return Answer.NOT_DECIDED, Reason.TEST_SET
    return Answer.NOT_DECIDED, Reason.NOISE


def _had_less(behind: Sample, ahead: Sample) -> bool:
    """Whether a row is under budget, and behind one that had more trials or needs none."""
    if behind.budget is not Budget.SHORT:
        return False
    return ahead.trials is None or (behind.trials or 0) < ahead.trials


def _needed(measured: Measured, level: float) -> Needed | None:
    """Further searches of both rows; None where no number of them would do."""
    samples = [s for s in (measured.pair.one, measured.pair.other) if s.searched]
    if not samples or measured.noise is None:
        return None
    count: int | None = FIRST_SEARCHES
    if measured.measured_searches:
        count = searches_to_decide(
            measured.ranked.difference,
            (float(measured.noise[0].single), float(measured.noise[1].single)),
            measured.classes,
            measured.num_classes,
            level,
        )
    if count is None:
        return None
    further = [max(0, count - sample.num_searches) for sample in samples]
    seconds = [sample.search_seconds for sample in samples]
    cost = (
        None
        if any(one is None for one in seconds)
        else sum(number * (one or 0.0) for number, one in zip(further, seconds, strict=True))
    )
    return Needed(count, sum(further), cost)


def _contradictions(
    measured: Measured, value: float, answer: Answer, reason: Reason | None
) -> tuple[tuple[str, str], ...]:
    """Other scores whose own test finds a difference that the answer does not have."""
    if reason in (Reason.COINCIDES, Reason.UNDER_BUDGET):
        return ()
    found = []
    for embedding, metric in SCORES:
        other = measured.estimates[embedding][metric]
        if (embedding, metric) == (EMBEDDING, METRIC) or other.p is None or other.p >= LEVEL:
            continue
        settled = answer in (Answer.BETTER, Answer.WORSE)
        if not settled or other.difference * value < 0:
            found.append((embedding, metric))
    return tuple(found)
