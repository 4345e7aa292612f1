"""C1: the contrastive loss of the cross-batch memory paper, which CCP is built on too."""

from __future__ import annotations

from typing import Any

import torch
from pytorch_metric_learning.losses import BaseMetricLossFunction
from pytorch_metric_learning.utils import common_functions as c_f
from pytorch_metric_learning.utils import loss_and_miner_utils as lmu
from torch import Tensor

from losses._tools.ball import BallDotProductSimilarity
from losses._tools.checks import check_embeddings
from losses._tools.labelled_loss import in_float32
from losses._tools.loss_dict import elements


class C1Loss(BaseMetricLossFunction):
    """Contrastive loss on dot products of ball-normalised vectors.

    Each anchor adds up 1 - s - epsilon over its positives and s - margin over its negatives,
    both where above zero; the mean is over anchors, with or without pairs. Sums, not means:
    an anchor with more pairs weighs more.
    """

    def __init__(self, margin: float = 0.5, epsilon: float = 1e-5, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not self.distance.is_inverted:
            name = type(self.distance).__name__
            raise ValueError(f"C1 is defined on a similarity, got distance={name}")
        self.margin = margin
        self.epsilon = epsilon
        self.add_to_recordable_attributes(list_of_names=["margin", "epsilon"], is_stat=False)

    def compute_loss(
        self,
        embeddings: Tensor,
        labels: Tensor | None,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor,
        ref_labels: Tensor | None,
    ) -> dict[str, dict[str, Any]]:
        c_f.labels_or_indices_tuple_required(labels, indices_tuple)
        check_embeddings(embeddings)
        # Sums over a memory of thousands of pairs need float32 at least.
        with torch.autocast(embeddings.device.type, enabled=False):
            similarities = self.distance(in_float32(embeddings), in_float32(ref_emb))
        a1, p, a2, n = lmu.convert_to_pairs(indices_tuple, labels, ref_labels)
        positive = torch.zeros_like(similarities, dtype=torch.bool)
        negative = torch.zeros_like(similarities, dtype=torch.bool)
        positive[a1, p] = True
        negative[a2, n] = True
        pull = (1 - similarities - self.epsilon).relu().where(positive, 0)
        push = (similarities - self.margin).relu().where(negative, 0)
        return {"loss": elements((pull + push).sum(dim=1))}

    def get_default_distance(self) -> BallDotProductSimilarity:
        return BallDotProductSimilarity()
