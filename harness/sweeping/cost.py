"""What losses cost: time of a step, time until they have converged, memory, own parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from harness.config import RunConfig
from harness.data.batches import Source
from harness.data.sources import open_part
from harness.errors import HarnessError
from harness.experiment import Experiment, build_experiment, check_validated
from harness.model.build import check_method
from harness.records.layout import COSTS
from harness.records.provenance import command_line, commit_of, versions_of
from harness.records.published import find_folder, read
from harness.records.records import FoldRecord
from harness.system.files import write_text
from harness.system.progress import Listener, ignore
from harness.tables.column import Table, frame_of
from harness.tables.costs import COLUMNS, cost_table
from harness.tables.rendering import to_csv, to_markdown
from harness.tables.training_cost import converged_step
from harness.training.trial import train, trial_units

# What papers print, and the column of ours that it stands beside, with what one of ours is.
PRINTED = {
    ("iteration_time", "s"): ("ms_per_step", 1e-3),
    ("step_time", "ms"): ("ms_per_step", 1.0),
    ("convergence_time", "h"): ("convergence_seconds", 1 / 3600),
    ("peak_memory", "GB"): ("peak_memory_mib", 2**20 / 1e9),
    ("total_steps", "steps"): ("steps", 1.0),
}
# Their names for some losses, beside those of methods.csv.
ALSO_CALLED = {
    "Semi-Hard": "triplet-semihard",
    "Margin": "margin-dw",
    "ProxyGML": "proxygml",
    "Contrastive": "c2",
    "Contrastive-CCP": "ccp-c2",
    "C2-CCP": "ccp-c2",
    "C2-XBM": "c2-xbm",
    "MS-CCP": "ccp-ms",
    "Triplet-CCP": "ccp-triplet",
}


@dataclass(frozen=True)
class Costs:
    """A row for each loss, and its files."""

    table: Table
    files: list[Path]

    @property
    def frame(self) -> pd.DataFrame:
        return self.table.frame


def measure_costs(
    losses: Sequence[str],
    values: Mapping[str, Any],
    folds: int = 1,
    listener: Listener = ignore,
) -> Costs:
    """Train each loss at its published parameters, in a process of its own, on some of the folds.

    What a search or a sweep has trained does not count: it may have shared its process, or its
    core. Repeated, the command shows what it has measured before.

    Args:
        values: config values.
        folds: over which the means are.
    """
    if not losses:
        raise HarnessError("which loss? Give --loss NAME; `harness list losses` shows them")
    config = RunConfig().updated(values)
    config = config.updated({"runs_dir": str(Path(config.runs_dir) / COSTS)})
    experiments = []
    for loss in dict.fromkeys(losses):
        experiment = build_experiment(config.updated({"loss": loss}))
        check_validated(experiment)
        check_method(experiment)
        experiments.append(experiment)
    rows = []
    for experiment in experiments:
        trainval = open_part(experiment, "trainval", listener)
        train(experiment.config, folds, listener)
        rows.append(_row(experiment, _records(experiment, trainval, folds)))
    first = experiments[0]
    name = "-".join([first.protocol.name, first.dataset_label, first.trunk_label])
    place = Path(config.results_dir) / COSTS / name.replace(":", "_")
    title = f"Costs on {first.dataset_label}, {first.trunk_label}, {first.protocol.name}"
    files = [place.with_name(f"{place.name}{ending}") for ending in (".csv", ".md")]
    ours = _beside_earlier(frame_of(COLUMNS, rows), files[0])
    frame = _with_printed(ours, first, Path(config.results_dir))
    table = cost_table(title, frame, command_line())
    write_text(files[0], to_csv(frame))
    write_text(files[1], to_markdown(table))
    return Costs(table, files)


def _beside_earlier(frame: pd.DataFrame, file: Path) -> pd.DataFrame:
    """The rows of before, too, but for those that were measured again."""
    if not file.exists():
        return frame
    try:
        before = pd.read_csv(file)
        kept = before[~before["method"].isin(frame["method"])]
    except (ValueError, KeyError) as error:
        raise HarnessError(f"{file} is no table of costs; move it away: {error}") from error
    kept = kept[[name for name in frame.columns if name in kept]]  # nothing that papers print
    return pd.concat([kept, frame], ignore_index=True)


def _records(experiment: Experiment, trainval: Source, folds: int) -> list[FoldRecord]:
    units = trial_units(experiment, trainval, experiment.published_params)[:folds]
    found = [unit.find_record() for unit in units]
    return [record for record in found if record is not None]


def _row(experiment: Experiment, records: Sequence[FoldRecord]) -> dict[str, Any]:
    count = len(records)
    ms_per_step = sum(1000 * r.train_seconds / r.steps for r in records) / count
    converged = sum(converged_step(r.history, r.best_score) for r in records) / count
    made = records[-1].provenance
    return {
        "method": experiment.method.name,
        "batch_size": experiment.protocol.batch_size,
        "ms_per_step": ms_per_step,
        "converged_step": converged,
        "convergence_seconds": converged * ms_per_step / 1000,
        "steps": sum(r.steps for r in records) / count,
        "train_seconds": sum(r.train_seconds for r in records) / count,
        "seconds": sum(r.seconds for r in records) / count,
        "peak_memory_mib": max(r.peak_memory for r in records) / 2**20,
        "loss_mib": _bytes_of_loss(experiment) / 2**20,
        "validation": sum(r.best_score for r in records) / count,
        "folds": count,
        "device": records[-1].device,
        "commit": commit_of(made),
        "versions": versions_of(made),
        "command": made["command"].replace("\n", " "),
    }


def _bytes_of_loss(experiment: Experiment) -> int:
    classes = experiment.split.folds[0].train
    loss = experiment.method.make_loss(
        len(classes),
        experiment.protocol.embedding_size,
        experiment.published_params,
        experiment.hierarchy_of(classes),
    )
    return sum(parameter.numel() * parameter.element_size() for parameter in loss.parameters())


def _with_printed(frame: pd.DataFrame, experiment: Experiment, results: Path) -> pd.DataFrame:
    """Beside ours what papers print for the same data set, in our units, on their hardware."""
    folder = find_folder(results)
    called = {**dict(zip(*_named(folder), strict=True)), **ALSO_CALLED}
    for _, row in read(folder / "compute_tables.csv").iterrows():
        method = called.get(row["method"])
        wanted = PRINTED.get((row["quantity"], row["unit"]))
        at = frame["method"] == method
        if wanted is None or not at.any() or row["dataset"] not in (experiment.dataset, "any"):
            continue
        column, unit = wanted
        frame.loc[at, f"published_{column}"] = float(row["value"]) / unit
        frame.loc[at, "published_on"] = row["hardware"] or row["source"]
    return frame


def _named(folder: Path) -> tuple[list[str], list[str]]:
    methods = read(folder / "methods.csv")
    return methods["method"].tolist(), methods["loss"].tolist()
