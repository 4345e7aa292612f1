"""Selection by pairs of models, concatenated, on classes that neither has trained on.

The trainval classes are cut into four quarters. Model i trains on quarters i and i+1, is stopped
by quarter i+2 and never sees quarter i+3. Each quarter scores the two models that did not train on
it. All classes count, and the score is one of concatenated embeddings, as in the test.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from harness.protocols.selection.partition import Partition, Scheme, Scored
from harness.protocols.splits import ClassSplit, Fold

QUARTERS = 4


def quarters(order: Sequence[int]) -> list[tuple[int, ...]]:
    """Four runs of classes; the first ones have one class more where four does not divide."""
    small, larger = divmod(len(order), QUARTERS)
    bounds = [number * small + min(number, larger) for number in range(QUARTERS + 1)]
    return [tuple(sorted(order[a:b])) for a, b in pairwise(bounds)]


def cut(split: ClassSplit, order: Sequence[int]) -> Partition:
    """The quarters of the trainval classes in some order."""
    assert sorted(order) == sorted(split.trainval)
    parts = quarters(order)

    def part(number: int) -> tuple[int, ...]:
        return parts[number % QUARTERS]

    return Partition(
        folds=tuple(
            Fold(train=tuple(sorted(part(i) + part(i + 1))), val=part(i + 2))
            for i in range(QUARTERS)
        ),
        # Quarter q stops model q-2, and model q-3 (or q+1) never sees it.
        scored=tuple(
            Scored(part(q), ((q + 1) % QUARTERS, (q + 2) % QUARTERS)) for q in range(QUARTERS)
        ),
    )


SCHEME = Scheme(
    cut=cut,
    summary=(
        "the mean over quarters of the classes of two models' concatenated score, "
        "neither of which trained on them"
    ),
    own_partition=True,
    finalists=5,
)
