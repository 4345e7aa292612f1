"""Class splits: the reality check's own table, and what every split must satisfy."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.protocols.splits import FOUR_FOLDS, ClassSplit, Fold, mlrc_applies, split_classes

# classes, base of the labels, then per fold: training classes, first and last validated label.
# As published for CUB, Cars (whose labels count from 1) and SOP.
PUBLISHED = [
    (200, 0, [(75, 75, 99), (75, 0, 24), (75, 25, 49), (75, 50, 74)]),
    (196, 1, [(74, 75, 98), (74, 1, 24), (74, 26, 49), (74, 50, 73)]),
    (22634, 0, [(8488, 8488, 11316), (8488, 0, 2828), (8488, 2829, 5657), (8488, 5658, 8486)]),
]


@pytest.mark.parametrize(("num_classes", "base", "folds"), PUBLISHED)
def test_mlrc_folds_are_the_published_ones(
    num_classes: int, base: int, folds: list[tuple[int, int, int]]
) -> None:
    split = split_classes(num_classes, "mlrc")
    assert split.trainval == tuple(range(num_classes // 2))
    assert split.test == tuple(range(num_classes // 2, num_classes))
    found = [(len(f.train), f.val[0] + base, f.val[-1] + base) for f in split.folds]
    assert found == folds
    for fold in split.folds:
        assert fold.val == tuple(range(fold.val[0], fold.val[-1] + 1))


def test_cars_labels_25_and_74_are_never_validated() -> None:
    split = split_classes(196, "mlrc")
    validated = {label + 1 for fold in split.folds for label in fold.val}
    assert set(range(1, 99)) - validated == {25, 74}


@given(st.integers(16, 400), st.sampled_from(["balanced", "ccp"]))
def test_balanced_and_ccp_validate_every_class_once(num_classes: int, scheme: str) -> None:
    split = split_classes(num_classes, scheme)
    assert sorted(c for fold in split.folds for c in fold.val) == list(split.trainval)
    sizes = [len(fold.val) for fold in split.folds]
    assert max(sizes) - min(sizes) <= 1
    for fold in split.folds:
        assert sorted((*fold.train, *fold.val)) == list(split.trainval)


@given(st.integers(8, 300).map(lambda half: 2 * half))
def test_mlrc_folds_hold_every_trainval_class_in_each_fold(num_classes: int) -> None:
    for fold in split_classes(num_classes, "mlrc").folds:
        assert sorted((*fold.train, *fold.val)) == list(range(num_classes // 2))


def test_fold_sizes_of_cars_under_the_other_schemes() -> None:
    sizes = {
        scheme: [len(fold.val) for fold in split_classes(196, scheme).folds]
        for scheme in ("balanced", "ccp")
    }
    assert sizes == {"balanced": [25, 25, 24, 24], "ccp": [25, 24, 25, 24]}


def test_ccp_cuts_in_shop_as_its_code_does_and_starts_with_the_last_quarter() -> None:
    split = split_classes(7982, "ccp", given_trainval=range(3997))
    assert [len(fold.val) for fold in split.folds] == [1000, 999, 999, 999]
    assert split.folds[0].val[-1] == 3996


# classes of the data set, of its training part; then what validates under halves and thirds.
OF_ONE_MODEL = [
    *(("cub", 200, 100, (50, 99), (66, 99)), ("cars", 196, 98, (49, 97), (65, 97))),
    ("sop", 22634, 11318, (5659, 11317), (7545, 11317)),
    ("inshop", 7982, 3997, (1998, 3996), (2664, 3996)),
]


@pytest.mark.parametrize(("name", "num_classes", "trainval", "half", "third"), OF_ONE_MODEL)
def test_one_model_is_validated_on_the_last_half_or_third_of_its_classes(
    name: str, num_classes: int, trainval: int, half: tuple[int, int], third: tuple[int, int]
) -> None:
    for scheme, (first, last) in {"halves": half, "thirds": third}.items():
        (fold,) = split_classes(num_classes, scheme, range(trainval)).folds
        assert fold.train == tuple(range(first))
        assert fold.val == tuple(range(first, last + 1))
    (fold,) = split_classes(num_classes, "none", range(trainval)).folds
    assert fold.train == tuple(range(trainval)) and fold.val == ()


def test_cub_partitions_are_the_same_under_every_scheme() -> None:
    partitions = {frozenset(f.val for f in split_classes(200, s).folds) for s in FOUR_FOLDS}
    assert len(partitions) == 1


@pytest.mark.parametrize("num_classes", [17, 14])
def test_mlrc_is_refused_where_its_rule_breaks(num_classes: int) -> None:
    assert not mlrc_applies(num_classes)
    with pytest.raises(ValueError, match=f"even number of classes from 16 up, got {num_classes}"):
        split_classes(num_classes, "mlrc")


def test_fewer_than_eight_trainval_classes_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 8 classes to train and validate on, got 7"):
        split_classes(14, "balanced")


@pytest.mark.parametrize(
    ("trainval", "test", "folds"),
    [
        ((0, 1, 2), (2, 3), (Fold((0,), (1,)),)),
        ((0, 1, 2), (3,), (Fold((0, 1), (1,)),)),
        ((0, 1), (3,), (Fold((0,), (3,)),)),
        ((0, 1, 2), (3,), (Fold((0,), (1,)), Fold((2,), (1,)))),
        ((0, 1, 2), (3,), (Fold((0,), ()),)),
    ],
    ids=["test in trainval", "class on both sides", "test in fold", "validated twice", "empty"],
)
def test_a_leaking_split_cannot_be_built(
    trainval: tuple[int, ...], test: tuple[int, ...], folds: tuple[Fold, ...]
) -> None:
    with pytest.raises(AssertionError):
        ClassSplit(trainval, test, folds)


def test_an_undivided_split_trains_on_every_trainval_class_and_no_other() -> None:
    split = split_classes(196, "mlrc")
    (fold,) = split.undivided().folds
    assert fold.train == split.trainval and fold.val == ()
    assert split.undivided().test == split.test


def test_the_digest_tells_splits_apart() -> None:
    digests = {split_classes(n, s).digest for n in (196, 198) for s in FOUR_FOLDS}
    assert len(digests) == 6
    assert split_classes(196, "ccp").digest == split_classes(196, "ccp").digest
