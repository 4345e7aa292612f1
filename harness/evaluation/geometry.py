"""How tight classes are and how far apart, before training and stage by stage of it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from harness.config import RunConfig
from harness.data.sources import open_part
from harness.errors import HarnessError
from harness.evaluation.scoring import TestEmbeddings, measure
from harness.experiment import digest_of
from harness.model.network import NORMALIZERS, Model
from harness.records.layout import GEOMETRY
from harness.records.provenance import command_line, commit_of, versions_of
from harness.records.sweep_plan import key_of
from harness.system.device import cpu_threads
from harness.system.files import write_text
from harness.system.progress import Listener, ignore
from harness.tables.column import Table, frame_of
from harness.tables.geometry import MEASURED, REMARK, columns_of
from harness.tables.rendering import to_csv, to_markdown
from harness.training.embed import embed_with
from harness.training.jobs import run_apart
from harness.training.opened import OpenedExperiment
from harness.training.stages import Stage, build_staged_trainer, read_stages
from harness.training.trial import published_units, train
from harness.training.unit import Unit, evaluation_loader

PARTS = ("training", "validation", "test")
BEFORE = "before"
LONGEST = 200  # letters of a table's name; a longer one has a hash of what was set


@dataclass(frozen=True)
class StageView:
    """The images of some classes as a model sees them at one stage.

    Attributes:
        proxies: (classes, n, dim) of training classes, in the order of their labels, normalised as
            the images are; of other classes, and of a loss that has none, there are none.
        first: those that the stage began with.
    """

    name: str
    seen: TestEmbeddings
    values: dict[str, float]
    proxies: Tensor | None = None
    first: Tensor | None = None


@dataclass(frozen=True)
class StageTable:
    """A row for each stage of each model, and its files.

    Attributes:
        views: of the first model, those of the part that was asked to be kept.
    """

    table: Table
    files: list[Path]
    views: list[StageView] = field(default_factory=list)

    @property
    def frame(self) -> pd.DataFrame:
        return self.table.frame


def see(model: Model, unit: Unit, part: str) -> TestEmbeddings:
    """The images of a part of the classes; who looks at those of the test notes that before."""
    experiment = unit.experiment
    source = open_part(experiment, "test") if part == "test" else unit.trainval
    indices = list(source.indices)
    if part != "test":
        classes = {"training": unit.classes.train, "validation": unit.classes.val}[part]
        indices = experiment.of_classes(indices, classes)
    device = experiment.device
    loader = evaluation_loader(experiment, device)
    seen = embed_with(model, source, indices, loader, experiment.method.normalizer)
    queries = experiment.listing.queries if part == "test" else None
    return TestEmbeddings(
        embeddings={"concatenated": [seen]},
        labels=experiment.listing.labels[indices],
        queries=None if queries is None else queries[indices],
        fingerprint=source.fingerprint,
        missing_images=0,
        indices=np.array(indices),
    )


def geometry_of(seen: TestEmbeddings) -> dict[str, float]:
    return measure(seen, MEASURED)["concatenated"]


def geometry_of_model(
    opened: OpenedExperiment, fold: int, listener: Listener
) -> dict[str, dict[str, float]]:
    """That of training and of validation classes, of a model at the published parameters."""
    del listener  # it takes a moment
    return class_geometry(published_units(opened)[fold])


def class_geometry(unit: Unit) -> dict[str, dict[str, float]]:
    """That of training and of validation classes, by kept weights."""
    device = unit.experiment.device
    with cpu_threads(unit.experiment.protocol.threads):
        model = unit.load_model(device)
        return {part: geometry_of(see(model, unit, part)) for part in PARTS[:2]}


def measure_stages(
    config: RunConfig,
    folds: int = 1,
    test: bool = False,
    kept_part: str = "",
    listener: Listener = ignore,
) -> StageTable:
    """Train the published parameters and measure every stage of the models, each part apart.

    Trained once more even where a search has trained the same, since that kept no stages; repeated,
    the command trains nothing.

    Args:
        folds: so many of them.
        test: measure the test classes, too, which the ledger notes of each model.
        kept_part: part whose embeddings are wanted.
    """
    parts = PARTS if test else PARTS[:2]
    if kept_part and kept_part not in parts:
        advice = "it needs --test" if kept_part == "test" else f"there are {', '.join(PARTS)}"
        raise HarnessError(f"no classes called '{kept_part}' are measured: {advice}")
    config = config.updated({"runs_dir": str(Path(config.runs_dir) / GEOMETRY)})
    units, _ = train(config, folds, listener, build_trainer=build_staged_trainer)
    opened = OpenedExperiment(units[0].experiment, units[0].trainval)
    how = folds, parts, kept_part
    rows, views = run_apart(_measure, opened, *how, listener=listener)
    return _written(units, rows, parts, views)


def _measure(
    opened: OpenedExperiment,
    folds: int,
    parts: Sequence[str],
    kept_part: str,
    listener: Listener,
) -> tuple[list[dict[str, Any]], list[StageView]]:
    """A row for each stage of the models that were trained, and views of the first model."""
    del listener  # it takes seconds
    rows: list[dict[str, Any]] = []
    views: list[StageView] = []
    for unit in published_units(opened, folds):
        if "test" in parts:
            opened.note_opening(unit.params, unit.repetition)
        record = unit.find_record()
        assert record is not None  # it was just trained
        made = {
            "params": key_of(unit.params),
            "commit": commit_of(record.provenance),
            "versions": versions_of(record.provenance),
            "command": command_line(),
        }
        for number, stage in enumerate(read_stages(unit)):
            name = str(number) if number else BEFORE
            seen = _see_all(unit, stage, parts)
            values = {part: geometry_of(one) for part, one in seen.items()}
            place = {"method": unit.experiment.method.name, "fold": unit.fold + 1, "stage": name}
            flat = {f"{p}_{m}": values[p][m] for p in parts for m in MEASURED}
            rows.append({**place, "step": stage.step, **flat, **made})
            if kept_part and unit.fold == 0:
                pictured = _proxies(unit, stage) if kept_part == "training" else {}
                views.append(
                    StageView(name, seen[kept_part].on_host(), values[kept_part], **pictured)
                )
    return rows, views


def _see_all(unit: Unit, stage: Stage, parts: Sequence[str]) -> Mapping[str, TestEmbeddings]:
    device = unit.experiment.device
    with cpu_threads(unit.experiment.protocol.threads):
        model = unit.make_model(stage.weights, device)
        return {part: see(model, unit, part) for part in parts}


def _proxies(unit: Unit, stage: Stage) -> dict[str, Tensor]:
    """As the images of the training classes are shown."""
    order = torch.tensor(unit.classes.train).argsort()
    normalize = NORMALIZERS[unit.experiment.method.normalizer]
    found = {"proxies": stage.proxies, "first": stage.first}
    return {
        name: normalize(given[order].flatten(0, 1)).view_as(given)
        for name, given in found.items()
        if given is not None
    }


def _written(
    units: Sequence[Unit],
    rows: Sequence[Mapping[str, Any]],
    parts: Sequence[str],
    views: list[StageView],
) -> StageTable:
    experiment = units[0].experiment
    of = [experiment.protocol.name, experiment.dataset_label, experiment.trunk_label]
    title = (
        f"{experiment.method.name}: classes by stage of training on {', '.join(of[1:])}, {of[0]}"
    )
    # With folds, test and all that was set in its name: another look does not write over it.
    named = [*of, experiment.method.name]
    looked = [*([f"{len(units)}folds"] if len(units) > 1 else []), *parts[2:]]
    room = LONGEST - len("-".join([*named, *looked, ""]))
    name = "-".join([*named, *_set_apart(experiment.config, room), *looked]).replace(":", "_")
    place = Path(experiment.config.results_dir) / GEOMETRY / name
    files = [place.with_name(f"{name}{ending}") for ending in (".csv", ".md")]
    columns = columns_of(parts)
    table = Table(title, columns, frame_of(columns, rows), [REMARK], [command_line()])
    write_text(files[0], to_csv(table.frame))
    write_text(files[1], to_markdown(table))
    return StageTable(table, files, views)


def _set_apart(config: RunConfig, room: int) -> list[str]:
    """What was set of a method, as a part of a file's name; nothing at the published parameters.

    Args:
        room: letters that there are for it; if more are needed it is a hash.
    """
    usual = RunConfig()
    given = {key: getattr(config, key) for key in ("preset", "seed")}
    changed = {key: value for key, value in given.items() if value != getattr(usual, key)}
    if not config.params and not changed:
        return []
    text = "+".join(f"{key}={value}" for key, value in (*changed.items(), *config.params.items()))
    readable = len(text) <= room and re.fullmatch(r"[\w.+=-]+", text)
    return [text if readable else digest_of({**changed, "params": dict(config.params)})]
