"""C1: the contrastive loss of the cross-batch memory paper, which CCP is built on too."""

from __future__ import annotations

from typing import Any

import torch
from pytorch_metric_learning.losses import BaseMetricLossFunction
from pytorch_metric_learning.reducers import MeanReducer
from pytorch_metric_learning.utils import common_functions as c_f
from pytorch_metric_learning.utils import loss_and_miner_utils as lmu
from torch import Tensor

from harness.losses._tools.ball import BallDotProductSimilarity
from harness.losses._tools.checks import check_embeddings
from harness.losses._tools.labelled_loss import in_float32
from harness.losses._tools.loss_dict import elements
from harness.losses._tools.short_form import as_it_comes


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
        masks = self._pair_masks(indices_tuple, labels, ref_labels, (len(embeddings), len(ref_emb)))
        return {"loss": elements(self._losses(embeddings, ref_emb, *masks))}

    def with_references(
        self,
        embeddings: Tensor,
        labels: Tensor,
        ref_emb: Tensor,
        ref_labels: Tensor,
        left_out: Tensor | None = None,
    ) -> Tensor:
        """The mean loss against references, for each anchor without the one in `left_out`."""
        check_embeddings(embeddings)
        same, different = lmu.get_matches_and_diffs(labels, ref_labels)
        if left_out is not None:
            same = same.scatter(1, left_out.unsqueeze(1), 0)
        return self._losses(embeddings, ref_emb, same.bool(), different.bool()).mean()

    def as_it_comes(self) -> bool:
        """Whether `with_references` is what this class would do with a list of pairs."""
        return as_it_comes(self, MeanReducer) and not self.distance.collect_stats

    def _losses(
        self, embeddings: Tensor, ref_emb: Tensor, positive: Tensor, negative: Tensor
    ) -> Tensor:
        """(anchors,) sums over the pairs of two masks."""
        # Sums over a memory of thousands of pairs need float32 at least.
        with torch.autocast(embeddings.device.type, enabled=False):
            similarities = self.distance(in_float32(embeddings), in_float32(ref_emb))
        pull = (1 - similarities - self.epsilon).relu().where(positive, 0)
        push = (similarities - self.margin).relu().where(negative, 0)
        return (pull + push).sum(dim=1)

    def _pair_masks(
        self,
        indices_tuple: tuple[Tensor, ...] | None,
        labels: Tensor | None,
        ref_labels: Tensor | None,
        shape: tuple[int, int],
    ) -> tuple[Tensor, Tensor]:
        """(anchors, references) which are positive pairs, and which are negative ones."""
        if indices_tuple is None:  # a list of all pairs has a length that the CPU must wait for
            same, different = lmu.get_matches_and_diffs(labels, ref_labels)
            return same.bool(), different.bool()
        a1, p, a2, n = lmu.convert_to_pairs(indices_tuple, labels, ref_labels)
        positive, negative = torch.zeros((2, *shape), dtype=torch.bool, device=a1.device)
        positive[a1, p] = True
        negative[a2, n] = True
        return positive, negative

    def get_default_distance(self) -> BallDotProductSimilarity:
        return BallDotProductSimilarity()
