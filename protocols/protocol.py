"""EvaluationProtocol: the settings that two results must share to be compared."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta
from optuna.distributions import BaseDistribution, FloatDistribution

from harness.protocols.selection import SCHEMES
from harness.protocols.splits import FOLD_SCHEMES, FOUR_FOLDS, GIVEN

# Not part of what a result measures: more trials or reproductions can always be added.
OUTSIDE_IDENTITY = ("summary", "trials", "reproductions", "datasets", "trunks")

# Fields that came after results had been published. They enter the identity only with a value
# other than their default, which is what was done before, so that those results keep theirs.
ADDED_LATER = (
    *("base_steps", "frozen", "prune", "search_head_lr", "trunk_lr", "warmup_steps"),
    *("split", "select", "epochs", "validate_epochs", "min_gain", "stop_below", "replay_lag"),
    *("batches", "keep_rest", "classes_per_batch", "crop_from", "head_bias", "freeze_affine"),
    *("loss_lr", "warmup_epochs", "warmup_groups", "warmup_extra", "warmup_statistics"),
    *("schedule", "lr_factor", "lr_every", "lr_epochs", "plateau_on", "plateau_patience"),
    *("plateau_threshold", "plateau_mode", "plateau_cooldown", "plateau_floor"),
    *("clip_each", "clip_loss", "test_metrics", "precision", "crops"),
    *("selection", "finalists", "rotations"),
)

# Types of fields, with what a run can use.
Count = Annotated[int, Meta(ge=1)]
Threads = Annotated[int, Meta(ge=1, le=256)]
Number = Annotated[float, Meta(ge=0, le=1e9)]  # infinity is no setting
Positive = Annotated[float, Meta(gt=0, le=1e9)]
Share = Annotated[float, Meta(ge=0, lt=1)]
Range = tuple[Positive, Positive]
Pooling = Annotated[str, Meta(pattern=r"^(avg|max|avg\+max|[1-9][0-9]*-max)$")]
POOLINGS = ("avg", "max", "avg+max", "K-max (as 8-max)")
Norm = Literal["none", "layer"]
Optimizer = Literal["rmsprop", "adam", "adamw", "sgd"]
Whole = Annotated[int, Meta(ge=0)]
Factor = Annotated[float, Meta(gt=0, lt=1)]
Group = Literal["trunk", "head", "loss"]
Split = Annotated[str, Meta(pattern=r"^(half|official|[\w.-]+@[0-9a-f]{8})$")]
SPLITS = ("half", "official", "those of --split FILE")
Selection = Literal["best", "last", "test", "replay"]
Batches = Literal["drawn", "shuffled", "dealt"]
Precision = Literal["fp32", "tf32", "bf16"]
Schedule = Literal["constant", "step", "multistep", "plateau"]

WORDS = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "text"}

# Fields that do nothing where the trunk is frozen, by the value that says so.
OF_THE_TRUNK = {
    **{"trunk_lr": None, "warmup_steps": 0, "warmup_epochs": 0},
    **{"freeze_affine": False, "crop_from": "resized", "precision": "fp32"},
    **{"crops": "cpu"},
}

# The length of training in steps, which takes the place of epochs.
IN_STEPS = ("validate_every", "max_steps")

# A name that lists its changes separates them with this, as in `mlrc+batch_size=64`.
SEPARATOR = "+"


@dataclass(frozen=True)
class EvaluationProtocol:
    """Settings of training, selection and evaluation; a changed one changes the name.

    Attributes:
        split: which classes are tested: the second "half", as the reality check has it where a data
            set does not come split; "official", those that were published with it; or those of a
            file, by its name and content.
        folds: scheme of protocols.splits.
        select: which weights of a model count: the "best" in validation, the "last", the best on
            the "test" classes (as many papers report; such rows are never ranked), or "replay":
            those of a second model that trains on all trainval classes for as many epochs, and
            with the same drops of its rates, as the best in validation had.
        selection: how a search scores its trials: a scheme of protocols.selection.
        finalists: best trials of a search that are scored again on other partitions of the
            classes, with other seeds; the best mean over all partitions wins.
        rotations: number of these other partitions.
        replay_lag: epochs by which those drops come late in the second model.
        frozen: the trunk's pooled features are computed once, without augmentation; only head and
            loss train.
        pooling: avg, max, avg+max, or K-max: the mean of the K largest values of each channel.
        norm: "layer" for a LayerNorm without affine before the head, else "none".
        freeze_batchnorm: running statistics of the trunk frozen; scale and shift still train.
        freeze_affine: scale and shift of the trunk's batch norm do not train either.
        head_bias: whether the linear head has one.
        resize, crop: short side of the decoded image, side of the square that is used.
        crop_scale, crop_ratio: of the random resized crop; no scale means a plain random crop.
        crop_from: whether training crops are cut from the "resized" or from the "original" image.
        batches: "drawn": distinct classes, then images of them, anew for every step. "shuffled": a
            permutation of the images in every epoch, for methods that need one image of a class;
            others are dealt theirs. "dealt": distinct classes for every step, their images one
            after the other from a shuffle of each class.
        keep_rest: an epoch of shuffled images ends with a smaller batch; else that is dropped.
        samples_per_class: overrides what the method asks for.
        classes_per_batch: at most; with more images than these classes give, a batch is smaller.
        lr: of trunk, head and, where the method does not search it, of the loss.
        search_head_lr: range in which that of the head is searched; its first trial is `lr`.
        trunk_lr: of the trunk, where it differs.
        loss_lr: of the loss's own parameters, where it differs and the method's do not say it.
        schedule: of all rates, which falls by lr_factor after every lr_every epochs ("step"), after
            those in lr_epochs ("multistep"), or when the score no longer rises ("plateau"): torch's
            own. Without epochs it counts validations.
        plateau_on: the "score", or the "harmonic" mean of the score and 1.
        plateau_patience, plateau_threshold, plateau_mode, plateau_cooldown, plateau_floor: as in
            torch's ReduceLROnPlateau, which calls the last one min_lr.
        warmup_steps: first steps, in which the trunk stays as it is.
        warmup_epochs: the same in epochs.
        warmup_groups: what trains in these.
        warmup_extra: these epochs are not among `epochs`, nor validated; the optimizer begins anew
            after them.
        warmup_statistics: batch norm's statistics move in the warm-up, unless they are frozen.
        base_steps: first steps, in which a method that starts from embeddings, as CCP does, trains
            its base loss alone; for networks from scratch, which have none yet.
        clip_each: the norm of trunk, head and loss each, not of all together.
        clip_loss: whether gradients of the loss's own parameters are clipped, too.
        validate_every: steps between validations.
        max_steps: the last step.
        epochs: passes over the training images, instead of steps; each ends with a validation.
        validate_epochs: only these, from 1, and the last.
        patience: validations without improvement that end training.
        min_gain: a smaller one is no improvement.
        stop_below: training ends when the score falls to this share of the best.
        test_metrics: what a test measures besides, as "recall_at_2" and "nmi".
        crops: where the crops of training are resized; on the device of training, "gpu", a pixel
            may differ by 1 of 255.
        precision: of the trunk: "fp32" is torch's default, which lets convolutions use
            TF32 where a card has it; "tf32" lets products, too; "bf16" computes trunk and head in
            bfloat16. Loss and distances are computed in full float32.
        threads: CPU threads of one training process, so that workers never change a score.
        prune: stop a trial of the search whose first folds are hopeless.
        datasets: data set -> fields that differ there.
        trunks: trunk -> data set -> fields that differ there; "" stands for every data set.
    """

    name: str
    summary: str = ""

    split: Split = "half"
    folds: str = "mlrc"
    select: Selection = "best"
    selection: str = "folds"
    finalists: Whole = 0
    rotations: Count = 2
    replay_lag: Whole = 0
    embedding_size: Count = 128
    frozen: bool = False

    trunk: str = "bninception"
    pooling: Pooling = "avg"
    norm: Norm = "none"
    freeze_batchnorm: bool = True
    freeze_affine: bool = False
    head_bias: bool = True

    resize: Count = 256
    crop: Count = 227
    crop_scale: Range | None = (0.16, 1.0)
    crop_ratio: Range = (0.75, 1.33)
    flip: bool = True
    crop_from: Literal["resized", "original"] = "resized"
    crops: Literal["cpu", "gpu"] = "cpu"

    batches: Batches = "drawn"
    keep_rest: bool = False
    batch_size: Count = 32
    samples_per_class: Count | None = None
    classes_per_batch: Count | None = None
    optimizer: Optimizer = "rmsprop"
    lr: Positive = 1e-6
    search_head_lr: Range | None = None
    trunk_lr: Positive | None = None
    loss_lr: Positive | None = None
    schedule: Schedule = "constant"
    lr_factor: Factor = 0.1
    lr_every: Count = 10
    lr_epochs: tuple[Count, ...] | None = None
    plateau_on: Literal["score", "harmonic"] = "score"
    plateau_patience: Whole = 10
    plateau_threshold: Number = 1e-4
    plateau_mode: Literal["rel", "abs"] = "rel"
    plateau_cooldown: Whole = 0
    plateau_floor: Number = 0.0
    warmup_steps: Whole = 0
    warmup_epochs: Whole = 0
    warmup_groups: tuple[Group, ...] = ("head", "loss")
    warmup_extra: bool = False
    warmup_statistics: bool = False
    base_steps: Whole = 0
    weight_decay: Number = 1e-4
    momentum: Share = 0.9
    optimizer_eps: Positive = 1e-8
    clip_norm: Positive | None = None
    clip_value: Positive | None = None
    clip_each: bool = False
    clip_loss: bool = True

    metric: str = "map_at_r"
    validate_every: Count = 200
    max_steps: Count = 100_000
    epochs: Count | None = None
    validate_epochs: tuple[Count, ...] | None = None
    patience: Count | None = 5
    min_gain: Number = 0.0
    stop_below: Share | None = None
    test_metrics: tuple[str, ...] | None = None
    precision: Precision = "fp32"
    threads: Threads = 1
    prune: bool = False

    trials: Count = 50
    reproductions: Count = 10
    datasets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    trunks: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)

    def on(
        self, dataset: str, changes: Mapping[str, Any] | None = None, trunk: str = ""
    ) -> EvaluationProtocol:
        """This protocol with a data set's own settings, then with changes, which it is named by.

        Args:
            trunk: instead of the protocol's; it may have settings of its own, too.
        """
        changes = changes or {}
        settled = replace(self, **self.datasets.get(dataset, {}), datasets={}, trunks={})
        of_trunk = self.trunks.get(trunk or changes.get("trunk", settled.trunk), {})
        settled = replace(settled, **{**of_trunk.get("", {}), **of_trunk.get(dataset, {})})
        settled = replace(settled, **_displaced(changes))
        real = {k: v for k, v in sorted(changes.items()) if getattr(settled, k) != v}
        name = SEPARATOR.join([settled.name, *(f"{k}={_format(v)}" for k, v in real.items())])
        return replace(settled, **real, name=name)

    def identity(self) -> dict[str, Any]:
        """Every field that a result depends on, ready for JSON."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {
            name: value
            for name, value in values.items()
            if name not in OUTSIDE_IDENTITY and not (name in NEUTRAL and value == NEUTRAL[name])
        }

    def space(self) -> dict[str, BaseDistribution]:
        """What is searched for every method alike."""
        if self.search_head_lr is None:
            return {}
        return {"head_lr": FloatDistribution(*self.search_head_lr, log=True)}


