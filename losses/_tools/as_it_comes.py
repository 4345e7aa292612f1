"""Whether a loss is used as its class comes: only then may a shorter way be taken."""

from __future__ import annotations

import torch
from pytorch_metric_learning.losses import BaseMetricLossFunction
from pytorch_metric_learning.reducers import BaseReducer, MultipleReducers
from torch import Tensor


def as_it_comes(
    loss: BaseMetricLossFunction,
    reducer: type[BaseReducer],
    indices_tuple: tuple[Tensor, ...] | None = None,
    weights_regularized: bool = False,
) -> bool:
    """Without a miner, statistics or regularisers, and with this reducer for every sub-loss.

    Args:
        weights_regularized: the loss's own weights may have a regulariser.
    """
    given = loss.reducer
    reducers = given.reducers.values() if type(given) is MultipleReducers else (given,)
    return (
        indices_tuple is None
        and not loss.collect_stats
        and loss.embedding_regularizer is None
        and (weights_regularized or getattr(loss, "weight_regularizer", None) is None)
        and all(type(one) is reducer and not one.collect_stats for one in reducers)
    )


def in_one_precision(embeddings: Tensor, proxies: Tensor) -> bool:
    """Whether a product of both is exact to their own precision, as no autocast would have it."""
    return (
        embeddings.dtype == proxies.dtype
        and embeddings.dtype in (torch.float32, torch.float64)
        and embeddings.device == proxies.device
        and not torch.is_autocast_enabled(embeddings.device.type)
    )
