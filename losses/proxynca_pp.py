"""ProxyNCA++ (Teh, DeVries, Taylor: "ProxyNCA++: Revisiting and Revitalizing Proxy
Neighborhood Component Analysis", ECCV 2020)."""

from __future__ import annotations

from typing import Any

import torch
from optuna.distributions import FloatDistribution
from pytorch_metric_learning.distances import CosineSimilarity
from pytorch_metric_learning.losses import BaseMetricLossFunction
from pytorch_metric_learning.losses.mixins import WeightRegularizerMixin
from pytorch_metric_learning.utils import common_functions as c_f
from pytorch_metric_learning.utils import loss_and_miner_utils as lmu
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from losses.checks import check_batch, check_positive
from losses.cosine import cosine_similarities
from losses.loss_dict import elements
from losses.method import LOSS_LR, Method, Preset, Space

DENOMINATORS = ("all", "negatives")


def nca_losses(logits: Tensor, labels: Tensor, denominator: str) -> Tensor:
    """(batch,) -log of each sample's softmax probability of its own class.

    With "negatives" the softmax leaves the own class out of its denominator, as the first
    ProxyNCA did; that is no probability, and the loss can be negative.
    """
    if denominator == "all":
        return cross_entropy(logits, labels, reduction="none")
    own = labels.unsqueeze(1)
    others = logits.scatter(1, own, float("-inf")).logsumexp(dim=1)
    return others - logits.gather(1, own).squeeze(1)


def check_denominator(denominator: str, fewest_proxies: int) -> None:
    """Raise ValueError for an unknown denominator, or one that would be an empty sum."""
    if denominator not in DENOMINATORS:
        raise ValueError(f"denominator must be one of {DENOMINATORS}, got {denominator!r}")
    if denominator == "negatives" and fewest_proxies < 2:
        raise ValueError(f"denominator='negatives' needs 2 proxies or more, got {fewest_proxies}")


class ProxyNCAPlusPlusLoss(WeightRegularizerMixin, BaseMetricLossFunction):
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
        check_positive(
            num_classes=num_classes, embedding_size=embedding_size, temperature=temperature
        )
        check_denominator(denominator, num_classes)
        super().__init__(**kwargs)
        self.num_classes = num_classes
        self.embedding_size = embedding_size
        self.temperature = temperature
        self.denominator = denominator
        self.proxies = nn.Parameter(torch.empty(num_classes, embedding_size))
        self.weight_init_func(self.proxies)
        self.add_to_recordable_attributes(
            list_of_names=["num_classes", "embedding_size", "temperature"], is_stat=False
        )

    def compute_loss(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor,
        ref_labels: Tensor,
    ) -> dict[str, dict[str, Any]]:
        c_f.labels_required(labels)
        c_f.ref_not_supported(embeddings, labels, ref_emb, ref_labels)
        check_batch(embeddings, labels, self.num_classes, self.embedding_size)
        losses = nca_losses(self.get_logits(embeddings), labels.long(), self.denominator)
        if indices_tuple is not None:
            losses = losses * lmu.convert_to_weights(indices_tuple, labels, dtype=losses.dtype)
        loss_dict = {"loss": elements(losses)}
        self.add_weight_regularization_to_loss_dict(loss_dict, self.proxies)
        return loss_dict

    def get_logits(self, embeddings: Tensor) -> Tensor:
        """(batch, classes) what the softmax is taken of, but for a constant; large is good."""
        # Half precision loses the third digit of a cosine, which the temperature multiplies
        # by 18: the loss is computed in float32 at least, outside any autocast.
        dtype = torch.promote_types(embeddings.dtype, torch.float32)
        with torch.autocast(embeddings.device.type, enabled=False):
            proxies = self.proxies.to(device=embeddings.device, dtype=dtype)
            matrix = cosine_similarities(self.distance, embeddings.to(dtype), proxies)
            # A cosine needs no underflow guard and no pairwise differences; a user's distance
            # is taken as it is, so LpDistance(power=2) is the formula as printed.
            scale = 2 if self.distance.is_inverted else -1
            return matrix * (scale / self.temperature)

    def get_default_distance(self) -> CosineSimilarity:
        return CosineSimilarity()

    def get_default_weight_init_func(self) -> c_f.TorchInitWrapper:
        return c_f.TorchInitWrapper(torch.nn.init.normal_, std=0.125)


def build_loss(
    num_classes: int, embedding_size: int, inverse_temperature: float = 9.0, **kwargs: Any
) -> ProxyNCAPlusPlusLoss:
    """The loss from its searched parameters; 1/T is searched because logits grow with it."""
    check_positive(inverse_temperature=inverse_temperature)
    return ProxyNCAPlusPlusLoss(
        num_classes, embedding_size, temperature=1 / inverse_temperature, **kwargs
    )


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
    return Preset({"inverse_temperature": 9.0, "loss_lr": loss_lr}, protocol | further)


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
        },
        samples_per_class=1,
    ),
)
