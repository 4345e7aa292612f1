"""What an experiment would really train with, as plain values that a paper's can be held against.

A fact is a field of the protocol, `params.NAME`, or one of those that `facts_of` adds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from types import SimpleNamespace
from typing import Any, cast

from torch import nn

from harness.config import RunConfig
from harness.experiment import Experiment, build_experiment
from harness.losses.method import OPTIMIZER_PARAMS
from harness.model.network import Model
from harness.protocols.protocol import EvaluationProtocol
from harness.protocols.splits import applicable_folds, cut
from harness.sweeping.axes import config_at
from harness.sweeping.figure_sweep import build_sweep
from harness.sweeping.paper_figures import PaperFigure
from harness.sweeping.paper_settings import Runs, Setting
from harness.training.optimizer import build_optimizer
from harness.training.plan import plan_of

Facts = Mapping[str, Any]

# Classes that the published splits train on; of "half", the first half of all classes.
TRAINVAL = {"cub": 100, "cars": 98, "sop": 11_318, "inshop": 3_997, "inaturalist": 5_690}
HALF_OF_SOP = 11_317

CLASSES, DIM = 40, 16  # of the losses built here

# What others replace: rates and the batch are those that the trainer makes of them.
RAW = (
    *("name", "summary", "datasets", "trunks", "lr", "trunk_lr", "loss_lr", "samples_per_class"),
    *("split", "weight_decay", "optimizer_eps", "adam_beta2", "momentum"),
    *("warmup_steps", "warmup_epochs", "freeze_batchnorm", "freeze_affine"),
)

# What follows from other facts, or is of a search, which a figure has none of.
DERIVED = ("searched.", "rate.loss over trunk", "patience_steps")


def facts_of(made: Experiment) -> Facts:
    """All facts of an experiment."""
    protocol, params, method = made.protocol, made.published_params, made.method
    found = {one.name: getattr(protocol, one.name) for one in fields(protocol)}
    found = {name: value for name, value in found.items() if name not in RAW}
    renamed = {new: old for old, new in (method.base.renamed if method.base else {}).items()}
    found |= {
        f"params.{renamed.get(name, name)}": value
        for name, value in params.items()
        if name not in OPTIMIZER_PARAMS
    }
    per_class = protocol.samples_per_class or method.samples_per_class
    plan = plan_of(protocol, 1, params.get("warmup_steps"))
    return {
        **found,
        **_optimizer_facts(made),
        **_class_facts(protocol, made.dataset),
        **{f"searched.{name}": _range(space) for name, space in made.space.items()},
        "loss": method.name,
        "sampler": method.sampler,
        "trunk": made.trunk.name,
        "samples_per_class": per_class,
        "normalizer": method.normalizer,
        "trials": made.trials,
        "reproductions": made.reproductions,
        "patience_steps": protocol.patience and protocol.patience * protocol.validate_every,
        # Steps, or epochs where the protocol counts those.
        "warmup": plan.warmup,
        "batchnorm": (
            "trained"
            if not protocol.freeze_batchnorm
            else ("all frozen" if protocol.freeze_affine else "statistics frozen")
        ),
    }


def _optimizer_facts(made: Experiment) -> Facts:
    """Of each group of the optimizer that a run would have."""
    hierarchy = made.hierarchy_of(range(CLASSES))
    loss = made.method.make_loss(CLASSES, DIM, made.published_params, hierarchy)
    model = SimpleNamespace(trunk=nn.Linear(1, 1), head=nn.Linear(1, 1))
    optimizer = build_optimizer(
        cast(Model, model), loss, made.protocol, made.method, made.published_params
    )
    groups = {group["name"]: group for group in optimizer.param_groups}
    found = {f"rate.{name}": group["lr"] for name, group in groups.items()}
    found |= {f"decay.{name}": group["weight_decay"] for name, group in groups.items()}
    if "loss" in groups:
        found["rate.loss over trunk"] = round(found["rate.loss"] / found["rate.trunk"], 6)
    names = ("betas", "eps", "momentum", "alpha")
    return found | {name: optimizer.defaults[name] for name in names if name in optimizer.defaults}


def _class_facts(protocol: EvaluationProtocol, dataset: str) -> Facts:
    """How many classes train and validate the first model."""
    count = TRAINVAL.get(dataset)
    if count is None:
        return {}
    given = dataset in ("inshop", "inaturalist")
    if dataset == "sop" and protocol.split == "half":
        count = HALF_OF_SOP
    folds = cut(range(count), applicable_folds(protocol.folds, 2 * count, given))
    return {
        "models": len(folds),
        "training classes": len(folds[0].train),
        "validation classes": len(folds[0].val),
        "first validated class": folds[0].val[0] if folds[0].val else None,
    }


def _range(space: Any) -> list[Any]:
    return list(space.choices) if hasattr(space, "choices") else [space.low, space.high]


def experiments_of(runs: Runs) -> Iterator[Experiment]:
    for loss in runs.losses:
        for dataset in runs.datasets:
            yield build_experiment(
                RunConfig(
                    loss=loss,
                    preset=runs.preset,
                    protocol=runs.protocol,
                    dataset=dataset,
                    trunk=runs.trunk,
                    space=runs.space,
                )
            )


def points_of(figure: PaperFigure) -> Iterator[Experiment]:
    """The experiment of every point of a figure."""
    asked = build_sweep(figure)
    for _, changes in asked.points():
        loss = changes["loss"]
        config = config_at(asked.config, {k: v for k, v in changes.items() if k != "loss"})
        yield build_experiment(config.updated({"loss": loss}))


def is_of(made: Experiment, runs: Runs) -> bool:
    """Whether an experiment of a figure is one of some runs, except for what the figure varies."""
    config = made.config
    return (
        made.method.name in runs.losses
        and config.preset == runs.preset
        and config.protocol.partition("+")[0] == runs.protocol
        and config.dataset in runs.datasets
        and config.trunk == runs.trunk
        and not runs.space
    )


def stated(setting: Setting, dataset: str) -> Facts:
    """The values of a setting on one data set."""
    of_all = {fact: value for fact, value in setting.value.items() if not isinstance(value, dict)}
    by_dataset = {fact: value for fact, value in setting.value.items() if fact not in of_all}
    return of_all | {fact: value[dataset] for fact, value in by_dataset.items() if dataset in value}


def plain(value: Any) -> Any:
    """As YAML has it."""
    return [plain(one) for one in value] if isinstance(value, list | tuple) else value


@dataclass(frozen=True)
class Checked:
    """An experiment and its facts.

    Attributes:
        runs: names of the runs that it belongs to.
        varied: facts that its figure varies, which a setting of the paper need not match.
    """

    made: Experiment
    facts: Facts
    runs: frozenset[str]
    varied: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        return f"{self.made.method.name} on {self.made.dataset} ({', '.join(sorted(self.runs))})"


def differences(setting: Setting, experiments: Iterable[Checked]) -> Iterator[str]:
    """Each experiment that a setting is about and that has another value; or that there is none."""
    found = False
    for one in experiments:
        if setting.runs and not one.runs & set(setting.runs):
            continue
        if setting.losses and one.made.method.name not in setting.losses:
            continue
        for fact, value in stated(setting, one.made.dataset).items():
            found = True
            if fact not in one.varied and plain(one.facts.get(fact, "absent")) != plain(value):
                yield f"{one.name}: {fact} is {one.facts.get(fact, 'absent')}, stated is {value}"
    if setting.value and not found:
        yield f"{setting.setting}: no experiment has it"


def differing(points: Sequence[tuple[Experiment, Facts]]) -> dict[str, list[Any]]:
    """What differs among the points of a figure on the same data set: fact -> all its values."""
    found = {}
    for name in {fact for _, facts in points for fact in facts if not fact.startswith(DERIVED)}:
        values: dict[str, list[Any]] = {}
        for made, facts in points:
            known = values.setdefault(made.dataset, [])
            value = plain(facts.get(name))
            if value not in known:
                known.append(value)
        if any(len(known) > 1 for known in values.values()):
            found[name] = [value for known in values.values() for value in known]
    return found


def same_values(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """In any order, and however often each is there."""
    return all(value in other for value in one) and all(value in one for value in other)


def compared(stated: Mapping[str, list[Any]], found: Mapping[str, list[Any]]) -> Iterator[str]:
    """What a figure varies otherwise than its paper."""
    for fact in stated.keys() | found.keys():
        if fact not in found:
            yield f"{fact} is the same at all points, stated is {stated[fact]}"
        elif fact not in stated:
            yield f"{fact} should be shared, but is {found[fact]}"
        elif not same_values(plain(stated[fact]), found[fact]):
            yield f"{fact} is {found[fact]}, stated is {stated[fact]}"
