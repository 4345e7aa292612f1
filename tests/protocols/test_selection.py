"""Selection schemes: which classes a model of a trial trains on, stops by and is scored on."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.protocols.selection import SCHEMES
from harness.protocols.selection.pairs import quarters
from harness.protocols.selection.partition import Partition, Scored
from harness.protocols.splits import Fold, split_classes


def test_the_quarters_of_cars_differ_by_one_class() -> None:
    parts = quarters(range(98))
    assert [len(part) for part in parts] == [25, 25, 24, 24]
    assert parts[2] == tuple(range(50, 74))


def test_pairs_of_eight_classes_by_hand() -> None:
    partition = SCHEMES["pairs"].cut(split_classes(16, "mlrc"), range(8))
    assert partition.folds == (
        Fold(train=(0, 1, 2, 3), val=(4, 5)),
        Fold(train=(2, 3, 4, 5), val=(6, 7)),
        Fold(train=(4, 5, 6, 7), val=(0, 1)),
        Fold(train=(0, 1, 6, 7), val=(2, 3)),
    )
    assert partition.scored == (
        Scored((0, 1), (1, 2)),
        Scored((2, 3), (2, 3)),
        Scored((4, 5), (3, 0)),
        Scored((6, 7), (0, 1)),
    )
    assert [partition.embedded_by(model) for model in range(4)] == [
        (4, 5, 6, 7),
        (0, 1, 6, 7),
        (0, 1, 2, 3),
        (2, 3, 4, 5),
    ]


@given(st.integers(16, 300), st.integers(0, 9))
def test_every_class_is_scored_once_by_the_two_models_that_did_not_train_on_it(
    num_classes: int, seed: int
) -> None:
    split = split_classes(num_classes, "balanced")
    order = list(split.trainval)
    random.Random(seed).shuffle(order)
    partition = SCHEMES["pairs"].cut(split, order)
    scored = [label for group in partition.scored for label in group.classes]
    assert sorted(scored) == list(split.trainval)
    for group in partition.scored:
        for label in group.classes:
            others = {m for m, fold in enumerate(partition.folds) if label not in fold.train}
            assert set(group.models) == others and len(group.models) == 2
    sizes = [len(group.classes) for group in partition.scored]
    assert max(sizes) - min(sizes) <= 1
    seen = {label for fold in partition.folds for label in (*fold.train, *fold.val)}
    assert not seen & set(split.test)


def test_folds_are_those_of_the_split_in_any_order() -> None:
    split = split_classes(20, "balanced")
    scheme = SCHEMES["folds"]
    partition = scheme.cut(split, split.trainval)
    assert partition == scheme.cut(split, split.trainval[::-1]) == Partition(split.folds)
    assert partition.embedded_by(0) == ()


def test_a_model_is_never_scored_on_a_class_that_it_trains_on() -> None:
    folds = (Fold(train=(0, 1), val=(2, 3)),)
    with pytest.raises(AssertionError, match="a class it trained on"):
        Partition(folds, (Scored((1, 2), (0,)),))
