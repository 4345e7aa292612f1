"""Plain softmax: a linear classifier on the embedding, as papers compare with."""

from __future__ import annotations

import math
from typing import Any

import torch
from pytorch_metric_learning.distances import DotProductSimilarity
from pytorch_metric_learning.utils import common_functions as c_f
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from harness.losses._tools.labelled_loss import LossDict, ProxyLoss
from harness.losses._tools.loss_dict import elements, weighted
from harness.losses.method import LOSS_LR, Method, Preset, Space


class SoftmaxLoss(ProxyLoss):
    """Cross-entropy of a linear layer with bias, on unit embeddings; its weights are `proxies`."""

    def __init__(self, num_classes: int, embedding_size: int, **kwargs: Any) -> None:
        super().__init__(num_classes, embedding_size, num_proxies=num_classes, **kwargs)
        bound = 1 / math.sqrt(embedding_size)  # as torch starts a linear layer
        self.bias = nn.Parameter(torch.empty(num_classes).uniform_(-bound, bound))

    def batch_losses(
        self, embeddings: Tensor, labels: Tensor, indices_tuple: tuple[Tensor, ...] | None
    ) -> LossDict:
        losses = cross_entropy(self.logits(embeddings), labels, reduction="none")
        return {"loss": elements(weighted(losses, labels, indices_tuple))}

    def logits(self, embeddings: Tensor) -> Tensor:
        """(batch, classes) what the softmax is taken of."""
        weights, bias = self.proxies.to(embeddings), self.bias.to(embeddings)
        return self.distance(normalize(embeddings), weights) + bias

    def get_default_distance(self) -> DotProductSimilarity:
        return DotProductSimilarity(normalize_embeddings=False)

    def get_default_weight_init_func(self) -> c_f.TorchInitWrapper:
        return c_f.TorchInitWrapper(nn.init.kaiming_uniform_, a=math.sqrt(5))


def build_loss(num_classes: int, embedding_size: int) -> SoftmaxLoss:
    return SoftmaxLoss(num_classes, embedding_size)


def space(dataset: str, num_classes: int) -> Space:
    del dataset, num_classes
    return {"loss_lr": LOSS_LR}


METHODS = (
    Method(
        name="softmax",
        paper="A linear classifier, as in K. Roth's Deep-Metric-Learning-Baselines",
        build_loss=build_loss,
        space=space,
        # The rate that this code gives to everything.
        presets={"mlrc": {"cub": Preset({"loss_lr": 1e-5})}},
        samples_per_class=1,
        loss_weight_decay=0.0,
    ),
)
