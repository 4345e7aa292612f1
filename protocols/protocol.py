"""EvaluationProtocol: the settings that two results must share to be compared."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Literal

from msgspec import Meta
from optuna.distributions import BaseDistribution, FloatDistribution

from harness.protocols.fields import (
    Cached,
    cache_key_of,
    check_field,
    format_value,
    identity_of,
    one_of,
    parse_field,
    protocol_field,
    trunk_defaults,
)
from harness.protocols.selection import SCHEMES
from harness.protocols.splits import FOLD_SCHEMES, FOUR_FOLDS, GIVEN

# Types of fields, with the range or the choices that a run can use.
Count = Annotated[int, Meta(ge=1)]
Threads = Annotated[int, Meta(ge=1, le=256)]
Whole = Annotated[int, Meta(ge=0)]
Number = Annotated[float, Meta(ge=0, le=1e9)]  # infinity is not a setting
Positive = Annotated[float, Meta(gt=0, le=1e9)]
Share = Annotated[float, Meta(ge=0, lt=1)]
Factor = Annotated[float, Meta(gt=0, lt=1)]
Range = tuple[Positive, Positive]
POOLINGS = ("avg", "max", "avg+max", "K-max (as 8-max)")
Pooling = Annotated[str, one_of(*POOLINGS, pattern=r"avg|max|avg\+max|[1-9][0-9]*-max")]
Norm = Literal["none", "layer"]
Optimizer = Literal["rmsprop", "adam", "adamw", "sgd"]
Group = Literal["trunk", "head", "loss"]
SPLITS = ("half", "official", "those of --split FILE")
Split = Annotated[str, one_of(*SPLITS, pattern=r"half|official|[\w.-]+@[0-9a-f]{8}")]
Folds = Annotated[str, one_of(*FOLD_SCHEMES, pattern="|".join([*FOLD_SCHEMES, GIVEN]))]
Selection = Literal["best", "last", "test", "replay"]
Scheme = Annotated[str, one_of(*SCHEMES)]
Batches = Literal["drawn", "shuffled", "dealt"]
Precision = Literal["fp32", "tf32", "bf16"]
Schedule = Literal["constant", "step", "multistep", "plateau"]

# The length of training in steps, which `epochs` replaces.
IN_STEPS = ("validate_every", "max_steps")

# Separates the changes in the name of a protocol, such as `mlrc+batch_size=64`.
SEPARATOR = "+"


def _ascending(range_: Range) -> str:
    return "" if range_[0] <= range_[1] else "ascending"


def _share_of_image(range_: Range) -> str:
    return _ascending(range_) or ("" if range_[1] <= 1 else "at most 1.0, all of the image")


def _each_later(epochs: Sequence[int]) -> str:
    return "" if list(epochs) == sorted(set(epochs)) else "ascending"


@dataclass(frozen=True)
class EvaluationProtocol:
    """Settings of training, selection and evaluation. Changing one changes the protocol's name.

    `protocol_field` (harness.protocols.fields) explains what the declaration of a field says.
    """

    name: str
    summary: str = protocol_field("", in_identity=False)

    split: Split = protocol_field("half", added_in="0.2")
    """Which classes are tested: the second "half" of a data set that does not come split, as in
    the reality check; the "official" test classes, as published with the data set; or the classes
    of a file, given as its name and a hash of its content."""

    folds: Folds = "mlrc"
    """Which classes train and validate each model: a scheme of harness.protocols.splits."""

    select: Selection = protocol_field("best", added_in="0.2")
    """Which weights of a model count: the "best" in validation; the "last"; the best on the "test"
    classes, as many papers report (such rows are never ranked); or "replay": a second model trains
    on all trainval classes, for as many epochs and with the same drops of the learning rates as
    the best weights in validation had."""

    selection: Scheme = protocol_field("folds", added_in="0.2")
    """How a search scores its trials: a scheme of harness.protocols.selection."""

    finalists: Whole = protocol_field(0, added_in="0.2")
    """Number of the best trials of a search that are scored again on other partitions of the
    classes, with other seeds. The best mean over all partitions wins."""

    rotations: Count = protocol_field(2, added_in="0.2")
    """Number of these other partitions."""

    replay_lag: Whole = protocol_field(0, added_in="0.2")
    """Number of epochs by which the drops of select=replay come later in the second model."""

    embedding_size: Count = 128

    frozen: bool = protocol_field(False, added_in="0.1")
    """Compute the pooled features of the trunk once, without augmentation, and train only head and
    loss."""

    trunk: str = protocol_field("bninception", affects="features")

    pooling: Pooling = protocol_field("avg", affects="features")
    """avg, max, avg+max, or K-max: the mean of the K largest values of each channel."""

    norm: Norm = "none"
    """Normalisation before the head: "layer" is a LayerNorm without parameters."""

    freeze_batchnorm: bool = True
    """Freeze the running statistics of the trunk's batch norm. Its scale and shift still train."""

    freeze_affine: bool = protocol_field(False, added_in="0.2", needs_trainable_trunk=True)
    """Freeze the scale and shift of the trunk's batch norm, too."""

    head_bias: bool = protocol_field(True, added_in="0.2")
    """Whether the linear head has a bias."""

    resize: Count = protocol_field(256, affects="images")
    """Short side of the decoded image, in pixels."""

    crop: Count = protocol_field(227, affects="features")
    """Side of the square that is cut from the decoded image, in pixels."""

    crop_scale: Range | None = protocol_field((0.16, 1.0), check=_share_of_image)
    """Range of the area of a random resized crop, as a share of the image. None: random crops of
    fixed size."""

    crop_ratio: Range = protocol_field((0.75, 1.33), check=_ascending)
    """Range of the aspect ratio of a random resized crop."""

    flip: bool = True
    """Flip training images horizontally at random."""

    crop_from: Literal["resized", "original"] = protocol_field(
        "resized", added_in="0.2", needs_trainable_trunk=True
    )
    """Whether training crops are cut from the resized or from the original image."""

    crops: Literal["cpu", "gpu"] = protocol_field("cpu", added_in="0.2", needs_trainable_trunk=True)
    """Where training crops are resized. On the training device ("gpu"), a pixel may differ by 1 of
    255."""

    batches: Batches = protocol_field("drawn", added_in="0.2")
    """How batches are sampled. "drawn": each step draws distinct classes, then images of them.
    "shuffled": each epoch is a permutation of the images, for methods that need one image per
    class; other methods get "dealt" batches. "dealt": each step has distinct classes, whose images
    follow one another in a shuffled order."""

    keep_rest: bool = protocol_field(False, added_in="0.2")
    """Keep the smaller last batch of an epoch of shuffled images."""

    batch_size: Count = 32

    samples_per_class: Count | None = None
    """Images per class in a batch. Default: the number that the method asks for."""

    classes_per_batch: Count | None = protocol_field(None, added_in="0.2")
    """Largest number of classes in a batch. A batch is smaller if these have too few images."""

    optimizer: Optimizer = "rmsprop"

    lr: Positive = 1e-6
    """Learning rate of the trunk, of the head and, unless the method searches it, of the loss."""

    search_head_lr: Range | None = protocol_field(None, check=_ascending, added_in="0.1")
    """Range in which the head's learning rate is searched. The first trial uses `lr`."""

    trunk_lr: Positive | None = protocol_field(None, added_in="0.1", needs_trainable_trunk=True)
    """Learning rate of the trunk. Default: `lr`."""

    loss_lr: Positive | None = protocol_field(None, added_in="0.2")
    """Learning rate of the loss's parameters, if the method's parameters do not give one. Default:
    `lr`."""

    schedule: Schedule = protocol_field("constant", added_in="0.2")
    """When all learning rates are multiplied by lr_factor: after every lr_every epochs ("step"),
    after the epochs in lr_epochs ("multistep"), or when the score stops rising ("plateau"). These
    are torch's schedules. Without `epochs`, validations are counted instead."""

    lr_factor: Factor = protocol_field(0.1, added_in="0.2")
    lr_every: Count = protocol_field(10, added_in="0.2")
    lr_epochs: tuple[Count, ...] | None = protocol_field(None, check=_each_later, added_in="0.2")

    plateau_on: Literal["score", "harmonic"] = protocol_field("score", added_in="0.2")
    """The "score", or the "harmonic" mean of the score and 1."""

    # As in torch's ReduceLROnPlateau, which calls the floor min_lr.
    plateau_patience: Whole = protocol_field(10, added_in="0.2")
    plateau_threshold: Number = protocol_field(1e-4, added_in="0.2")
    plateau_mode: Literal["rel", "abs"] = protocol_field("rel", added_in="0.2")
    plateau_cooldown: Whole = protocol_field(0, added_in="0.2")
    plateau_floor: Number = protocol_field(0.0, added_in="0.2")

    warmup_steps: Whole = protocol_field(0, added_in="0.1", needs_trainable_trunk=True)
    """Number of first steps in which the trunk does not train."""

    warmup_epochs: Whole = protocol_field(0, added_in="0.2", needs_trainable_trunk=True)
    """The same in epochs."""

    warmup_groups: tuple[Group, ...] = protocol_field(("head", "loss"), added_in="0.2")
    """What trains during the warm-up."""

    warmup_extra: bool = protocol_field(False, added_in="0.2")
    """Train the warm-up epochs before `epochs`, without validation, and reset the optimizer after
    them."""

    warmup_statistics: bool = protocol_field(False, added_in="0.2")
    """Update the statistics of batch norm during the warm-up, unless they are frozen."""

    base_steps: Whole = protocol_field(0, added_in="0.1")
    """Number of first steps in which a method that starts from embeddings, such as CCP, trains its
    base loss alone. For networks without pretrained weights."""

    weight_decay: Number = 1e-4
    momentum: Share = 0.9
    optimizer_eps: Positive = 1e-8

    adam_beta2: Share = protocol_field(0.999, added_in="0.2")
    """Decay of the squared gradients' mean in Adam and AdamW. Other optimizers do not use it."""

    clip_norm: Positive | None = None
    clip_value: Positive | None = None

    clip_each: bool = protocol_field(False, added_in="0.2")
    """Clip the gradient norms of trunk, head and loss separately."""

    clip_loss: bool = protocol_field(True, added_in="0.2")
    """Clip the gradients of the loss's parameters, too."""

    metric: str = "map_at_r"
    """Validation metric that selects weights and trials."""

    validate_every: Count = 200
    """Number of steps between validations."""

    max_steps: Count = 100_000
    """Last step of training."""

    epochs: Count | None = protocol_field(None, added_in="0.2")
    """Number of passes over the training images, instead of steps. Each ends with a validation."""

    validate_epochs: tuple[Count, ...] | None = protocol_field(
        None, check=_each_later, added_in="0.2"
    )
    """Validate only after these epochs, counted from 1, and after the last."""

    patience: Count | None = 5
    """Stop training after so many validations without improvement."""

    min_gain: Number = protocol_field(0.0, added_in="0.2")
    """Smallest gain that counts as an improvement."""

    stop_below: Share | None = protocol_field(None, added_in="0.2")
    """Stop training when the score falls to this share of the best."""

    test_metrics: tuple[str, ...] | None = protocol_field(None, added_in="0.2")
    """Further metrics of a test, such as "recall_at_2" and "nmi"."""

    precision: Precision = protocol_field("fp32", added_in="0.2", needs_trainable_trunk=True)
    """Precision of the trunk. "fp32" is torch's default, which uses TF32 in convolutions on GPUs
    that have it. "tf32" also uses it in matrix products. "bf16" computes trunk and head in
    bfloat16. Loss and distances are always computed in float32."""

    threads: Threads = 1
    """CPU threads of one training process. Fixed, so that scores do not depend on the workers."""

    prune: bool = protocol_field(False, added_in="0.1")
    """Stop a trial of a search early if its first folds are hopeless."""

    # More trials and reproductions can always be added, so that no result depends on them.
    trials: Count = protocol_field(50, in_identity=False)
    reproductions: Count = protocol_field(10, in_identity=False)

    datasets: Mapping[str, Mapping[str, Any]] = protocol_field(
        default_factory=dict, in_identity=False
    )
    """Data set -> fields that differ there."""

    trunks: Mapping[str, Mapping[str, Mapping[str, Any]]] = protocol_field(
        default_factory=dict, in_identity=False
    )
    """Trunk -> data set -> fields that differ there. The data set "" means every data set."""

    def for_dataset(
        self, dataset: str, changes: Mapping[str, Any] | None = None, trunk: str = ""
    ) -> EvaluationProtocol:
        """Return the protocol for one data set, with changes that are added to its name.

        Args:
            dataset: name of the data set, whose settings apply first.
            changes: field -> value. Values that the protocol has anyway are not added to the name.
            trunk: used instead of the protocol's; there may be settings for it, too.
        """
        changes = changes or {}
        settled = replace(self, **self.datasets.get(dataset, {}), datasets={}, trunks={})
        for_trunk = self.trunks.get(trunk or changes.get("trunk", settled.trunk), {})
        settled = replace(settled, **{**for_trunk.get("", {}), **for_trunk.get(dataset, {})})
        settled = replace(settled, **self._replaced_by(changes))
        real = {k: v for k, v in sorted(changes.items()) if getattr(settled, k) != v}
        name = SEPARATOR.join([settled.name, *(f"{k}={format_value(v)}" for k, v in real.items())])
        return replace(settled, **real, name=name)

    def _replaced_by(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Fields that some changes leave without effect, at their defaults."""
        reset: dict[str, Any] = {}
        if changes.get("epochs") is not None:
            reset |= {one.name: one.default for one in fields(self) if one.name in IN_STEPS}
        if changes.get("frozen"):
            reset |= trunk_defaults(type(self))
        if changes.get("selection") in SCHEMES:
            reset["finalists"] = SCHEMES[changes["selection"]].finalists
        return reset

    def identity(self) -> dict[str, Any]:
        """Return every field that a result depends on, ready for JSON."""
        return identity_of(self)

    def cache_key(self, cached: Cached) -> dict[str, Any]:
        """Return every field that cached images or features depend on, ready for JSON.

        Features depend on the fields of the images, too, which are not repeated.
        """
        return cache_key_of(self, cached)

    def space(self) -> dict[str, BaseDistribution]:
        """Return what is searched for every method."""
        if self.search_head_lr is None:
            return {}
        return {"head_lr": FloatDistribution(*self.search_head_lr, log=True)}


def with_change(spec: str, name: str, value: Any) -> str:
    """Return the name of a protocol with one more change, which overrides those before it."""
    return f"{spec}{SEPARATOR}{name}={format_value(value)}"


def parse_changes(text: str, protocol: type = EvaluationProtocol) -> dict[str, Any]:
    """Return the field values in the part of a protocol's name after the first separator."""
    changes: dict[str, Any] = {}
    # Split only before a field: a value may contain the separator, such as pooling=avg+max.
    for item in re.split(r"\+(?=\w+=)", text):
        name, equals, value = item.partition("=")
        if not equals:
            raise ValueError(f"'{item}' does not read as field=value")
        changes[name] = parse_field(protocol, name, value)
    return changes


def check(protocol: EvaluationProtocol) -> None:
    """Raise ValueError for a value that no run could use."""
    for one in fields(protocol):
        if one.name not in ("datasets", "trunks"):
            check_field(type(protocol), one.name, getattr(protocol, one.name))
    if protocol.crop_from == "original" and protocol.crop_scale is None:
        raise ValueError("crop_from=original needs a crop_scale, got none")
    rates = protocol.search_head_lr
    if rates is not None and not rates[0] <= protocol.lr <= rates[1]:
        around = f"around lr ({protocol.lr})"
        raise ValueError(f"search_head_lr must be {around}, got {format_value(rates)}")
    for name, default in trunk_defaults(type(protocol)).items():
        value = getattr(protocol, name)
        if protocol.frozen and value != default:
            raise ValueError(
                f"{name} must be {format_value(default)} where the trunk is frozen, got {value}"
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
            f"got epochs={format_value(protocol.epochs)} and folds={folds}"
        )


def _check_scheme(protocol: EvaluationProtocol) -> None:
    """Whether the selection scheme can score a trial under the other settings."""
    name = protocol.selection
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
