"""Class-disjoint splits and folds, as pure functions on class ids."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

NUM_FOLDS = 4
# Trainval classes that a scheme needs at least, so that two are trained and two validated on.
MIN_TRAINVAL_CLASSES = 8
MIN_OF_ONE_MODEL = {"none": 2, "halves": 4, "thirds": 6}

# Where a file lists the validation classes, too.
GIVEN = "given"

# Below 16 classes, and for odd counts, the reality check's released rule loses classes.
MLRC_MIN_CLASSES = 16


@dataclass(frozen=True)
class Fold:
    """Class ids that one model trains on, and those that choose its checkpoint."""

    train: tuple[int, ...]
    val: tuple[int, ...]


@dataclass(frozen=True)
class ClassSplit:
    """Class ids by role. No class has two roles, and all folds share the test classes."""

    trainval: tuple[int, ...]
    test: tuple[int, ...]
    folds: tuple[Fold, ...]

    def __post_init__(self) -> None:
        trainval, test = set(self.trainval), set(self.test)
        assert not trainval & test, "a class is in both trainval and test"
        for fold in self.folds:
            train, val = set(fold.train), set(fold.val)
            assert len(train) == len(fold.train) and len(val) == len(fold.val), "a class twice"
            assert train and (val or train == trainval), "a fold has an empty side"
            assert not train & val, "a class is in both sides of a fold"
            assert train | val <= trainval, "a fold has a class that is not in trainval"
        for one, other in combinations(self.folds, 2):
            assert not set(one.val) & set(other.val), "two folds validate the same class"

    def undivided(self) -> ClassSplit:
        """The same classes in one fold that trains on all of trainval and validates none."""
        return ClassSplit(self.trainval, self.test, (Fold(self.trainval, ()),))

    @property
    def digest(self) -> str:
        """Short hash that two results share exactly if their splits are the same."""
        parts = [self.trainval, self.test, [(fold.train, fold.val) for fold in self.folds]]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]


def mlrc_applies(num_classes: int) -> bool:
    """Whether the reality check's fold rule is exact for this many classes."""
    return num_classes >= MLRC_MIN_CLASSES and num_classes % 2 == 0


def applicable_folds(scheme: str, num_classes: int, given: bool) -> str:
    """The fold scheme of a protocol on a data set, or what stands for it there.

    Args:
        given: whether the data set comes split, which is not how the reality check halves it.
    """
    return "balanced" if scheme == "mlrc" and (given or not mlrc_applies(num_classes)) else scheme


def split_classes(
    num_classes: int, scheme: str, given_trainval: Sequence[int] | None = None
) -> ClassSplit:
    """Split classes 0..num_classes-1; the second half is the test set unless one is given.

    Args:
        num_classes: all classes of the data set.
        scheme: a key of FOLD_SCHEMES.
        given_trainval: the training classes of a data set that comes split, as In-Shop does.
    """
    if given_trainval is None:
        trainval = tuple(range(num_classes - num_classes // 2))
        if scheme == "mlrc" and not mlrc_applies(num_classes):
            raise ValueError(
                f"folds 'mlrc' need an even number of classes from {MLRC_MIN_CLASSES} up, "
                f"got {num_classes}; use folds 'balanced'"
            )
    else:
        trainval = tuple(sorted(given_trainval))
    check_enough(scheme, len(trainval), f"of {num_classes} in all; the other half is the test set")
    test = tuple(sorted(set(range(num_classes)) - set(trainval)))
    return ClassSplit(trainval, test, cut(trainval, scheme))


def check_enough(scheme: str, num_trainval: int, among: str) -> None:
    """Raise ValueError if a scheme has too few classes to cut."""
    needed = MIN_OF_ONE_MODEL.get(scheme, MIN_TRAINVAL_CLASSES)
    if num_trainval < needed:
        what = "four folds need" if scheme in FOUR_FOLDS else f"folds '{scheme}' need"
        raise ValueError(
            f"{what} at least {needed} classes to train and validate on, "
            f"got {num_trainval} ({among})"
        )


def cut(trainval: Sequence[int], scheme: str) -> tuple[Fold, ...]:
    """The folds that a scheme makes of some classes."""
    return tuple(
        Fold(
            train=tuple(trainval[i] for i in train),
            val=tuple(trainval[i] for i in val),
        )
        for train, val in FOLD_SCHEMES[scheme](len(trainval))
    )


Positions = list[tuple[list[int], list[int]]]


def _mlrc(num_trainval: int) -> Positions:
    """The reality check: train on a run of classes that wraps around, validate on the next.

    Sizes are truncated as its released code truncates them, so with 98 classes (Cars) two are
    never validated.
    """
    num_val = int(2 * num_trainval * 0.125)
    num_train = num_trainval - num_val
    folds = []
    for fold in range(NUM_FOLDS):
        start = int(fold / NUM_FOLDS * num_trainval)
        order = [(start + i) % num_trainval for i in range(num_trainval)]
        folds.append((sorted(order[:num_train]), sorted(order[num_train:])))
    return folds


def _balanced(num_trainval: int) -> Positions:
    """Consecutive quarters, the first ones larger where four does not divide."""
    small, larger = divmod(num_trainval, NUM_FOLDS)
    bounds = [fold * small + min(fold, larger) for fold in range(NUM_FOLDS + 1)]
    return [_validate_between(num_trainval, *bounds[fold : fold + 2]) for fold in range(NUM_FOLDS)]


def _ccp(num_trainval: int) -> Positions:
    """The CCP paper: evenly spaced cuts, truncated; the first model validates the last quarter."""
    bounds = [int(num_trainval * fold / NUM_FOLDS) for fold in range(NUM_FOLDS + 1)]
    return [
        _validate_between(num_trainval, *bounds[fold : fold + 2])
        for fold in reversed(range(NUM_FOLDS))
    ]


def _none(num_trainval: int) -> Positions:
    """One model that trains on all of them."""
    return [_validate_between(num_trainval, num_trainval, num_trainval)]


def _halves(num_trainval: int) -> Positions:
    """One model; the second half, the larger one if there is one, validates."""
    return [_validate_between(num_trainval, num_trainval // 2, num_trainval)]


def _thirds(num_trainval: int) -> Positions:
    """One model; the last third of evenly spaced cuts, truncated, validates."""
    return [_validate_between(num_trainval, 2 * num_trainval // 3, num_trainval)]


def _validate_between(num_trainval: int, start: int, stop: int) -> tuple[list[int], list[int]]:
    train = [*range(start), *range(stop, num_trainval)]
    return train, list(range(start, stop))


FOLD_SCHEMES: dict[str, Callable[[int], Positions]] = {
    "mlrc": _mlrc,
    "balanced": _balanced,
    "ccp": _ccp,
    "none": _none,
    "halves": _halves,
    "thirds": _thirds,
}
FOUR_FOLDS = ("mlrc", "balanced", "ccp")
