"""What `--loss NAME` stands for: a loss and everything its paper adds around it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from optuna.distributions import BaseDistribution, FloatDistribution

if TYPE_CHECKING:
    from torch import Tensor, nn

Space = Mapping[str, BaseDistribution]
Params = Mapping[str, Any]

# Optimizer settings that may stand among a method's parameters. The trainer reads them;
# they never reach a builder.
OPTIMIZER_PARAMS = ("loss_lr", "head_lr", "trunk_lr")

# The range in which the reality check searched the learning rate of a loss's own parameters.
LOSS_LR = FloatDistribution(1e-6, 1.0, log=True)

# Where a paper gives no value for a data set, the value of the one most like it is used.
STANDS_FOR = {
    "glyphs": "cub",
    "folder": "cub",
    "inshop": "sop",
    "inaturalist": "sop",
    "imagenet": "sop",
}


class HookContext(Protocol):
    """What a hook may see and touch of a training run."""

    @property
    def model(self) -> nn.Module: ...

    @property
    def loss(self) -> nn.Module: ...

    @property
    def step(self) -> int: ...

    @property
    def train_loss(self) -> float:
        """Mean over the steps since the last validation."""
        ...

    def embed_class_pool(self, images_per_class: int) -> Tensor:
        """(classes, images_per_class, dim) raw embeddings of fresh training images.

        In inference mode and with a random generator of its own.
        """
        ...


class Hook:
    """Acts at fixed points of training; its state is checkpointed with the model."""

    def on_train_begin(self, context: HookContext) -> None:
        """Before the first step; not called again when a run is resumed."""

    def after_backward(self, context: HookContext) -> None:
        """Between backward and gradient clipping, so that it can change gradients."""

    def on_validation_end(self, context: HookContext, score: float) -> None:
        """After each validation, with its score (larger is better)."""

    def facts(self) -> dict[str, Any]:
        """What the record of a finished run should say of it, ready for JSON."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        del state


@dataclass(frozen=True)
class Preset:
    """Parameters that somebody published, and the protocol fields that go with them."""

    params: Params
    protocol: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Method:
    """One name of `--loss`.

    Attributes:
        build_loss: called as `build_loss(num_classes, embedding_size, **params)`; the loss
            receives the head's raw output and normalises it itself.
        space: the search space for (data set, number of training classes).
        presets: name of a preset -> data set -> values. `mlrc` must be there and must name
            every parameter of the space: it is the first trial of a search.
        samples_per_class: images of a class in a batch; 1 for losses with class weights or
            proxies.
        normalizer: what is applied to embeddings at evaluation: "l2", or CCP's "ball".
        build_head: `build_head(in_features, embedding_size, **params)`, where the method
            replaces the linear head. The trainer calls `loss.attach(head)` if both exist.
        build_hook: `build_hook(**params)`, where the method acts during training.
        loss_weight_decay: for the loss's own parameters; None takes the protocol's.
        patience: validations without improvement, where the method needs more than the
            protocol gives.
        sampler: how the space is searched unless the user says otherwise.
    """

    name: str
    paper: str
    build_loss: Callable[..., nn.Module]
    space: Callable[[str, int], Space]
    presets: Mapping[str, Mapping[str, Preset]]
    samples_per_class: int = 4
    normalizer: str = "l2"
    build_head: Callable[..., nn.Module] | None = None
    build_hook: Callable[..., Hook] | None = None
    loss_weight_decay: float | None = None
    patience: int | None = None
    sampler: str = "gp"
    aliases: tuple[str, ...] = ()

    def preset(self, name: str, dataset: str) -> Preset:
        """The preset for a data set, or for the one that stands for it."""
        if name not in self.presets:
            known = ", ".join(self.presets)
            raise ValueError(f"{self.name} has no preset '{name}'; it has: {known}")
        by_dataset = self.presets[name]
        for key in (dataset, STANDS_FOR.get(dataset, "cub"), "cub"):
            if key in by_dataset:
                return by_dataset[key]
        raise ValueError(f"preset '{name}' of {self.name} has no values for '{dataset}' or 'cub'")

    def known_params(self, dataset: str, num_classes: int) -> set[str]:
        """Every parameter that somebody searched or published a value for."""
        published = (preset.params for by in self.presets.values() for preset in by.values())
        return {*self.space(dataset, num_classes), *OPTIMIZER_PARAMS}.union(*published)


def builder_params(params: Params) -> dict[str, Any]:
    """The parameters that builders receive: all but those of the optimizer."""
    return {name: value for name, value in params.items() if name not in OPTIMIZER_PARAMS}
