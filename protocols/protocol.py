"""EvaluationProtocol: the settings that two results must share to be compared."""

from __future__ import annotations

import math
import re
import types
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from typing import Any, Union, get_args, get_origin, get_type_hints

from optuna.distributions import BaseDistribution, FloatDistribution

from protocols.splits import FOLD_SCHEMES

# Not part of what a result measures: more trials or reproductions can always be added.
OUTSIDE_IDENTITY = ("summary", "trials", "reproductions", "datasets")

# Fields that came after results had been published. They enter the identity only with a value
# other than their default, which is what was done before, so that those results keep theirs.
ADDED_LATER = ("frozen", "prune", "search_head_lr", "trunk_lr", "warmup_steps")

# Fields with a fixed set of values, those that must be above zero, and not below.
CHOICES: dict[str, Collection[str]] = {
    "folds": FOLD_SCHEMES,
    "pooling": ("avg", "max", "avg+max"),
    "norm": ("none", "layer"),
    "optimizer": ("rmsprop", "adam", "adamw", "sgd"),
    "metric": ("map_at_r", "r_precision", "p_at_1"),
}
POSITIVE = (
    *("embedding_size", "resize", "crop", "batch_size", "samples_per_class", "lr"),
    *("trunk_lr", "validate_every", "patience", "max_steps", "threads"),
    *("clip_norm", "clip_value", "optimizer_eps"),
)
NOT_NEGATIVE = ("warmup_steps", "weight_decay")

# Ranges, by what they may not exceed: a crop is no larger than its image.
ASCENDING = {"crop_scale": 1.0, "crop_ratio": math.inf}

# Fields that do nothing where the trunk is frozen, by the value that says so.
OF_THE_TRUNK = {"trunk_lr": None, "warmup_steps": 0}

# Pooling that keeps the K largest values of a channel, as 8-max.
K_MAX = re.compile(r"([1-9][0-9]*)-max")

# A name that lists its changes separates them with this, as in `mlrc+batch_size=64`.
SEPARATOR = "+"


@dataclass(frozen=True)
class EvaluationProtocol:
    """Settings of training, selection and evaluation; a changed one changes the name.

    Attributes:
        folds: scheme of protocols.splits.
        frozen: the trunk's pooled features are computed once, without augmentation; only head and
            loss train.
        pooling: one of CHOICES, or K-max: the mean of the K largest values of each channel.
        norm: "layer" for a LayerNorm without affine before the head, else "none".
        freeze_batchnorm: running statistics of the trunk frozen; scale and shift still train.
        resize, crop: short side of the decoded image, side of the square that is used.
        crop_scale, crop_ratio: of the random resized crop; no scale means a plain random crop.
        samples_per_class: overrides what the method asks for.
        lr: of trunk, head and, where the method does not search it, of the loss.
        search_head_lr: range in which that of the head is searched; its first trial is `lr`.
        trunk_lr: of the trunk, where it differs.
        warmup_steps: first steps, in which the trunk stays as it is.
        validate_every: steps between validations.
        patience: validations without improvement that end training.
        threads: CPU threads of one training process, so that workers never change a score.
        prune: stop a trial of the search whose first folds are hopeless.
        datasets: data set -> fields that differ there.
    """

    name: str
    summary: str = ""

    folds: str = "mlrc"
    embedding_size: int = 128
    frozen: bool = False

    trunk: str = "bninception"
    pooling: str = "avg"
    norm: str = "none"
    freeze_batchnorm: bool = True

    resize: int = 256
    crop: int = 227
    crop_scale: tuple[float, float] | None = (0.16, 1.0)
    crop_ratio: tuple[float, float] = (0.75, 1.33)
    flip: bool = True

    batch_size: int = 32
    samples_per_class: int | None = None
    optimizer: str = "rmsprop"
    lr: float = 1e-6
    search_head_lr: tuple[float, float] | None = None
    trunk_lr: float | None = None
    warmup_steps: int = 0
    weight_decay: float = 1e-4
    momentum: float = 0.9
    optimizer_eps: float = 1e-8
    clip_norm: float | None = None
    clip_value: float | None = None

    metric: str = "map_at_r"
    validate_every: int = 200
    patience: int = 5
    max_steps: int = 100_000
    threads: int = 1
    prune: bool = False

    trials: int = 50
    reproductions: int = 10
    datasets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def on(self, dataset: str, changes: Mapping[str, Any] | None = None) -> EvaluationProtocol:
        """This protocol with a data set's own settings, then with changes, which it is named by."""
        settled = replace(self, **self.datasets.get(dataset, {}), datasets={})
        real = {k: v for k, v in sorted((changes or {}).items()) if getattr(settled, k) != v}
        name = SEPARATOR.join([settled.name, *(f"{k}={_format(v)}" for k, v in real.items())])
        return replace(settled, **real, name=name)

    def identity(self) -> dict[str, Any]:
        """Every field that a result depends on, ready for JSON."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        neutral = {f.name: f.default for f in fields(self) if f.name in ADDED_LATER}
        return {
            name: value
            for name, value in values.items()
            if name not in OUTSIDE_IDENTITY and not (name in neutral and value == neutral[name])
        }

    def space(self) -> dict[str, BaseDistribution]:
        """What is searched for every method alike."""
        if self.search_head_lr is None:
            return {}
        return {"head_lr": FloatDistribution(*self.search_head_lr, log=True)}


def parse_changes(text: str) -> dict[str, Any]:
    """Field values from the part of a protocol's name behind the first separator."""
    changes: dict[str, Any] = {}
    # Only before a field: a value may hold the separator, as in pooling=avg+max.
    for item in re.split(r"\+(?=\w+=)", text):
        key, equals, value = item.partition("=")
        if not equals:
            raise ValueError(f"'{item}' does not read as field=value")
        changes[key] = parse_field(key, value)
    return changes


