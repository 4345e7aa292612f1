"""Proxy Anchor with its gradient written out: PML's loss, and the levels of HPL."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pytorch_metric_learning import losses as pml
from pytorch_metric_learning.reducers import BaseReducer, DivisorReducer
from torch import Tensor
from torch.nn.functional import log_softmax, pad, softmax

from harness.losses._tools.checks import check_labels
from harness.losses._tools.cosine import Formula, cosine_loss, plain_cosine
from harness.losses._tools.reducers import check_not_class_weighted
from harness.losses._tools.short_form import ShortForm, as_it_comes, in_one_precision


def anchor_formula(
    labels: Tensor, scale: float, margin: float, members: Tensor | None = None
) -> Formula:
    """The mean of log(1 + sum of exp) over the proxies' positives, plus that over negatives.

    Only proxies with a positive in the batch have the first, and its mean is over them.

    Groups of samples with proxies of their own may stand in front: then the losses are added up.

    Args:
        members: (batch,) which samples count, or those of each group; all unless given. Without
            any the loss is 0.
    """

    def formula(cosines: Tensor) -> tuple[Tensor, Tensor]:
        num_proxies = cosines.shape[-1]
        own = labels.unsqueeze(1) == torch.arange(num_proxies, device=labels.device)
        scaled, shift, nothing = cosines * scale, scale * margin, -torch.inf
        other = ~own
        if members is not None:
            own, other = own & members.unsqueeze(-1), other & members.unsqueeze(-1)
        positive = (shift - scaled).masked_fill_(~own, nothing)
        negative = scaled.add_(shift).masked_fill_(~other, nothing)
        # A last row of zeros is the 1 in the logarithm: it has the share 1 / (1 + sum of exp).
        exponents = pad(torch.cat([positive, negative], dim=-1), (0, 0, 0, 1))
        logs = log_softmax(exponents, dim=-2)[..., -1, :].unflatten(-1, (2, num_proxies))
        of_positive, of_negative = logs.sum(dim=-1).unbind(dim=-1)
        by_positive, by_negative = softmax(exponents, dim=-2)[..., :-1, :].split(num_proxies, -1)
        present = own.any(dim=-2).sum(dim=-1, dtype=cosines.dtype)
        weight = present.clamp_min_(1).reciprocal_()  # of each proxy that is present
        loss = -(of_positive * weight + of_negative / num_proxies).sum()
        slopes = by_positive * (weight * -scale)[..., None, None]
        return loss, slopes.add_(by_negative, alpha=scale / num_proxies)

    return formula


class ProxyAnchorLoss(ShortForm, pml.ProxyAnchorLoss):
    """PML's ProxyAnchorLoss, several times as fast where it is used as it comes.

    That is on cosines of single or double precision. With a miner, another reducer or distance,
    a regulariser or statistics it is PML's own.
    """

    def short_form(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        self.distance.check_shapes(embeddings, self.proxies)
        check_labels(labels, self.num_classes)
        return cosine_loss(embeddings, self.proxies, anchor_formula(labels, *self.settings()))

    def settings(self) -> tuple[float, float]:
        """What two losses must share to be one of two groups."""
        return self.alpha, self.margin

    def has_short_form(
        self, embeddings: Tensor, indices_tuple: tuple[Tensor, ...] | None = None
    ) -> bool:
        return (
            as_it_comes(self, DivisorReducer, indices_tuple)
            and plain_cosine(self.distance)
            and in_one_precision(embeddings, self.proxies)
        )

    def set_reducer(self, reducer: BaseReducer | None) -> None:
        check_not_class_weighted("Proxy Anchor", reducer)
        super().set_reducer(reducer)


def group_losses(
    losses: Sequence[ProxyAnchorLoss], embeddings: Tensor, labels: Tensor, members: Tensor
) -> Tensor:
    """The losses of groups of samples, added up; each as it comes, all with the same settings.

    Args:
        embeddings: (groups, batch, dim).
        members: (groups, batch) which samples count.
    """
    formula = anchor_formula(labels, *losses[0].settings(), members)
    return cosine_loss(embeddings, torch.stack([loss.proxies for loss in losses]), formula)
