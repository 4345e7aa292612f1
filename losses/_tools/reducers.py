"""Which of PML's reducers a loss can honour; the others are refused with a reason."""

from __future__ import annotations

from collections.abc import Sequence

from pytorch_metric_learning.losses import BaseMetricLossFunction
from pytorch_metric_learning.reducers import (
    BaseReducer,
    ClassWeightedReducer,
    DivisorReducer,
    DoNothingReducer,
    PerAnchorReducer,
)

from harness.losses._tools.c1 import C1Loss


class ReducesInBases(BaseMetricLossFunction):
    """A loss made of other losses, which reduce their own terms: a reducer is handed on to them.

    PML's DoNothingReducer is not: it returns the sums of the other losses by name.
    """

    def bases(self) -> Sequence[BaseMetricLossFunction]:
        """The losses that this one is made of."""
        raise NotImplementedError

    def set_reducer(self, reducer: BaseReducer | None) -> None:
        own = reducer is None or isinstance(reducer, DoNothingReducer)
        super().set_reducer(reducer if own else None)
        if not own:
            for base in self.bases():
                check_divisor(base, reducer)
                base.set_reducer(reducer)


def check_divisor(loss: BaseMetricLossFunction, reducer: BaseReducer) -> None:
    """Raise ValueError for a DivisorReducer if the loss does not state what to divide by."""
    stated = isinstance(loss, C1Loss) or isinstance(loss.get_default_reducer(), DivisorReducer)
    if not stated and _holds(reducer, DivisorReducer):
        raise ValueError(
            f"DivisorReducer needs a divisor, which {type(loss).__name__} does not state: use "
            "MeanReducer or AvgNonZeroReducer"
        )


def check_not_per_anchor(system: str, reducer: BaseReducer | None) -> None:
    """Raise ValueError for a PerAnchorReducer, whose table only holds pairs within a batch."""
    if _holds(reducer, PerAnchorReducer):
        raise ValueError(
            f"PerAnchorReducer takes pairs within a batch, and {system} has pairs with references "
            "too: use MeanReducer or AvgNonZeroReducer"
        )


def check_not_class_weighted(system: str, reducer: BaseReducer | None) -> None:
    """Raise ValueError for a ClassWeightedReducer, which looks up the class of a sample."""
    if _holds(reducer, ClassWeightedReducer):
        raise ValueError(
            f"ClassWeightedReducer weighs samples, and {system} has one loss per proxy: use "
            "DivisorReducer or MeanReducer"
        )


def _holds(reducer: BaseReducer | None, kind: type[BaseReducer]) -> bool:
    """Whether a reducer is of a kind, or made of one that is."""
    return reducer is not None and any(isinstance(part, kind) for part in reducer.modules())
