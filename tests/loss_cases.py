"""Losses under test: each class that the package exports, with a head and batches for it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from pytorch_metric_learning.losses import NTXentLoss
from pytorch_metric_learning.reducers import (
    AvgNonZeroReducer,
    BaseReducer,
    ClassWeightedReducer,
    DivisorReducer,
    MeanReducer,
    PerAnchorReducer,
    SumReducer,
    ThresholdReducer,
)
from pytorch_metric_learning.trainers import MetricLossOnly
from torch import Tensor, nn

from harness import losses
from harness.losses.ball_losses import PAIR_LOSSES
from harness.losses.ccp import CCPLoss
from harness.losses.drml import BASES as DRML_BASES
from harness.losses.drml import DRMLLoss, RelationHead
from harness.losses.hpl import HierarchicalProxyLoss
from harness.losses.proxygml import ProxyGMLLoss
from harness.losses.proxynca_pp import ProxyNCAPlusPlusLoss

CLASSES = 12
FEATURES = 16
DIM = 8
BATCH = 16


@dataclass(frozen=True)
class Case:
    """A loss class under test.

    Attributes:
        build: the loss for CLASSES classes and DIM dimensions; keyword arguments reach its
            constructor.
        build_head: a head from FEATURES to DIM, where a plain Linear will not do.
        attach: called with (loss, head) where the loss must know its head; again after copies.
        supports_logits: otherwise get_logits raises NotImplementedError with a reason.
        has_weights: takes a weight_regularizer.
    """

    name: str
    build: Callable[..., Any]
    build_head: Callable[[], nn.Module] = lambda: nn.Linear(FEATURES, DIM)
    attach: Callable[[Any, nn.Module], None] | None = None
    supports_logits: bool = True
    has_weights: bool = True

    def make(self, **kwargs: Any) -> tuple[Any, nn.Module]:
        """The loss and its head, always with the same weights."""
        torch.manual_seed(0)
        head = self.build_head()
        loss = self.build(**kwargs)
        self.reattach(loss, head)
        return loss, head

    def reattach(self, loss: Any, head: nn.Module) -> None:
        if self.attach is not None:
            self.attach(loss, head)


# Where the settings that come with a class do not suit so few classes and steps.
SETTINGS: dict[type, dict[str, Any]] = {
    ProxyGMLLoss: {"proxies_per_class": 3, "ratio": 0.4},
    HierarchicalProxyLoss: {"num_coarse": (4,), "update_every": 3},
    CCPLoss: {"proxies_per_class": 3},
    DRMLLoss: {"groups": 2, "base_params": {"margin": 0.1, "alpha": 16}},
}


def case(loss_class: type, variant: str = "", **settings: Any) -> Case:
    """A case whose loss is `loss_class(CLASSES, DIM, **settings)`."""
    settings = {**SETTINGS.get(loss_class, {}), **settings}
    name = f"{loss_class.__name__} {variant}".strip()
    build = partial(loss_class, CLASSES, DIM, **settings)
    if not hasattr(loss_class, "attach"):
        return Case(name, build)
    return Case(
        name,
        build,
        build_head=lambda: RelationHead(FEATURES, DIM, settings["groups"]),
        attach=lambda loss, head: loss.attach(head),
        supports_logits=settings.get("base") not in ("triplet", "margin"),
        has_weights=False,
    )


def takes_classes(loss_class: type) -> bool:
    return "num_classes" in inspect.signature(loss_class).parameters


# Every loss that the package exports, and the variants that take other ways through its code.
EXPORTED = [getattr(losses, name) for name in losses.__all__ if name.endswith("Loss")]
CASES = [
    *(case(loss_class) for loss_class in EXPORTED if takes_classes(loss_class)),
    case(ProxyNCAPlusPlusLoss, "negatives", denominator="negatives"),
    case(ProxyGMLLoss, "no proxy term", proxies_per_class=1, ratio=0.5, reg_weight=0),
    case(HierarchicalProxyLoss, "anchor", base="anchor", num_coarse=(5, 2)),
    case(HierarchicalProxyLoss, "kmeans+grad", coarse_mode="kmeans+grad"),
    case(HierarchicalProxyLoss, "mean", coarse_mode="mean"),
    case(HierarchicalProxyLoss, "superclasses", superclasses=[c // 4 for c in range(CLASSES)]),
    *(case(CCPLoss, base, base=base) for base in PAIR_LOSSES if base != "c2"),
    Case(
        "CCPLoss over a PML loss",
        lambda **kwargs: CCPLoss(CLASSES, DIM, base=NTXentLoss(), batch_loss_weight=1, **kwargs),
    ),
    *(
        case(DRMLLoss, base, base=base, base_params={})
        for base in DRML_BASES
        if base != "proxyanchor"
    ),
]


def batches(count: int, seed: int = 1) -> list[tuple[Tensor, Tensor]]:
    """Batches of features and labels, every class at a place of its own; some classes absent."""
    generator = torch.Generator().manual_seed(seed)
    centres = 2 * torch.randn(CLASSES, FEATURES, generator=torch.Generator().manual_seed(9))
    result = []
    for _ in range(count):
        few = torch.randperm(CLASSES, generator=generator)[: BATCH // 4]
        labels = few.repeat(BATCH // len(few))
        noise = torch.randn(BATCH, FEATURES, generator=generator)
        result.append((centres[labels] + noise, labels))
    return result


def adam(loss: nn.Module, head: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam([*head.parameters(), *loss.parameters()], lr=0.02)


REDUCERS: dict[str, Callable[[], BaseReducer]] = {
    "mean": MeanReducer,
    "nonzero": AvgNonZeroReducer,
    "sum": SumReducer,
    "divisor": DivisorReducer,
    "threshold": lambda: ThresholdReducer(low=0.01, high=100),
    "per anchor": PerAnchorReducer,
    "class weights": lambda: ClassWeightedReducer(torch.full((CLASSES,), 3.0)),
}


def pml_trainer(loss: nn.Module, head: nn.Module, **hooks: Any) -> MetricLossOnly:
    """PML's trainer of a loss and its head, over four batches."""
    features, labels = (torch.cat(part) for part in zip(*batches(4), strict=True))
    return MetricLossOnly(
        models={"trunk": nn.Identity(), "embedder": head},
        optimizers={"embedder_optimizer": adam(loss, head)},
        batch_size=BATCH,
        loss_funcs={"metric_loss": loss},
        dataset=torch.utils.data.TensorDataset(features, labels),
        sampler=list(range(len(labels))),
        data_device=torch.device("cpu"),
        dataloader_num_workers=0,
        **hooks,
    )
