"""Selection by single models, as in the reality check: the mean of their best validations."""

from __future__ import annotations

from collections.abc import Sequence

from harness.protocols.selection.partition import Partition, Scheme
from harness.protocols.splits import ClassSplit


def cut(split: ClassSplit, order: Sequence[int]) -> Partition:
    """The protocol's own folds, whatever the order of the classes."""
    del order
    return Partition(split.folds)


SCHEME = Scheme(
    cut=cut,
    summary="the mean over folds of a single model's best validation score",
    own_partition=False,
)
