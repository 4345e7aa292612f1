"""Families: which pairs of rows are corrected together, fixed by the records alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from harness.judgement.judged import FamilyKind
from harness.judgement.samples import Sample


@dataclass(frozen=True)
class Pair:
    """Two rows that are compared, and the family in which."""

    one: Sample
    other: Sample
    kind: FamilyKind
    family: str
    relation: str


def find_pairs(samples: Sequence[Sample]) -> list[Pair]:
    """Every pair with a trained row, once; the rows are ordered by their scores."""
    found = []
    for ahead, behind in combinations(samples, 2):
        if not (ahead.trained or behind.trained):
            continue
        one, other = (ahead, behind) if _first(ahead, behind) else (behind, ahead)
        relation = one.rivals.get(other.method, "") if other.trained else "no training"
        if one.stored != other.stored:
            if one.trained and not one.stored:
                kind, family = FamilyKind.OWN_ROW, f"{one.name} against the stored rows"
                found.append(Pair(one, other, kind, family, relation))
            continue
        if not other.trained:
            kind = FamilyKind.NO_TRAINING
        else:
            kind = FamilyKind.PLANNED if relation else FamilyKind.OTHERS
        found.append(Pair(one, other, kind, family_name(kind, one.stored), relation))
    return found


def family_name(kind: FamilyKind, stored: bool) -> str:
    """Name of a family of pairs within one results folder."""
    return f"{kind.value} (stored)" if stored else kind.value


def _first(ahead: Sample, behind: Sample) -> bool:
    """Whether differences are those of the row ahead: a method minus what it claims to beat."""
    if ahead.trained != behind.trained:
        return ahead.trained
    if ahead.stored != behind.stored:
        return behind.stored
    if behind.method in ahead.rivals:
        return True
    return ahead.method not in behind.rivals


def find_missing(samples: Sequence[Sample]) -> list[tuple[Sample, str]]:
    """Rows and their declared rivals that have no row.

    They count in the family of planned pairs: its size is fixed by what methods declare, and not by
    which rivals were searched so far. What users add does not change it for stored rows.
    """
    there, stored = {s.method for s in samples}, {s.method for s in samples if s.stored}
    return [
        (sample, rival)
        for sample in samples
        if sample.trained
        for rival in sample.rivals
        if rival not in (stored if sample.stored else there)
    ]
