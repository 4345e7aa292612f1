"""Experiment: a config with every name resolved, and what identifies each run made from it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from harness import registry
from harness.config import RunConfig
from harness.errors import HarnessError, unknown
from harness.registry import ClassSplit, EvaluationProtocol, Method, Space
from harness.seeds import derive_seed

if TYPE_CHECKING:
    from harness.datasets.listing import Listing
    from harness.images import ImageStore
    from harness.trunks.trunk import Trunk

DecodingReport = Callable[[int, int], None]


@dataclass(frozen=True)
class Experiment:
    """One method on one data set under one protocol.

    Attributes:
        weights: fingerprint of those that the trunk starts from; "none" if they are random.
        trunk_label: name of the trunk in results; tells two files of weights apart.
        dataset: name that settings and presets are found by.
        dataset_label: name of results; tells two folders of images apart.
    """

    config: RunConfig
    method: Method
    protocol: EvaluationProtocol
    trunk: Trunk
    weights: str
    trunk_label: str
    dataset: str
    dataset_label: str
    listing: Listing
    split: ClassSplit

    @property
    def table(self) -> Path:
        """Where results that may be ranked together belong: protocol / data set - trunk."""
        return Path(
            self.protocol.name, f"{self.dataset_label}-{self.trunk_label}".replace(":", "_")
        )

    @property
    def runs(self) -> Path:
        return Path(self.config.runs_dir) / self.table / self.method.name

    @property
    def results(self) -> Path:
        return Path(self.config.results_dir) / self.table

    @property
    def pretrained(self) -> bool:
        """Whether the trunk starts from weights of another data set."""
        return self.weights != "none"

    @property
    def trials(self) -> int:
        return self.config.trials or self.protocol.trials

    @property
    def reproductions(self) -> int:
        return self.config.reproductions or self.protocol.reproductions

    @cached_property
    def space(self) -> Space:
        """The method's search space without the parameters that the user fixed."""
        num_train = min(len(fold.train) for fold in self.split.folds)
        full = self.method.space(self.dataset, num_train)
        return {name: dist for name, dist in full.items() if name not in self.config.params}

    @cached_property
    def published_params(self) -> dict[str, Any]:
        """Parameters of the preset, with those that the user fixed in their place."""
        preset = self.method.preset(self.config.preset, self.dataset)
        return {**preset.params, **self.config.params}

    def indices_of(self, classes: tuple[int, ...]) -> list[int]:
        """Listing indices of all images of some classes."""
        return np.flatnonzero(np.isin(self.listing.labels, classes)).tolist()

    def open_part(self, part: str, report: DecodingReport = lambda done, all: None) -> ImageStore:
        """The images of "trainval" or of "test". Only evaluation may ask for the latter."""
        from harness.images import open_store

        classes = {"trainval": self.split.trainval, "test": self.split.test}[part]
        return open_store(
            self.listing,
            self.indices_of(classes),
            self.protocol.resize,
            Path(self.config.cache_dir) / self.dataset_label,
            report,
        )

    @cached_property
    def trainval(self) -> ImageStore:
        return self.open_part("trainval")

    def identity(self) -> dict[str, Any]:
        """What every run of this experiment measures, ready for JSON."""
        # Trunks that have no weights but random ones do not mention them.
        mentioned = self.pretrained or self.trunk.own_weights is not None
        return {
            "method": self.method.name,
            "protocol": self.protocol.identity(),
            "dataset": self.dataset_label,
            "data_fingerprint": self.trainval.fingerprint,
            "split": self.split.digest,
            "trunk": self.trunk_label,
            **({"weights": self.weights} if mentioned else {}),
            "seed": self.config.seed,
        }

    def run_dir(self, params: Mapping[str, Any], fold: int, repetition: int) -> Path:
        """The folder of one unit of work, named by a hash of what defines it."""
        parts = {**self.identity(), "params": dict(params), "fold": fold, "repetition": repetition}
        return self.runs / "folds" / digest_of(parts)

    def seed(self, stream: str, fold: int, repetition: int) -> int:
        """The same for every method, so that comparisons are paired."""
        return derive_seed(self.config.seed, self.dataset_label, fold, repetition, stream)


def digest_of(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def build_experiment(config: RunConfig) -> Experiment:
    """Resolve every name of a config; a wrong one is refused here, before any work."""
    if not config.loss:
        raise HarnessError("which loss? Give --loss NAME; `harness list losses` shows them")
    method = registry.load_method(config.loss)
    dataset, path = registry.load_dataset(config.dataset)
    root = path or (Path(config.data_root).expanduser() if config.data_root else None)
    try:
        changes = dict(method.preset(config.preset, dataset.name).protocol)
        listing = dataset.list_images(root)
        if listing.given_trainval is not None or not registry.mlrc_applies(listing.num_classes):
            # The released fold rule breaks here; the protocol's name says what replaced it.
            changes["folds"] = "balanced"
        protocol = registry.load_protocol(config.protocol, dataset.name, changes)
        split = registry.split_classes(listing.num_classes, protocol.folds, listing.given_trainval)
    except ValueError as error:
        raise HarnessError(str(error)) from None
    trunk = registry.load_trunk(config.trunk or protocol.trunk)
    try:
        trunk.check_side(protocol.crop)
        weights, trunk_label = trunk.fingerprint(config.weights), trunk.label(config.weights)
    except ValueError as error:
        raise HarnessError(str(error)) from None
    known = method.known_params(dataset.name, len(split.folds[0].train))
    for name in config.params:
        if name not in known:
            raise unknown("parameter", name, known, f"these are the parameters of {method.name}")
    return Experiment(
        config=config,
        method=method,
        protocol=replace(protocol, trunk=trunk.name),
        trunk=trunk,
        weights=weights,
        trunk_label=trunk_label,
        dataset=dataset.name,
        dataset_label=f"{dataset.name}_{path.name}" if path else dataset.name,
        listing=listing,
        split=split,
    )
