"""EvaluationProtocol: the settings that two results must share to be compared."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta
from optuna.distributions import BaseDistribution, FloatDistribution

from protocols.splits import FOLD_SCHEMES

# Not part of what a result measures: more trials or reproductions can always be added.
OUTSIDE_IDENTITY = ("summary", "trials", "reproductions", "datasets")

# Fields that came after results had been published. They enter the identity only with a value
# other than their default, which is what was done before, so that those results keep theirs.
ADDED_LATER = ("base_steps", "frozen", "prune", "search_head_lr", "trunk_lr", "warmup_steps")

# Types of fields, with what a run can use.
Count = Annotated[int, Meta(ge=1)]
Number = Annotated[float, Meta(ge=0, le=1e9)]  # infinity is no setting
Positive = Annotated[float, Meta(gt=0, le=1e9)]
Share = Annotated[float, Meta(ge=0, lt=1)]
Range = tuple[Positive, Positive]
Pooling = Annotated[str, Meta(pattern=r"^(avg|max|avg\+max|[1-9][0-9]*-max)$")]
POOLINGS = ("avg", "max", "avg+max", "K-max (as 8-max)")
Norm = Literal["none", "layer"]
Optimizer = Literal["rmsprop", "adam", "adamw", "sgd"]

WORDS = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "text"}

# Fields that do nothing where the trunk is frozen, by the value that says so.
OF_THE_TRUNK = {"trunk_lr": None, "warmup_steps": 0}

# A name that lists its changes separates them with this, as in `mlrc+batch_size=64`.
SEPARATOR = "+"


@dataclass(frozen=True)
class EvaluationProtocol:
    """Settings of training, selection and evaluation; a changed one changes the name.

    Attributes:
        folds: scheme of protocols.splits.
        frozen: the trunk's pooled features are computed once, without augmentation; only head and
            loss train.
        pooling: avg, max, avg+max, or K-max: the mean of the K largest values of each channel.
        norm: "layer" for a LayerNorm without affine before the head, else "none".
        freeze_batchnorm: running statistics of the trunk frozen; scale and shift still train.
        resize, crop: short side of the decoded image, side of the square that is used.
        crop_scale, crop_ratio: of the random resized crop; no scale means a plain random crop.
        samples_per_class: overrides what the method asks for.
        lr: of trunk, head and, where the method does not search it, of the loss.
        search_head_lr: range in which that of the head is searched; its first trial is `lr`.
        trunk_lr: of the trunk, where it differs.
        warmup_steps: first steps, in which the trunk stays as it is.
        base_steps: first steps, in which a method that starts from embeddings, as CCP does, trains
            its base loss alone; for networks from scratch, which have none yet.
        validate_every: steps between validations.
        patience: validations without improvement that end training.
        threads: CPU threads of one training process, so that workers never change a score.
        prune: stop a trial of the search whose first folds are hopeless.
        datasets: data set -> fields that differ there.
    """

    name: str
    summary: str = ""

    folds: str = "mlrc"
    embedding_size: Count = 128
    frozen: bool = False

    trunk: str = "bninception"
    pooling: Pooling = "avg"
    norm: Norm = "none"
    freeze_batchnorm: bool = True

    resize: Count = 256
    crop: Count = 227
    crop_scale: Range | None = (0.16, 1.0)
    crop_ratio: Range = (0.75, 1.33)
    flip: bool = True

    batch_size: Count = 32
    samples_per_class: Count | None = None
    optimizer: Optimizer = "rmsprop"
    lr: Positive = 1e-6
    search_head_lr: Range | None = None
    trunk_lr: Positive | None = None
    warmup_steps: Annotated[int, Meta(ge=0)] = 0
    base_steps: Annotated[int, Meta(ge=0)] = 0
    weight_decay: Number = 1e-4
    momentum: Share = 0.9
    optimizer_eps: Positive = 1e-8
    clip_norm: Positive | None = None
    clip_value: Positive | None = None

    metric: str = "map_at_r"
    validate_every: Count = 200
    patience: Count = 5
    max_steps: Count = 100_000
    threads: Count = 1
    prune: bool = False

    trials: Count = 50
    reproductions: Count = 10
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


def with_change(spec: str, name: str, value: Any) -> str:
    """The name of a protocol with one more change, which overrides those before it."""
    return f"{spec}{SEPARATOR}{name}={_format(value)}"


def parse_changes(text: str) -> dict[str, Any]:
    """Field values from the part of a protocol's name behind the first separator."""
    changes: dict[str, Any] = {}
    # Only before a field: a value may hold the separator, as in pooling=avg+max.
    for item in re.split(r"\+(?=\w+=)", text):
        name, equals, value = item.partition("=")
        if not equals:
            raise ValueError(f"'{item}' does not read as field=value")
        changes[name] = parse_field(name, value)
    return changes