# What fields are that an identity does not mention: as they were before there were any.
NEUTRAL: dict[str, Any] = {
    f.name: f.default for f in fields(EvaluationProtocol) if f.name in ADDED_LATER
}


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
    type_, may_be_none = _type_of(name)
    if text == "none" and may_be_none:
        return None
    return _of_its_type(name, text.split(",") if get_origin(type_) is tuple else text)


def _displaced(changes: Mapping[str, Any]) -> dict[str, Any]:
    """What a change takes the place of, as it is where nothing is set."""
    gone: dict[str, Any] = {}
    if changes.get("epochs") is not None:
        gone |= {f.name: f.default for f in fields(EvaluationProtocol) if f.name in IN_STEPS}
    if changes.get("frozen"):
        gone |= OF_THE_TRUNK
    if changes.get("selection") in SCHEMES:
        gone["finalists"] = SCHEMES[changes["selection"]].finalists
    return gone


def check(protocol: EvaluationProtocol) -> None:
    """Raise ValueError for a value that no run could use."""
    for one in fields(protocol):
        if one.name not in ("datasets", "trunks"):
            _of_its_type(one.name, getattr(protocol, one.name))
    if protocol.folds not in (*FOLD_SCHEMES, GIVEN):
        raise ValueError("folds", protocol.folds, FOLD_SCHEMES)
    for name in ("crop_scale", "crop_ratio", "search_head_lr"):
        ends = getattr(protocol, name)
        if ends is not None and ends[0] > ends[1]:
            raise ValueError(f"{name} must be ascending, got {_format(ends)}")
    if protocol.crop_scale is not None and protocol.crop_scale[1] > 1:
        scale = _format(protocol.crop_scale)
        raise ValueError(f"crop_scale must be at most 1.0, all of the image, got {scale}")
    if protocol.crop_from == "original" and protocol.crop_scale is None:
        raise ValueError("crop_from=original needs a crop_scale, got none")
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
    _check_length(protocol)
    _check_selection(protocol)
    _check_scheme(protocol)


