"""What the models of one trial train on, and what the trial is scored on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.protocols.splits import ClassSplit, Fold


@dataclass(frozen=True)
class Scored:
    """Classes on which some models of a trial are scored together.

    Attributes:
        classes: class ids; none of the models trains on them.
        models: positions of the models whose embeddings are concatenated.
    """

    classes: tuple[int, ...]
    models: tuple[int, ...]


@dataclass(frozen=True)
class Partition:
    """The models of one trial, by their classes, and what its score is the mean of.

    Attributes:
        folds: classes that each model trains on and is stopped by.
        scored: empty if a trial is scored by the validation of its single models.
    """

    folds: tuple[Fold, ...]
    scored: tuple[Scored, ...] = ()

    def __post_init__(self) -> None:
        for group in self.scored:
            for model in group.models:
                seen = set(self.folds[model].train)
                assert not seen & set(group.classes), "a model is scored on a class it trained on"

    def embedded_by(self, model: int) -> tuple[int, ...]:
        """The classes that a model is scored on together with others, in ascending order."""
        groups = [group.classes for group in self.scored if model in group.models]
        return tuple(sorted({label for classes in groups for label in classes}))

    @property
    def digest(self) -> str:
        """Short hash that two partitions share exactly if they are the same."""
        folds = [(fold.train, fold.val) for fold in self.folds]
        scored = [(group.classes, group.models) for group in self.scored]
        return hashlib.sha256(json.dumps([folds, scored]).encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Scheme:
    """How a search scores its trials.

    Attributes:
        cut: the partition for a split, given the trainval classes in the order to cut them in.
        summary: one sentence for tables.
        own_partition: whether `cut` depends on that order. Only then can trials be scored again
            on other partitions.
        finalists: trials that are scored again, unless the protocol says otherwise.
    """

    cut: Callable[[ClassSplit, Sequence[int]], Partition]
    summary: str
    own_partition: bool
    finalists: int = 0
