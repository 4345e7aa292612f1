"""The shorter way of a loss that is used as its class comes.

It goes past PML's dictionaries and reducers, which take as long as the loss of a small batch.
"""

from __future__ import annotations

from typing import Any

import torch
from pytorch_metric_learning.losses import BaseMetricLossFunction
from pytorch_metric_learning.reducers import BaseReducer, MultipleReducers
from pytorch_metric_learning.utils import common_functions as c_f
from torch import Tensor


class ShortForm(BaseMetricLossFunction):
    """A loss that takes the shorter way where it has one, and else PML's."""

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor | None = None,
        indices_tuple: tuple[Tensor, ...] | None = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
    ) -> Any:
        if (
            labels is None
            or ref_emb is not None
            or not self.has_short_form(embeddings, indices_tuple)
        ):
            return super().forward(embeddings, labels, indices_tuple, ref_emb, ref_labels)
        c_f.check_shapes(embeddings, labels)
        return self.short_form(embeddings, c_f.to_device(labels, embeddings))

    def has_short_form(
        self, embeddings: Tensor, indices_tuple: tuple[Tensor, ...] | None = None
    ) -> bool:
        """Whether, as it is set, the reduced loss is what `short_form` gives."""
        return False

    def short_form(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        raise NotImplementedError


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
