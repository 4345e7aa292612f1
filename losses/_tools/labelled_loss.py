"""What every loss with classes does before its own formula, and every loss with proxies after."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from pytorch_metric_learning.distances import CosineSimilarity
from pytorch_metric_learning.losses.mixins import WeightRegularizerMixin
from pytorch_metric_learning.utils import common_functions as c_f
from torch import Tensor, nn

from harness.losses._tools.checks import check_batch, check_positive
from harness.losses._tools.short_form import ShortForm

# In PML's dictionaries: name of a sub-loss -> its terms and how to reduce them.
LossDict = dict[str, dict[str, Any]]


class LabelledLoss(ShortForm):
    """A loss of a batch with labels 0 to num_classes - 1; a subclass writes `batch_losses`.

    A bad batch is refused. The rest is done outside autocast and in float32 at least: half
    precision loses the third digit of a cosine, which a scale then multiplies, and ties what
    is to be ranked.
    """

    def __init__(self, num_classes: int, embedding_size: int, **kwargs: Any) -> None:
        check_positive(num_classes=num_classes, embedding_size=embedding_size)
        super().__init__(**kwargs)
        self.num_classes = num_classes
        self.embedding_size = embedding_size
        self.record("num_classes", "embedding_size")

    def forward(self, embeddings: Tensor, *batch: Any, **more: Any) -> Any:
        # PML's reducers give a sum of terms the precision of the embeddings.
        return super().forward(in_float32(embeddings), *batch, **more)

    def record(self, *names: str) -> None:
        """Have PML's record keepers write down these settings."""
        self.add_to_recordable_attributes(list_of_names=list(names), is_stat=False)

    def short_form(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        check_batch(embeddings, labels, self.num_classes, self.embedding_size)
        with without_autocast(embeddings.device):
            return self.reduced_loss(embeddings, labels.long())

    def reduced_loss(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """What the reducer would make of `batch_losses`, for those with a short form."""
        raise NotImplementedError

    def compute_loss(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor,
        ref_labels: Tensor,
    ) -> LossDict:
        c_f.labels_required(labels)
        c_f.ref_not_supported(embeddings, labels, ref_emb, ref_labels)
        check_batch(embeddings, labels, self.num_classes, self.embedding_size)
        with without_autocast(embeddings.device):
            return self.batch_losses(embeddings, labels.long(), indices_tuple)

    def batch_losses(
        self, embeddings: Tensor, labels: Tensor, indices_tuple: tuple[Tensor, ...] | None
    ) -> LossDict:
        raise NotImplementedError


class ProxyLoss(WeightRegularizerMixin, LabelledLoss):
    """A loss with a parameter `proxies`, by default on cosines."""

    def __init__(
        self, num_classes: int, embedding_size: int, num_proxies: int, **kwargs: Any
    ) -> None:
        super().__init__(num_classes=num_classes, embedding_size=embedding_size, **kwargs)
        self.proxies = nn.Parameter(torch.empty(num_proxies, embedding_size))
        self.weight_init_func(self.proxies)

    def compute_loss(self, *batch: Any) -> LossDict:
        loss_dict = super().compute_loss(*batch)
        self.add_weight_regularization_to_loss_dict(loss_dict, self.proxies)
        return loss_dict

    def get_logits(self, embeddings: Tensor) -> Tensor:
        """(batch, classes) class scores; large is good."""
        with without_autocast(embeddings.device):
            return self.logits(in_float32(embeddings))

    def logits(self, embeddings: Tensor) -> Tensor:
        raise NotImplementedError

    def get_default_distance(self) -> CosineSimilarity:
        return CosineSimilarity()


def in_float32(values: Tensor) -> Tensor:
    """In float32, or better where they already are."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Outside autocast; where it is off there is nothing to do, which torch takes longer for."""
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()