def _check_length(protocol: EvaluationProtocol) -> None:
    """Whether training begins, and when it ends."""
    defaults = {f.name: f.default for f in fields(protocol)}
    in_steps = [name for name in IN_STEPS if getattr(protocol, name) != defaults[name]]
    epochs = protocol.epochs
    if epochs is not None and in_steps:
        name = in_steps[0]
        raise ValueError(
            f"give epochs or {name}, not both, got {epochs} and {getattr(protocol, name)}; "
            "to count steps: epochs=none"
        )
    if epochs is None and protocol.patience is None and "max_steps" not in in_steps:
        raise ValueError(
            "training would never end: give epochs or max_steps, or a patience, got none of them"
        )
    if epochs is None and protocol.validate_epochs is not None:
        raise ValueError("validate_epochs needs epochs, got none")
    if protocol.warmup_steps and protocol.warmup_epochs:
        raise ValueError(
            "give warmup_epochs or warmup_steps, not both, "
            f"got {protocol.warmup_epochs} and {protocol.warmup_steps}"
        )
    if protocol.warmup_extra and not protocol.warmup_epochs:
        raise ValueError("warmup_extra needs warmup_epochs, got 0")
    counted = 0 if protocol.warmup_extra else protocol.warmup_epochs
    if epochs is not None and counted >= epochs:
        raise ValueError(
            f"warmup_epochs must be fewer than epochs, got {counted} of {epochs}; "
            "to have them before all others: warmup_extra=true"
        )
    for name in ("lr_epochs", "validate_epochs"):
        listed = getattr(protocol, name)
        if listed is not None and list(listed) != sorted(set(listed)):
            raise ValueError(f"{name} must be ascending, got {_format(listed)}")
    if protocol.schedule == "multistep" and not protocol.lr_epochs:
        raise ValueError("schedule=multistep needs lr_epochs, got none")
    if protocol.schedule == "plateau" and protocol.validate_epochs is not None:
        raise ValueError("schedule=plateau needs the score of every epoch: validate_epochs=none")