def parse_field(key: str, text: str) -> Any:
    """The value of a protocol field, read from text by the field's type."""
    hints = get_type_hints(EvaluationProtocol)
    known = [f.name for f in fields(EvaluationProtocol) if f.name not in OUTSIDE_IDENTITY]
    known.remove("name")
    if key not in known:
        raise ValueError(f"a protocol has no field '{key}'.{_hint(key, known)}")
    try:
        return _parse(hints[key], text)
    except ValueError:
        raise ValueError(f"'{text}' is no value for protocol field '{key}'") from None


def check(protocol: EvaluationProtocol) -> None:
    """Raise ValueError for a value that no run could use."""
    for field_name, choices in CHOICES.items():
        value = getattr(protocol, field_name)
        if field_name == "pooling":
            _check_pooling(value, choices)
        elif value not in choices:
            raise ValueError(f"no {field_name} named '{value}'.{_hint(value, choices)}")
    for field_name in (f.name for f in fields(protocol)):
        value = getattr(protocol, field_name)
        numbers = value if isinstance(value, tuple) else (value,)
        if any(isinstance(number, float) and not math.isfinite(number) for number in numbers):
            raise ValueError(f"{field_name} must be finite, got {_format(value)}")
    for field_name in POSITIVE:
        value = getattr(protocol, field_name)
        if value is not None and not value > 0:
            raise ValueError(f"{field_name} must be positive, got {value}")
    rates = protocol.search_head_lr
    if rates is not None and not 0 < rates[0] <= protocol.lr <= rates[1]:
        raise ValueError(
            f"search_head_lr must be positive, ascending and around lr ({protocol.lr}), got {rates}"
        )
    for field_name in NOT_NEGATIVE:
        value = getattr(protocol, field_name)
        if value < 0:
            raise ValueError(f"{field_name} must not be negative, got {value}")
    if not 0 <= protocol.momentum < 1:
        raise ValueError(f"momentum must be 0 or more and below 1, got {protocol.momentum}")
    for field_name, most in ASCENDING.items():
        value = getattr(protocol, field_name)
        if value is not None and not 0 < value[0] <= value[1] <= most:
            limit = f", ascending and at most {most}" if math.isfinite(most) else " and ascending"
            raise ValueError(f"{field_name} must be positive{limit}, got {_format(value)}")
    for field_name, nothing in OF_THE_TRUNK.items():
        value = getattr(protocol, field_name)
        if protocol.frozen and value != nothing:
            raise ValueError(
                f"{field_name} must be {_format(nothing)} where the trunk is frozen, got {value}"
            )
    if protocol.crop > protocol.resize:
        raise ValueError(
            f"crop ({protocol.crop}) must not exceed resize ({protocol.resize}), "
            "the short side of the image it is cut from"
        )


def _check_pooling(value: str, choices: Collection[str]) -> None:
    if value in choices or K_MAX.fullmatch(value):
        return
    if value.endswith("-max"):
        raise ValueError(f"pooling K-max takes a K of 1 or more, as 8-max; got '{value}'")
    raise ValueError(f"no pooling named '{value}'.{_hint(value, [*choices, 'K-max'])}")


def _hint(wrong: str, known: Iterable[str]) -> str:
    near = get_close_matches(wrong, list(known), n=1)
    suggestion = f" Did you mean '{near[0]}'?" if near else ""
    return f"{suggestion}\n  known: {', '.join(known)}"


def _parse(kind: Any, text: str) -> Any:
    if get_origin(kind) in (Union, types.UnionType):
        if text == "none":
            return None
        return _parse(next(arg for arg in get_args(kind) if arg is not type(None)), text)
    if get_origin(kind) is tuple:
        parts = text.split(",")
        if len(parts) != len(get_args(kind)):
            raise ValueError(text)
        return tuple(_parse(arg, part) for arg, part in zip(get_args(kind), parts, strict=True))
    if kind is bool:
        return {"true": True, "false": False}[text] if text in ("true", "false") else _refuse(text)
    return kind(text)


def _refuse(text: str) -> Any:
    raise ValueError(text)


def _format(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(_format(part) for part in value)
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return str(value)