def parse_field(name: str, text: str) -> Any:
    """The value of a protocol field, read from text by the field's type."""
    known = {f.name for f in fields(EvaluationProtocol)} - {"name", *OUTSIDE_IDENTITY}
    if name not in known:
        raise ValueError("protocol field", name, known)
    kind, may_be_none = _kind_of(name)
    if text == "none" and may_be_none:
        return None
    return _of_its_type(name, text.split(",") if get_origin(kind) is tuple else text)


def check(protocol: EvaluationProtocol) -> None:
    """Raise ValueError for a value that no run could use."""
    for one in fields(protocol):
        if one.name != "datasets":
            _of_its_type(one.name, getattr(protocol, one.name))
    if protocol.folds not in FOLD_SCHEMES:
        raise ValueError("folds", protocol.folds, FOLD_SCHEMES)
    for name in ("crop_scale", "crop_ratio", "search_head_lr"):
        ends = getattr(protocol, name)
        if ends is not None and ends[0] > ends[1]:
            raise ValueError(f"{name} must be ascending, got {_format(ends)}")
    if protocol.crop_scale is not None and protocol.crop_scale[1] > 1:
        scale = _format(protocol.crop_scale)
        raise ValueError(f"crop_scale must be at most 1.0, all of the image, got {scale}")
    rates = protocol.search_head_lr
    if rates is not None and not rates[0] <= protocol.lr <= rates[1]:
        raise ValueError(f"search_head_lr must be around lr ({protocol.lr}), got {_format(rates)}")
    for name, nothing in OF_THE_TRUNK.items():
        value = getattr(protocol, name)
        if protocol.frozen and value != nothing:
            raise ValueError(
                f"{name} must be {_format(nothing)} where the trunk is frozen, got {value}"
            )
    if protocol.crop > protocol.resize:
        raise ValueError(
            f"crop ({protocol.crop}) must not exceed resize ({protocol.resize}), "
            "the short side of the image it is cut from"
        )


def _kind_of(name: str) -> tuple[Any, bool]:
    """The type of a field, and whether it may also be None."""
    kind = get_type_hints(EvaluationProtocol, include_extras=True)[name]
    options = get_args(kind)
    return (options[0], True) if type(None) in options else (kind, False)


def _of_its_type(name: str, value: Any) -> Any:
    """A value, or the text of one, as the field has it."""
    kind, may_be_none = _kind_of(name)
    if value is None and may_be_none:
        return None
    choices = get_args(kind) if get_origin(kind) is Literal else ()
    try:
        return msgspec.convert(value, kind, strict=not isinstance(value, str | list))
    except msgspec.ValidationError as error:
        if choices or kind is Pooling:
            raise ValueError(name, value, choices or POOLINGS) from None
        # As in "Expected `int` >= 1 - at `$[0]`".
        rule = re.sub(r"`(\w+)`", lambda kind: WORDS.get(kind[1], kind[1]), str(error))
        rule = rule.removeprefix("Expected ").partition(" - at")[0].partition(", got")[0]
        raise ValueError(f"{name} must be {rule}, got {_format(value)}") from None


def _format(value: Any) -> str:
    if isinstance(value, tuple | list):
        return ",".join(_format(part) for part in value)
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return str(value)
