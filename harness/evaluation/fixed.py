"""Fixed configurations: parameters that somebody published or the user set, tested as they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness import registry
from harness.config import RunConfig
from harness.errors import HarnessError, convert_value_errors
from harness.evaluation.runs import ReproductionJob
from harness.experiment import build_experiment, check_tested
from harness.model.build import check_method
from harness.protocols.protocol import SEPARATOR
from harness.records.records import SearchFacts
from harness.training.opened import open_experiment


def fixed_jobs(losses: Sequence[str], values: Mapping[str, Any]) -> list[ReproductionJob]:
    """One for each loss; none if the values do not speak of a fixed configuration.

    They do if a preset is named, or if the protocol leaves nothing to search by.
    """
    if not is_fixed(values):
        return []
    if not losses:
        raise HarnessError("which loss? Give --loss NAME; `harness list losses` shows them")
    return [_job(loss, values) for loss in losses]


def is_fixed(values: Mapping[str, Any]) -> bool:
    """Whether config values name parameters to be tested as they are."""
    return "preset" in values or _leaves_no_search(values)


def _leaves_no_search(values: Mapping[str, Any]) -> bool:
    if "protocol" not in values:
        return False
    config = RunConfig().updated(values)
    dataset, _ = registry.load_dataset(config.dataset)
    protocol = registry.load_protocol(config.protocol, dataset.name, trunk=config.trunk)
    return protocol.folds == "none"


def fixed_config(loss: str, values: Mapping[str, Any]) -> RunConfig:
    """With the preset of its protocol, or the protocol of its preset, where one is not given."""
    config = RunConfig().updated({**values, "loss": loss})
    if "preset" not in values:
        config = config.updated({"preset": _preset_of_protocol(config)})
    if "protocol" not in values:
        config = config.updated({"protocol": _protocol_of_preset(config)})
    return config


def _job(loss: str, values: Mapping[str, Any]) -> ReproductionJob:
    experiment = build_experiment(fixed_config(loss, values))
    check_method(experiment)
    check_tested(experiment)
    config = experiment.config  # with parameters of their types
    preset = "" if config.preset == RunConfig.preset else f"+preset={config.preset}"
    own = "".join(f"+{name}={value}" for name, value in sorted(config.params.items()))
    search: SearchFacts = {
        "trials": 0,
        "asked": {"trials": 0, "reproductions": experiment.protocol.reproductions},
    }
    opened = open_experiment(experiment, fixed=preset + own)
    return ReproductionJob(opened, experiment.published_params, search)


def _preset_of_protocol(config: RunConfig) -> str:
    """The first that belongs to the protocol; the usual one if none does."""
    dataset, _ = registry.load_dataset(config.dataset)
    method, protocol = registry.load_method(config.loss), config.protocol.partition(SEPARATOR)[0]
    own = (
        name for name in method.presets if protocol in method.preset(name, dataset.name).belongs_to
    )
    return next(own, config.preset)


def _protocol_of_preset(config: RunConfig) -> str:
    dataset, _ = registry.load_dataset(config.dataset)
    with convert_value_errors():
        preset = registry.load_method(config.loss).preset(config.preset, dataset.name)
    return next(iter(preset.belongs_to), config.protocol)
