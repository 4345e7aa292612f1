"""ProxyNCA as PML has it, without its underflow, and with its gradient written out."""

from __future__ import annotations

from pytorch_metric_learning import losses as pml
from pytorch_metric_learning.distances import LpDistance
from pytorch_metric_learning.reducers import MeanReducer
from torch import Tensor

from harness.losses._tools.checks import check_labels
from harness.losses._tools.cosine import cosine_loss
from harness.losses._tools.nca import nca_formula
from harness.losses._tools.short_form import ShortForm, as_it_comes, in_one_precision


class ProxyNCALoss(ShortForm, pml.ProxyNCALoss):
    """PML's ProxyNCALoss, faster where it is used as it comes, and right at every scale.

    PML takes the logarithm of a softmax. In float32, and with a scale above 22, that can be 0, and
    the sample that is farthest from its proxy does not count; or so small that its gradient is
    NaN. The reality check searches scales up to 100.
    """

    def has_short_form(
        self, embeddings: Tensor, indices_tuple: tuple[Tensor, ...] | None = None
    ) -> bool:
        distance = self.distance
        return (
            as_it_comes(self, MeanReducer, indices_tuple)
            and type(distance) is LpDistance
            and (distance.p, distance.power) == (2, 2)
            and distance.normalize_embeddings
            and not distance.collect_stats
            and in_one_precision(embeddings, self.proxies)
        )

    def short_form(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        self.distance.check_shapes(embeddings, self.proxies)
        check_labels(labels, len(self.proxies))
        # Of unit vectors -d^2 is 2 cos - 2.
        return cosine_loss(embeddings, self.proxies, nca_formula(labels, 2 * self.softmax_scale))
