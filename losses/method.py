"""What `--loss NAME` stands for: a loss and everything its paper adds around it."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol, get_args, get_origin

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from harness.errors import unknown

if TYPE_CHECKING:
    from torch import Tensor, nn

Space = Mapping[str, BaseDistribution]
Params = Mapping[str, Any]
ParamTypes = Mapping[str, type]

# Settings of the optimizer that a method's parameters may contain. The trainer reads them;
# they never reach a builder. warmup_steps replaces the protocol's warm-up: a paper may warm up
# some of the losses that it compares.
OPTIMIZER_PARAMS: ParamTypes = {
    **{"loss_lr": float, "head_lr": float, "trunk_lr": float},
    **{"warmup_steps": int},
}

# Stands for the parameters that a builder's signature names.
AS_DECLARED: ParamTypes = {}

# The range in which the reality check searched the learning rate of a loss's own parameters.
LOSS_LR = FloatDistribution(1e-6, 1.0, log=True)

# Where a paper gives no value for a data set, the value of the one most like it is used.
STANDS_FOR = {
    "glyphs": "cub",
    "folder": "cub",
    "inshop": "sop",
    "inaturalist": "sop",
    "imagenet": "sop",
    "imagenet_closed": "sop",
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

    def stages_ended(self) -> int:
        """How many problems training has left behind, where a method poses one after the other."""
        return 0

    def facts(self) -> dict[str, Any]:
        """What the record of a finished run should say of it, ready for JSON.

        Under "events": what a picture of the training marks, name -> the steps at which it
        happened, or {"every": so many steps}.
        """
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        del state


def _renamed(old: str, new: str) -> Callable[[Any], Any]:
    """Let files of users still write and read a field of a dataclass by its old name."""

    def decorate(cls: Any) -> Any:
        init = cls.__init__

        @wraps(init)
        def __init__(self: Any, *args: Any, **values: Any) -> None:
            if old in values:
                values[new] = values.pop(old)
            init(self, *args, **values)

        cls.__init__ = __init__
        setattr(cls, old, property(attrgetter(new)))
        return cls

    return decorate


@_renamed("under", "belongs_to")
@dataclass(frozen=True)
class Preset:
    """Parameters that somebody published, and the protocol fields that go with them.

    Attributes:
        params: parameter -> value.
        protocol: protocol field -> value, applied under all other protocols.
        belongs_to: names of the protocols that have these fields already, the usual one first.
            Formerly `under`.
        space: parameter -> range to search, if the value is outside of the method's range.
        tuned_by_us: not published, but found on our validation folds; never in `mlrc`.
    """

    params: Params
    protocol: Mapping[str, Any] = field(default_factory=dict)
    belongs_to: tuple[str, ...] = ()
    space: Space = field(default_factory=dict)
    tuned_by_us: bool = False


@_renamed("corner", "almost_base_at")
@dataclass(frozen=True)
class Base:
    """The method that a method adds something to, and must be able to fall back to.

    Every parameter that the base searches is searched over the same range, and batches and
    normaliser are the same.

    Attributes:
        name: of the base's method.
        renamed: parameter of the base -> what the method calls it, where that differs.
        almost_base_at: values of the method's additional parameters at which a training step is
            almost that of the base. Formerly `corner`.
        replaces_head: the base is no point of the method's space, since its head is another.
    """

    name: str
    renamed: Mapping[str, str] = field(default_factory=dict)
    almost_base_at: Params = field(default_factory=dict)
    replaces_head: bool = False


@dataclass(frozen=True)
class NamedSpace:
    """A search space other than the usual one, and presets that name each of its parameters."""

    space: Callable[[str, int], Space]
    presets: Mapping[str, Mapping[str, Preset]]


@dataclass(frozen=True)
class Method:
    """One name of `--loss`.

    A builder takes its parameters by name, each annotated as int, float, str, bool, list[int] or
    list[float] (or one of these or None), and gets those that it names and no others.

    Attributes:
        build_loss: called as `build_loss(num_classes, embedding_size, **params)`; the loss
            receives the head's raw output and normalises it itself. One that names `hierarchy`
            is handed the superclass of each class, None where the data set has none. A loss
            whose builder changes a parameter says so, with `note_adjusted`.
        space: the search space for (data set, number of training classes).
        presets: name of a preset -> data set -> values. `mlrc` must be there and must name
            every parameter of the space: it is the first trial of a search.
        samples_per_class: images of a class in a batch; 1 for losses with class weights or
            proxies.
        normalizer: what is applied to embeddings at evaluation: "l2", or CCP's "ball".
        build_head: `build_head(in_features, embedding_size, **params)`, where the method
            replaces the linear head. The trainer calls `loss.attach(head)` if both exist.
        build_hook: `build_hook(**params)`, where the method acts during training.
        loss_params: what `build_loss` takes and of which type, where its signature does not
            say; likewise head_params and hook_params.
        loss_weight_decay: for the loss's own parameters; None takes the protocol's.
        sampler: how the space is searched unless the user says otherwise.
        base: what the method wraps, if it does.
        compared_with: other methods that it claims to beat: those that its paper compares it with,
            and controls. With the base they are the planned comparisons of a table.
        spaces: other spaces by name; `paper` is what its paper searched, where that is another.
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
    loss_params: ParamTypes = field(default_factory=lambda: AS_DECLARED)
    head_params: ParamTypes = field(default_factory=lambda: AS_DECLARED)
    hook_params: ParamTypes = field(default_factory=lambda: AS_DECLARED)
    loss_weight_decay: float | None = None
    sampler: str = "gp"
    aliases: tuple[str, ...] = ()
    base: Base | None = None
    compared_with: tuple[str, ...] = ()
    spaces: Mapping[str, NamedSpace] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for part in ("loss", "head", "hook"):
            builder = getattr(self, f"build_{part}")
            if builder is not None and getattr(self, f"{part}_params") is AS_DECLARED:
                object.__setattr__(self, f"{part}_params", declared_params(builder))

    def preset(self, name: str, dataset: str) -> Preset:
        """The preset for a data set, or for the one that stands for it."""
        if name not in self.presets:
            raise unknown(f"preset of {self.name}", name, self.presets)
        by_dataset = self.presets[name]
        for key in (dataset, STANDS_FOR.get(dataset, "cub"), "cub"):
            if key in by_dataset:
                return by_dataset[key]
        raise ValueError(f"preset '{name}' of {self.name} has no values for '{dataset}' or 'cub'")

    def with_space(self, name: str) -> Method:
        """The method with another of its spaces, which its name then tells."""
        if name not in self.spaces:
            raise unknown(f"other space of {self.name}", name, self.spaces)
        other = self.spaces[name]
        return replace(
            self,
            name=f"{self.name}+space={name}",
            space=other.space,
            presets=other.presets,
            aliases=(),
            base=None,  # what that searches is not all searched here
            compared_with=(),
            spaces={},
        )

    def known_params(self, dataset: str, num_classes: int) -> set[str]:
        """Every parameter that a value may be given for."""
        return {*self._types(), *self.space(dataset, num_classes)}

    def _types(self) -> ParamTypes:
        return {**OPTIMIZER_PARAMS, **self.loss_params, **self.head_params, **self.hook_params}

    def cast(self, params: Params, dataset: str, num_classes: int) -> dict[str, Any]:
        """Parameters with the types that the space and the builders give them.

        The result, and therefore every hash of it, does not depend on how a value was written.
        Raises UnknownName for a parameter that the method does not have.
        """
        types: dict[str, type | BaseDistribution] = dict(self._types())
        types |= self.space(dataset, num_classes)
        for name in params:
            if name not in types:
                raise unknown(f"parameter of {self.name}", name, types)
        return {name: cast_to(types[name], name, value) for name, value in params.items()}

    def make_loss(
        self,
        num_classes: int,
        embedding_size: int,
        params: Params,
        hierarchy: Sequence[int] | None = None,
    ) -> nn.Module:
        """The loss, from those of the parameters that are its.

        Args:
            hierarchy: the superclass of each class, where the data set has them.
        """
        own = _those_of(self.loss_params, params)
        if HIERARCHY in inspect.signature(self.build_loss).parameters:
            own[HIERARCHY] = hierarchy
        return self.build_loss(num_classes, embedding_size, **own)

    def make_head(self, in_features: int, embedding_size: int, params: Params) -> nn.Module | None:
        """The head, from those of the parameters that are its; None where it is the usual one."""
        if self.build_head is None:
            return None
        return self.build_head(in_features, embedding_size, **_those_of(self.head_params, params))

    def make_hook(self, params: Params, base_steps: int = 0) -> Hook:
        """The hook, from those of the parameters that are its.

        Args:
            base_steps: of the base loss alone, before a method begins that starts from
                embeddings: its parameter `start`, where no other value is given.
        """
        if self.build_hook is None:
            return Hook()
        own = _those_of(self.hook_params, params)
        if "start" in self.hook_params:
            own.setdefault("start", base_steps)
        return self.build_hook(**own)