def _check_selection(protocol: EvaluationProtocol) -> None:
    """Whether there is something to select by."""
    select, folds = protocol.select, protocol.folds
    blind = folds == "none" and select == "last"
    if (folds == "none") != (select == "test") and not blind:
        raise ValueError(
            f"select={select} does not go with folds={folds}: a model without validation classes "
            "(folds=none) is selected by the test (select=test) or not at all (select=last)"
        )
    if select == "last" and protocol.patience is not None:
        raise ValueError(
            f"select=last keeps the last weights, so patience must be none, got {protocol.patience}"
        )
    if blind and protocol.schedule == "plateau":
        raise ValueError("schedule=plateau needs a score, and select=last with folds=none has none")
    if select == "replay" and protocol.validate_epochs is not None:
        raise ValueError("select=replay needs the score of every epoch: validate_epochs=none")
    if select == "replay" and (folds in FOUR_FOLDS or protocol.epochs is None):
        raise ValueError(
            "select=replay needs epochs, and folds of one model (halves, thirds), "
            f"got epochs={_format(protocol.epochs)} and folds={folds}"
        )


def _check_scheme(protocol: EvaluationProtocol) -> None:
    """Whether the selection scheme can score a trial under the other settings."""
    name = protocol.selection
    if name not in SCHEMES:
        raise ValueError("selection", name, SCHEMES)
    if not SCHEMES[name].own_partition:
        if protocol.finalists:
            raise ValueError(
                f"finalists must be 0 with selection={name}, which has no other partition to "
                f"score them on, got {protocol.finalists}"
            )
        return
    if protocol.folds not in FOUR_FOLDS:
        why = (
            "a file gives the validation classes"
            if protocol.folds == GIVEN
            else "a trial has one model, and two are concatenated"
        )
        raise ValueError(
            f"selection={name} needs folds of four models ({', '.join(FOUR_FOLDS)}), got "
            f"folds={protocol.folds}: {why}"
        )
    if protocol.select != "best":
        raise ValueError(
            f"selection={name} scores the best checkpoint of each model, so select must be best, "
            f"got {protocol.select}"
        )
    if protocol.prune:
        raise ValueError(
            f"selection={name} scores a trial after all of its models, so prune must be false; "
            "leave out --prune"
        )


