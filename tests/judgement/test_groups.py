"""Letters of groups."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from harness.judgement.groups import letters


def pairs(*names: str) -> set[frozenset[str]]:
    return {frozenset(name) for name in names}


def test_a_row_between_two_that_differ_has_both_of_their_letters() -> None:
    assert letters("abc", pairs("ac")) == {"a": "A", "b": "AB", "c": "B"}


def test_rows_without_a_difference_share_one_letter_and_all_different_ones_none() -> None:
    assert letters("abc", set()) == dict.fromkeys("abc", "A")
    assert letters("abc", pairs("ab", "ac", "bc")) == {"a": "A", "b": "B", "c": "C"}
    assert letters("", set()) == {}


def test_two_rows_share_a_letter_exactly_if_they_are_not_separated() -> None:
    rng = np.random.default_rng(0)
    rows = "abcdefgh"
    for share in (0.2, 0.5, 0.8):
        for _ in range(30):
            separated = {frozenset(p) for p in combinations(rows, 2) if rng.random() < share}
            found = letters(rows, separated)
            for one, other in combinations(rows, 2):
                together = bool(set(found[one]) & set(found[other]))
                assert together == (frozenset((one, other)) not in separated)
