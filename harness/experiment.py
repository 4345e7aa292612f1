"""A config with every name resolved, and what identifies each run made from it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from harness import registry
from harness.config import RunConfig
from harness.errors import HarnessError, refusing, unknown
from harness.registry import ClassSplit, EvaluationProtocol, Method, Space
from harness.system.progress import Listener, ignore
from harness.system.seeds import derive_seed

if TYPE_CHECKING:
    from harness.data.batches import Source
    from harness.datasets.dataset import Dataset, Listing
    from harness.trunks.trunk import Trunk

SHOWN = 5  # missing files named in a message


@dataclass(frozen=True)
class Benchmark:
    """What methods are compared on: a data set, split by a protocol, seen by a trunk.

    Attributes:
        dataset: name that settings and presets are found by.
        dataset_label: name of results; tells two folders of images apart.
        unlisted: published images that the listing does not even name.
    """

    config: RunConfig
    protocol: EvaluationProtocol
    trunk: Trunk
    dataset: str
    dataset_label: str
    listing: Listing
    unlisted: int
    split: ClassSplit

    # Found, or downloaded, only when asked for: images are decoded without them.
    @cached_property
    def weights(self) -> str:
        """Fingerprint of those that the trunk starts from; "none" if they are random."""
        with refusing():
            return self.trunk.fingerprint(self.config.weights)

    @cached_property
    def trunk_label(self) -> str:
        """Name of the trunk in results; tells two files of weights apart."""
        with refusing():
            return self.trunk.label(self.config.weights)

    @property
    def table(self) -> Path:
        """Where results that may be ranked together belong: protocol / data set - trunk."""
        return Path(
            self.protocol.name, f"{self.dataset_label}-{self.trunk_label}".replace(":", "_")
        )

    @property
    def results(self) -> Path:
        return Path(self.config.results_dir) / self.table

    @property
    def cache(self) -> Path:
        return Path(self.config.cache_dir).expanduser() / self.dataset_label

    @property
    def pretrained(self) -> bool:
        """Whether the trunk starts from weights of another data set."""
        return self.weights != "none"

    @property
    def reproductions(self) -> int:
        return self.config.reproductions or self.protocol.reproductions

    def classes_of(self, part: str) -> tuple[int, ...]:
        return {"trainval": self.split.trainval, "test": self.split.test}[part]

    def listed(self, part: str) -> list[int]:
        """Listing indices of the images of a part whose files are there."""
        found = np.isin(self.listing.labels, self.classes_of(part))
        found[list(self.listing.missing)] = False
        return np.flatnonzero(found).tolist()

    def open_part(self, part: str, listener: Listener = ignore) -> Source:
        """What a model sees of "trainval" or of "test". Only evaluation may ask for the latter."""
        from harness.data.sources import open_source

        return open_source(self, part, listener)

    @cached_property
    def trainval(self) -> Source:
        return self.open_part("trainval")

    def indices_of(self, source: Source, classes: Iterable[int]) -> list[int]:
        """Listing indices of the images of some classes that a source has."""
        indices = np.array(source.indices)
        return indices[np.isin(self.listing.labels[indices], list(classes))].tolist()

    def by_class(self, source: Source, classes: Sequence[int]) -> tuple[np.ndarray, ...]:
        """The same, one array per class; all classes in one go, of which there may be thousands."""
        indices = np.array(source.indices)
        indices = indices[np.argsort(self.listing.labels[indices], kind="stable")]
        labels = self.listing.labels[indices]
        first, last = (np.searchsorted(labels, classes, side) for side in ("left", "right"))
        return tuple(indices[a:b] for a, b in zip(first, last, strict=True))

    def absent(self, part: str, source: Source) -> int:
        """How many images of a part are missing or cannot be decoded."""
        listed = np.isin(self.listing.labels, self.classes_of(part)).sum()
        return int(listed) - len(source.indices)

    def seed(self, stream: str, fold: int, repetition: int) -> int:
        """The same for every method, so that comparisons are paired."""
        return derive_seed(self.config.seed, self.dataset_label, fold, repetition, stream)

    def identity(self) -> dict[str, Any]:
        """What every run measures, whatever the method; ready for JSON."""
        # Trunks that have no weights but random ones do not mention them.
        mentioned = self.pretrained or self.trunk.own_weights is not None
        return {
            "protocol": self.protocol.identity(),
            "dataset": self.dataset_label,
            "data_fingerprint": self.trainval.fingerprint,
            "split": self.split.digest,
            "trunk": self.trunk_label,
            **({"weights": self.weights} if mentioned else {}),
            "seed": self.config.seed,
        }


@dataclass(frozen=True)
class Experiment(Benchmark):
    """One method on a benchmark."""

    method: Method

    @property
    def runs(self) -> Path:
        return Path(self.config.runs_dir) / self.table / self.method.name

    @property
    def trials(self) -> int:
        return self.config.trials or self.protocol.trials

    @cached_property
    def space(self) -> Space:
        """What is searched: the method's and the protocol's, without what the user fixed."""
        num_train = min(len(fold.train) for fold in self.split.folds)
        full = {**self.method.space(self.dataset, num_train), **self.protocol.space()}
        return {name: dist for name, dist in full.items() if name not in self.config.params}

    @cached_property
    def published_params(self) -> dict[str, Any]:
        """Parameters of the preset, with those that the user fixed in their place."""
        preset = self.method.preset(self.config.preset, self.dataset)
        searched = {name: self.protocol.lr for name in self.protocol.space()}
        return {**searched, **preset.params, **self.config.params}

    def identity(self) -> dict[str, Any]:
        """What every run of this experiment measures, ready for JSON."""
        return {"method": self.method.name, **super().identity()}

    def run_dir(self, params: Mapping[str, Any], fold: int, repetition: int) -> Path:
        """The folder of one unit of work, named by a hash of what defines it."""
        parts = {**self.identity(), "params": dict(params), "fold": fold, "repetition": repetition}
        return self.runs / "folds" / digest_of(parts)


def digest_of(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def build_benchmark(config: RunConfig, changes: Mapping[str, Any] | None = None) -> Benchmark:
    """Resolve every name of a config but the loss; a wrong one is refused here, before any work.

    Args:
        changes: protocol fields that a preset changes.
    """
    dataset, path = registry.load_dataset(config.dataset)
    listing = registry.list_images(dataset, path, config.data_root)
    unlisted = _unlisted(dataset, listing, config.allow_missing)
    if listing.missing and not config.allow_missing:
        raise HarnessError(_missing_message(config.dataset, listing))
    changes = dict(changes or {})
    if listing.given_trainval is not None or not registry.mlrc_applies(listing.num_classes):
        # The released fold rule breaks here; the protocol's name says what replaced it.
        changes["folds"] = "balanced"
    protocol = registry.load_protocol(config.protocol, dataset.name, changes)
    with refusing():
        split = registry.split_classes(listing.num_classes, protocol.folds, listing.given_trainval)
    trunk = registry.load_trunk(config.trunk or protocol.trunk)
    with refusing():
        trunk.check_side(protocol.crop)
    return Benchmark(
        config=config,
        protocol=replace(protocol, trunk=trunk.name),
        trunk=trunk,
        dataset=dataset.name,
        dataset_label=f"{dataset.name}_{path.name}" if path else dataset.name,
        listing=listing,
        unlisted=unlisted,
        split=split,
    )


def build_experiment(config: RunConfig) -> Experiment:
    """The benchmark of a config with its loss."""
    if not config.loss:
        raise HarnessError("which loss? Give --loss NAME; `harness list losses` shows them")
    method = registry.load_method(config.loss)
    dataset, _ = registry.load_dataset(config.dataset)
    with refusing():
        changes = method.preset(config.preset, dataset.name).protocol
    benchmark = build_benchmark(config, changes)
    parts = {field.name: getattr(benchmark, field.name) for field in fields(benchmark)}
    experiment = Experiment(**parts, method=method)
    known = {
        *method.known_params(dataset.name, len(benchmark.split.folds[0].train)),
        *benchmark.protocol.space(),
    }
    for name in config.params:
        if name not in known:
            raise unknown("parameter", name, known, f"these are the parameters of {method.name}")
    return experiment


def _unlisted(dataset: Dataset, listing: Listing, allow_missing: bool) -> int:
    """How many published images are not listed; what makes it another data set is refused."""
    found = {"classes": listing.num_classes, "images": len(listing.names)}
    published = {name: dataset.expected.get(name, number) for name, number in found.items()}
    unlisted = published["images"] - found["images"]
    lacks_images = found["classes"] == published["classes"] and unlisted > 0
    if found == published or (lacks_images and allow_missing):
        return unlisted
    otherwise = (
        "to go on without the others: --allow-missing"
        if lacks_images
        else "images of your own are --dataset folder:PATH"
    )
    raise HarnessError(
        f"'{dataset.name}' has {found['images']:,} images of {found['classes']:,} classes here; "
        f"published are {published['images']:,} of {published['classes']:,}\n"
        f"  `harness data check {dataset.name}` says what is wrong; {otherwise}"
    )


def _missing_message(dataset: str, listing: Listing) -> str:
    names = [f"  {listing.names[i]}" for i in listing.missing[:SHOWN]]
    count, more = len(listing.missing), len(listing.missing) - SHOWN
    return "\n".join(
        [
            f"{count} of the {len(listing.names)} images of '{dataset}' are missing:",
            *names,
            *([f"  and {more} more"] if more > 0 else []),
            f"  `harness data check {dataset}` lists what is wrong; to go on without them: "
            "--allow-missing",
        ]
    )