@cache
def _types() -> dict[str, Any]:
    """Of all fields; found once, for a protocol is checked at every step of the way."""
    return get_type_hints(EvaluationProtocol, include_extras=True)


def _type_of(name: str) -> tuple[Any, bool]:
    """The type of a field, and whether it may also be None."""
    type_ = _types()[name]
    options = get_args(type_)
    return (options[0], True) if type(None) in options else (type_, False)


def _of_its_type(name: str, value: Any) -> Any:
    """A value, or the text of one, as the field has it."""
    type_, may_be_none = _type_of(name)
    if value is None and may_be_none:
        return None
    one = get_args(type_)[0] if get_origin(type_) is tuple else type_
    choices = get_args(one) if get_origin(one) is Literal else ()
    try:
        return msgspec.convert(value, type_, strict=not isinstance(value, str | list))
    except msgspec.ValidationError as error:
        known = choices or {Pooling: POOLINGS, Split: SPLITS}.get(type_)
        if known:
            raise ValueError(name, _format(value), known) from None
        # As in "Expected `int` >= 1 - at `$[0]`".
        rule = re.sub(r"`(\w+)`", lambda word: WORDS.get(word[1], word[1]), str(error))
        rule = rule.removeprefix("Expected ").partition(" - at")[0].partition(", got")[0]
        raise ValueError(f"{name} must be {rule}, got {_format(value)}") from None


def _format(value: Any) -> str:
    if isinstance(value, tuple | list):
        return ",".join(_format(part) for part in value)
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return str(value)
