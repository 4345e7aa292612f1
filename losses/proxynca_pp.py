"""ProxyNCA++ (Teh, DeVries, Taylor: "ProxyNCA++: Revisiting and Revitalizing Proxy
Neighborhood Component Analysis", ECCV 2020)."""

from __future__ import annotations

from typing import Any

import torch
from optuna.distributions import FloatDistribution
from pytorch_metric_learning.reducers import MeanReducer
from pytorch_metric_learning.utils import common_functions as c_f
from torch import Tensor

from harness.losses._tools.ccp_settings import CCP_EPOCHS, proxies_in_ccp
from harness.losses._tools.checks import check_positive
from harness.losses._tools.cosine import cosine_loss, cosine_similarities, plain_cosine
from harness.losses._tools.labelled_loss import LossDict, ProxyLoss
from harness.losses._tools.loss_dict import elements, weighted
from harness.losses._tools.nca import check_denominator, nca_formula, nca_losses
from harness.losses._tools.short_form import as_it_comes
from harness.losses.method import LOSS_LR, Method, Preset, Space


class ProxyNCAPlusPlusLoss(ProxyLoss):
    """Cross-entropy over -(squared distance of unit vectors) / temperature, a proxy per class.

    Args:
        temperature: divides the squared distance. On unit vectors -d^2 = 2 cos - 2, so this is
            a softmax over (2 / temperature) * cos: 1/9 here is 1/18 in a loss on cosines.
        denominator: "all" proxies, or the first ProxyNCA's "negatives", which leaves the
            sample's own proxy out (the loss can then be negative).
    """

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        temperature: float = 1 / 9,
        denominator: str = "all",
        **kwargs: Any,
    ) -> None:
        check_positive(temperature=temperature)
        check_denominator(denominator, num_classes)
        super().__init__(num_classes, embedding_size, num_proxies=num_classes, **kwargs)
        self.temperature = temperature
        self.denominator = denominator
        self.record("temperature")

    def has_short_form(
        self, embeddings: Tensor, indices_tuple: tuple[Tensor, ...] | None = None
    ) -> bool:
        return (
            self.denominator == "all"
            and as_it_comes(self, MeanReducer, indices_tuple)
            and plain_cosine(self.distance)
        )

    def reduced_loss(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        proxies = self.proxies.to(embeddings)
        return cosine_loss(embeddings, proxies, nca_formula(labels, 2 / self.temperature))

    def batch_losses(
        self, embeddings: Tensor, labels: Tensor, indices_tuple: tuple[Tensor, ...] | None
    ) -> LossDict:
        losses = nca_losses(self.logits(embeddings), labels, self.denominator)
        return {"loss": elements(weighted(losses, labels, indices_tuple))}

    def logits(self, embeddings: Tensor) -> Tensor:
        """(batch, classes) what the softmax is taken of, but for a constant."""
        proxies = self.proxies.to(embeddings)
        matrix = cosine_similarities(self.distance, embeddings, proxies)
        # A cosine needs no underflow guard and no pairwise differences; a user's distance
        # is taken as it is, so LpDistance(power=2) is the formula as printed.
        scale = 2 if self.distance.is_inverted else -1
        return matrix * (scale / self.temperature)

    def get_default_weight_init_func(self) -> c_f.TorchInitWrapper:
        return c_f.TorchInitWrapper(torch.nn.init.normal_, std=0.125)


def build_loss(
    num_classes: int,
    embedding_size: int,
    *,
    inverse_temperature: float = 9.0,
    denominator: str = "all",
) -> ProxyNCAPlusPlusLoss:
    """The loss from its parameters; 1/T is searched because logits grow with it."""
    check_positive(inverse_temperature=inverse_temperature)
    return ProxyNCAPlusPlusLoss(num_classes, embedding_size, 1 / inverse_temperature, denominator)


def space(dataset: str, num_classes: int) -> Space:
    del dataset, num_classes
    return {"inverse_temperature": FloatDistribution(1.0, 64.0, log=True), "loss_lr": LOSS_LR}


def _published(
    lr: float, loss_lr: float, batch_size: int, samples_per_class: int, **further: Any
) -> Preset:
    # eps = 1 makes Adam momentum-SGD for small gradients, and only with it do these learning
    # rates make sense: they go together or not at all.
    protocol = {
        "optimizer": "adam",
        "optimizer_eps": 1.0,
        "lr": lr,
        "weight_decay": 0.0,
        "pooling": "max",
        "norm": "layer",
        "batch_size": batch_size,
        "samples_per_class": samples_per_class,
        "embedding_size": 2048,
        "freeze_batchnorm": False,
    }
    return Preset(
        {"inverse_temperature": 9.0, "loss_lr": loss_lr},
        protocol | further,
        belongs_to=("two_stage",),
        space={"loss_lr": FloatDistribution(1e1, 1e4, log=True)},
    )


def _published_by_dataset(**further: Any) -> dict[str, Preset]:
    return {
        "cub": _published(4e-3, 4e2, 32, 4, **further),
        "cars": _published(4e-3, 4e2, 32, 4, **further),
        "sop": _published(2.4e-2, 2.4e2, 192, 3, **further),
        "inshop": _published(2.4e-2, 2.4e3, 192, 3, **further),
    }


# The reality check's ProxyNCA rates (6.0e-3, 4.4e-3, 5.3e-4) divided by 8, our choice: its
# proxies start at standard deviation 1, these at 1/8, and RMSprop's steps do not scale along.
MLRC = {
    "cub": Preset({"inverse_temperature": 9.0, "loss_lr": 7.5e-4}),
    "cars": Preset({"inverse_temperature": 9.0, "loss_lr": 5.5e-4}),
    "sop": Preset({"inverse_temperature": 9.0, "loss_lr": 6.6e-5}),
}

# The CCP paper divides cosines by a temperature of 0.1, so 2 / T is 10 here.
IN_CCP = proxies_in_ccp({dataset: {"inverse_temperature": 5.0} for dataset in CCP_EPOCHS})

METHODS = (
    Method(
        name="proxynca++",
        paper="Teh et al., ProxyNCA++: Revisiting and Revitalizing Proxy Neighborhood "
        "Component Analysis, ECCV 2020",
        build_loss=build_loss,
        space=space,
        presets={
            "mlrc": MLRC,
            "paper": _published_by_dataset(),
            # Clipping is in the code only.
            "official": _published_by_dataset(clip_value=10.0),
            "ccp": IN_CCP,
        },
        samples_per_class=1,
        compared_with=("proxynca",),
    ),
)
