"""Entries of the dictionaries in which PML's losses hand their terms to a reducer."""

from __future__ import annotations

from typing import Any

from pytorch_metric_learning.utils import common_functions as c_f
from pytorch_metric_learning.utils import loss_and_miner_utils as lmu
from torch import Tensor


def elements(losses: Tensor) -> dict[str, Any]:
    """One loss per embedding of the batch, for the reducer to bring together.

    The divisor, which DivisorReducer asks for, makes that reducer a mean.
    """
    indices = c_f.torch_arange_from_size(losses)
    return {
        "losses": losses,
        "indices": indices,
        "reduction_type": "element",
        "divisor": len(losses),
    }


def reduced(loss: Tensor | int) -> dict[str, Any]:
    """A loss that reducers leave as it is."""
    return {"losses": loss, "indices": None, "reduction_type": "already_reduced"}


def weighted(losses: Tensor, labels: Tensor, indices_tuple: tuple[Tensor, ...] | None) -> Tensor:
    """(batch,) losses times how often a miner picked each embedding."""
    if indices_tuple is None:
        return losses
    return losses * lmu.convert_to_weights(indices_tuple, labels, dtype=losses.dtype)