def note_adjusted(loss: nn.Module, name: str, given: Any, used: Any, reason: str) -> None:
    """Have a loss say that it uses another value than it was given, if it does."""
    if used != given:
        note = {"given": given, "used": used, "reason": reason}
        loss.adjusted = {**adjusted_by(loss), name: note}  # type: ignore[assignment]


def adjusted_by(loss: nn.Module) -> dict[str, Any]:
    """Parameter -> given and used value, and why they differ."""
    return dict(getattr(loss, "adjusted", {}))


def _those_of(declared: ParamTypes, params: Params) -> dict[str, Any]:
    return {name: value for name, value in params.items() if name in declared}


# What builders are handed besides their parameters.
HIERARCHY = "hierarchy"
_HANDED = ("num_classes", "embedding_size", "in_features", HIERARCHY)
_PLAIN_TYPES: dict[str, type] = {
    **{type_.__name__: type_ for type_ in (int, float, str, bool)},
    **{"list[int]": list[int], "list[float]": list[float]},
}


def declared_params(builder: Callable[..., Any], further: ParamTypes | None = None) -> ParamTypes:
    """The parameters that a builder names, with their types.

    What `functools.partial` has fixed is none of them.

    Args:
        further: what it takes as `**params` besides, which its signature cannot say.
    """
    found = dict(further or {})
    fixed = builder.keywords if isinstance(builder, partial) else {}
    for name, parameter in inspect.signature(builder).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            if further is None:
                raise ValueError(
                    f"a builder takes **{name}: name its parameters instead, each with its "
                    "type, so that a mistyped one is refused"
                )
        elif name not in _HANDED and name not in fixed:
            found[name] = _annotated_type(parameter)
    return found


