"""The models of a table whose weights were kept, and the test classes as they see them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from harness import registry
from harness.config import RunConfig, load_config
from harness.data.sources import open_part
from harness.errors import HarnessError
from harness.evaluation.scoring import TestEmbeddings, describe_test
from harness.experiment import Experiment, build_experiment
from harness.loss_file import check_unchanged, is_file
from harness.model.network import Model
from harness.records.layout import CONFIG, FOLD_RECORD, FOLDS, WEIGHTS, table_path
from harness.records.records import TEST_SELECTED, FoldRecord, TestRecord
from harness.searching.found import find_searches
from harness.system.device import cpu_threads
from harness.system.trouble import trouble_in
from harness.training.embed import concatenate, embed_with
from harness.training.opened import SELECT, OpenedExperiment, open_experiment
from harness.training.replay import replayed
from harness.training.trial import units_of
from harness.training.unit import Unit, evaluation_loader


def embed_test(
    opened: OpenedExperiment, units: Sequence[Unit], weights: str = WEIGHTS
) -> TestEmbeddings:
    """Open the test classes, which the ledger counts, as the models of one repetition see them.

    Args:
        weights: file of those that count.
    """
    experiment, first = units[0].experiment, units[0]
    method = experiment.method
    device = experiment.device
    models = [_load(unit, device, weights) for unit in units]
    opened.note_opening(first.params, first.repetition)
    test = open_part(experiment, "test")
    loader = evaluation_loader(experiment, device)
    embeddings = [
        embed_with(model, test, test.indices, loader, method.normalizer) for model in models
    ]
    test.check_stored(mapped_only=True)  # no score comes from damaged data
    named = {"concatenated": [concatenate(embeddings, method.normalizer)]}
    if len(embeddings) > 1:
        named["separated"] = embeddings
    return describe_test(experiment, opened.trainval, test, named)


def _load(unit: Unit, device: torch.device, weights: str) -> Model:
    try:
        return unit.load_model(device, weights)
    except (ValueError, RuntimeError, FileNotFoundError) as error:
        if trouble_in(error) is not None and not isinstance(error, FileNotFoundError):
            raise
        if unit.experiment.config.storage and isinstance(error, FileNotFoundError):
            raise HarnessError(
                f"the weights of fold {unit.fold + 1} are not in {unit.folder}; if another machine "
                "trained them, repeat the command there"
            ) from None
        raise HarnessError(
            f"the weights of fold {unit.fold + 1} in {unit.folder} cannot be read ({error}); with "
            "the folder moved away, a run that was not tested yet is trained again"
        ) from None


def _units(opened: OpenedExperiment, record: TestRecord) -> list[Unit]:
    """The models that were tested; under select=replay the one that replayed another."""
    units = units_of(opened.experiment, opened.trainval, record.params, record.repetition)
    first = units[0].find_record()
    if opened.experiment.protocol.select != "replay" or first is None:
        return units
    second = replayed(opened.experiment, first)
    return units_of(second, opened.trainval, record.params, record.repetition)


@dataclass(frozen=True)
class KeptModels:
    """The fold models of one reproduction of a row."""

    opened: OpenedExperiment
    units: list[Unit]

    @property
    def experiment(self) -> Experiment:
        return self.opened.experiment

    def load(self) -> list[Model]:
        """The models, in the order of the folds."""
        return [_load(unit, self.experiment.device, WEIGHTS) for unit in self.units]

    def embed(self) -> TestEmbeddings:
        with cpu_threads(self.experiment.protocol.threads):
            return embed_test(self.opened, self.units)


def find_kept(
    record: TestRecord, values: Mapping[str, Any], loss_files: Sequence[str] = ()
) -> KeptModels:
    """The models that a record was made by, or an error that says what is missing.

    Args:
        values: config values that say where things are: runs_dir, results_dir, data_root, ...
        loss_files: that the user named; no other one is imported.
    """
    identity, label = record.identity, record.identity["method"]
    if record.kind not in ("reproduction", TEST_SELECTED):
        raise HarnessError(f"{label}: only the fold models of a trained method can be embedded")
    unsearched = record.search.get("trials") == 0
    config, fixed = (_fixed if unsearched else _searched)(record, values, loss_files)
    experiment = build_experiment(config)
    opened = open_experiment(experiment, fixed=fixed)
    if opened.trainval.fingerprint != identity["data_fingerprint"]:
        raise HarnessError(
            f"{identity['dataset']}: the images are not those that {label} was trained on"
        )
    units = _units(opened, record)
    lost = [unit for unit in units if not (unit.folder / WEIGHTS).exists()]
    if lost:
        preset = f" --preset {config.preset}" if unsearched else ""
        raise HarnessError(
            f"{label}, reproduction {record.repetition}: the weights of {len(lost)} of "
            f"{len(units)} models are gone from {experiment.runs}; with its record moved away, "
            f"harness eval --loss {config.loss}{preset} trains them again"
        )
    return KeptModels(opened, units)


def _searched(
    record: TestRecord, values: Mapping[str, Any], loss_files: Sequence[str]
) -> tuple[RunConfig, str]:
    """The config of the search that a record was made by."""
    name, _, select = record.identity["method"].partition(SELECT)
    table = _table_of(record)
    problems: list[str] = []
    here = partial(find_searches, values=values, problems=problems, in_database=False)
    for found in chain(here(loss_files) if loss_files else (), here(())):
        place, seed = found.place, found.config.seed
        if (place.table, place.method, seed) == (table, name, record.identity["seed"]):
            found.check_named()
            check_unchanged(found.config.loss, found.folder)
            return found.config.updated({"select": select or "mean"}), ""
    raise HarnessError(_not_kept(f"search of {name}", table, values, problems))


def _fixed(
    record: TestRecord, values: Mapping[str, Any], loss_files: Sequence[str]
) -> tuple[RunConfig, str]:
    """The config of a run that nothing was searched for, and what its parameters were set by."""
    label, table = record.identity["method"], _table_of(record)
    asked = RunConfig().updated(values)
    where = {"runs_dir": asked.runs_dir, "results_dir": asked.results_dir, **values}
    for path in sorted(Path(asked.runs_dir, table).glob(f"*/{FOLDS}/*/{CONFIG}")):
        name = path.parents[2].name
        if not label.startswith(name) or not path.with_name(FOLD_RECORD).exists():
            continue
        made = FoldRecord.read(path.with_name(FOLD_RECORD))
        identity = {**made.identity, "method": label}
        if (identity, made.params, made.repetition) == (
            record.identity,
            record.params,
            record.repetition,
        ):
            config = RunConfig(storage="").updated({**load_config(path, foreign=True), **where})
            if is_file(config.loss):
                config = config.updated({"loss": _named_file(name, config.loss, loss_files)})
            return config, label.removeprefix(name)
    raise HarnessError(_not_kept(f"models of {label}", table, values))


def _named_file(method: str, found: str, loss_files: Sequence[str]) -> str:
    """The file of a method among those that the user named."""
    for file in loss_files:
        if registry.load_method(file).name == method:
            return file
    raise HarnessError(
        f"{method} comes from a loss file, which runs only if you name it: {Path(found).name}"
    )


def _table_of(record: TestRecord) -> Path:
    identity = record.identity
    protocol = str(identity["protocol"]["name"])
    return table_path(protocol, identity["dataset"], identity["trunk"])


def _not_kept(
    what: str, table: Path, values: Mapping[str, Any], problems: Sequence[str] = ()
) -> str:
    reasons = "".join(f"\n  {problem}" for problem in problems)
    return (
        f"no {what} for {table} in {values.get('runs_dir', 'runs')}: its models were "
        f"not kept, or lie elsewhere (--runs-dir){reasons}"
    )