def _annotated_type(parameter: inspect.Parameter) -> type:
    written = parameter.annotation
    if not isinstance(written, str):  # of a module without `from __future__ import annotations`
        written = inspect.formatannotation(written)
    type_ = _PLAIN_TYPES.get(written.removesuffix(" | None"))
    if type_ is None:
        raise ValueError(
            f"parameter '{parameter.name}' of a builder must be annotated as one of "
            f"{', '.join(_PLAIN_TYPES)}, perhaps or None, got {written!r}"
        )
    return type_


def type_of(distribution: BaseDistribution) -> type:
    """The type of the values that a distribution proposes."""
    if isinstance(distribution, CategoricalDistribution):
        return type(distribution.choices[0])
    return int if isinstance(distribution, IntDistribution) else float


def check_space(space: Any) -> Space:
    """The space, if it is one: a mapping of names to Optuna's distributions; else ValueError."""
    if not isinstance(space, Mapping):
        raise ValueError(f"a space maps parameters to Optuna's distributions, got {space!r}")
    for name, distribution in space.items():
        if not isinstance(
            distribution, FloatDistribution | IntDistribution | CategoricalDistribution
        ):
            raise ValueError(
                f"{name} is searched in one of Optuna's distributions, as FloatDistribution(0, 1), "
                f"got {distribution!r}"
            )
        if isinstance(distribution, CategoricalDistribution):
            values = [one for one in distribution.choices if isinstance(one, float)]
        else:
            values = [distribution.low, distribution.high]
        if not all(map(math.isfinite, values)):
            raise ValueError(f"{name} is searched among finite numbers, got {distribution!r}")
    return space


def on_step(distribution: FloatDistribution | IntDistribution, value: float) -> float:
    """The nearest value that a distribution with a step proposes; without one, the value."""
    step, low, high = distribution.step, distribution.low, distribution.high
    if step is None:
        return value
    return min(high, max(low, low + round((value - low) / step) * step))


def cast_to(type_: BaseDistribution | type, name: str, value: Any) -> Any:
    """A value as Optuna would propose it or a builder expects it: 1 becomes 1.0 for a float."""
    if isinstance(type_, CategoricalDistribution):
        for choice in type_.choices:
            if choice == value and isinstance(choice, bool) == isinstance(value, bool):
                return choice
        known = ", ".join(map(str, type_.choices))
        raise ValueError(f"{name} must be one of {known}, got {value!r}")
    # What is searched on a log scale is a rate, a scale or a weight: less than none of it trains
    # something else. Rates are so wherever they come from.
    positive = getattr(type_, "log", False) or name in OPTIMIZER_PARAMS
    if isinstance(type_, BaseDistribution):
        type_ = type_of(type_)
    if get_origin(type_) is list:
        if not isinstance(value, list | tuple):
            raise ValueError(f"{name} must be a list, as [1, 2], got {value!r}")
        return [cast_to(get_args(type_)[0], f"each of {name}", one) for one in value]
    if type_ in (str, bool):
        if not isinstance(value, type_):
            expected = "a text" if type_ is str else "true or false"
            raise ValueError(f"{name} must be {expected}, got {value!r}")
        return value
    whole = type_ is int
    try:
        number = float(value)
        if isinstance(value, bool) or not math.isfinite(number) or (whole and number % 1):
            raise ValueError(value)
    except (TypeError, ValueError, OverflowError):
        expected = "a whole number" if whole else "a number"
        raise ValueError(f"{name} must be {expected}, got {value!r}") from None
    if positive and number < 0:
        raise ValueError(f"{name} must not be negative, got {value!r}")
    return int(number) if whole else number
