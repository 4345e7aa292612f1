"""Where everything lies: every name of a file or folder in results and runs, spelt once.

results/PROTOCOL/DATASET-TRUNK/records/METHOD/DIGEST-REPETITION.json
results/sweeps/NAME/PROTOCOL/DATASET-TRUNK/validation/METHOD/DIGEST-REPETITION.json
runs/PROTOCOL/DATASET-TRUNK/METHOD/folds/DIGEST/record.json
runs/PROTOCOL/DATASET-TRUNK/METHOD/seed-SEED/folds/DIGEST/record.json (of a repeated search)
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.errors import HarnessError

# Of a table.
RECORDS = "records"
LOCKS = ".locks"
LEDGER = "test_openings.jsonl"
TEST_CLASSES = "test_classes.json"
CSV, MARKDOWN, LATEX = "leaderboard.csv", "leaderboard.md", "leaderboard.tex"
COLUMNS = "leaderboard_columns.md"
BESIDE_PUBLISHED = "published.csv"

# The papers' numbers, beside the tables.
PUBLISHED = "published"

# The committed results, which are part of the package.
STORED = Path(__file__).parent / "stored"

# Of a sweep: what it varies, and its table.
SWEEPS = "sweeps"
VALIDATION = "validation"
PLAN = "sweep.json"
SWEEP_CSV, SWEEP_MARKDOWN, SWEEP_LATEX = "sweep.csv", "sweep.md", "sweep.tex"

# What losses cost: a table for each protocol, data set and trunk; in runs, what was measured.
COSTS = "costs"

# How tight classes are, by stage of training: likewise.
GEOMETRY = "geometry"

# Of a search.
CONFIG = "config.yaml"
JOURNAL = "study.journal"
FOLDS = "folds"
FOLDER_ID = "folder_id"  # what a database knows the folder by
SOURCE = "source"  # of a loss of one's own, as it was searched
VERSION = "@"  # in the name of such a loss, before the hash of its file

# Of one model; it has a CONFIG, too.
FOLD_RECORD = "record.json"
WEIGHTS = "model.pt"
LAST_WEIGHTS = "last.pt"
PROXIES = "proxies.pt"  # and all other parameters of the loss
EMBEDDINGS = "embeddings.pt"  # of classes that its trial is scored on, until it is scored
TRIAL_RECORD = "trial.json"  # of a trial whose models are scored together, beside its first one
STAGES = "stages"  # weights before training and at the best of each stage, if they were asked for
CHECKPOINT = "checkpoint.pt"
FAILURE = "failure.txt"
RETRIED = "retried.txt"
LOCK = "lock"


def dataset_label(name: str, path: Path | None) -> str:
    """Name of a data set in results; of a folder of images, with its own name.

    Two folders of one name share a table, which takes the rows of the same images alone.
    """
    return f"{name}_{Path(os.path.abspath(os.path.expanduser(path))).name}" if path else name


def label_of_dataset(spec: str) -> str:
    """The same of what `--dataset` takes: a name, or folder:PATH."""
    name, _, path = spec.partition(":")
    return dataset_label(name, Path(path) if path else None)


def spec_of_label(label: str) -> str:
    """What `--dataset` takes, as far as the name of a data set in results tells it."""
    return "folder:PATH" if label.startswith("folder_") else label


def table_name(dataset: str, trunk: str) -> str:
    """Folder of a table within that of its protocol; some file systems take no colon."""
    return f"{dataset}-{trunk}".replace(":", "_")


def table_path(protocol: str, dataset: str, trunk: str) -> Path:
    """Where results that may be ranked together lie, in results and in runs."""
    return Path(protocol, table_name(dataset, trunk))


def find_tables(results: Path) -> list[Path]:
    """Every folder of results that has records, in the order of the names."""
    return sorted(path.parent for path in results.glob(f"*/*/{RECORDS}"))


def fits(table: Path, protocol: str | None, dataset: str | None, trunk: str | None) -> bool:
    """Whether a table is one of those that are meant, by what flags take; None stands for any."""
    label = label_of_dataset(dataset) if dataset else ""
    if label and trunk:
        named = table.name == table_name(label, trunk)
    else:
        begin, end = label and table_name(label, ""), trunk and table_name("", trunk)
        named = table.name.startswith(begin) and table.name.endswith(end or "")
    return named and protocol in (None, table.parent.name)


def find_table(results: Path, protocol: str, dataset: str, trunk: str | None) -> Path:
    """The folder of the one table that fits, or an error that says which there are."""
    known = find_tables(results)
    found = [table for table in known if fits(table, protocol, dataset, trunk)]
    if len(found) == 1:
        return found[0]
    listed = "".join(f"\n  {table.parent.name}: {table.name}" for table in found or known)
    if found:
        raise HarnessError(
            f"several trunks on {dataset} under {protocol}; name one: --trunk{listed}"
        )
    label = label_of_dataset(dataset)
    missing = table_name(label, trunk) if trunk else f"{label}, whatever the trunk,"
    raise HarnessError(
        f"no results for {missing} under protocol {protocol} in {results}"
        + (f"; there are{listed}" if known else ": `harness eval` writes them")
    )


def named_like(tables: Sequence[Path]) -> Callable[[Path], bool]:
    """Whether a folder, in whichever results, is that of one of some tables."""
    names = {table.parts[-2:] for table in tables}
    return lambda table: table.parts[-2:] in names


def find_records(table: Path) -> list[Path]:
    """Every file of a table's records, in the order of the names."""
    return sorted(table.glob(f"{RECORDS}/*/*.json"))


def find_configs(runs: Path) -> list[Path]:
    """The config of every search, in the order of the names; repeated ones after the first."""
    firsts = sorted(runs.glob(f"*/*/*/{CONFIG}"))
    methods = sorted({path.parent.parent for path in runs.glob(f"*/*/*/seed-*/{CONFIG}")})
    methods = sorted({*methods, *(path.parent for path in firsts)})
    return [path / CONFIG for method in methods for path in find_repeats(method)]


def find_repeats(method: Path) -> list[Path]:
    """The folders of all searches of a method, in the order of their seeds, the first one first.

    Args:
        method: folder of the method, which is that of its first search.
    """
    seeds = {
        int(path.parent.name.removeprefix("seed-")): path.parent
        for path in method.glob(f"seed-*/{CONFIG}")
        if _REPEATED.fullmatch(path.parent.name)
    }
    first = [method] if (method / CONFIG).is_file() else []
    return [*first, *(seeds[seed] for seed in sorted(seeds))]


_REPEATED = re.compile(r"seed-\d+")


def repeat_folder(method: Path, seed: int) -> Path:
    """The folder of a repeated search of a method."""
    return method / f"seed-{seed}"


@dataclass(frozen=True)
class SearchPlace:
    """What the path of a search's folder says.

    Attributes:
        runs: the folder of all runs.
        table: protocol / data set - trunk.
        method: name of the method.
        folder: of the method; that of the search, unless it is a repeated one.
    """

    runs: Path
    table: Path
    method: str
    folder: Path

    @property
    def protocol(self) -> str:
        return self.table.parent.name


def place_of_search(folder: Path) -> SearchPlace:
    """Where a search belongs, by its folder."""
    method = folder.parent if _REPEATED.fullmatch(folder.name) else folder
    return SearchPlace(
        runs=method.parents[2],
        table=Path(*method.parts[-3:-1]),
        method=method.name,
        folder=method,
    )


def run_name(digest: str, repetition: int) -> str:
    """What the files of one run begin with, and what a ledger calls it by."""
    return f"{digest}-{repetition:02d}"


def run_of_file(path: Path) -> str:
    """The run that a file of records belongs to."""
    return path.name.partition(".")[0]


def record_path(table: Path, method: str, digest: str, repetition: int) -> Path:
    """The test record of one repetition.

    Args:
        digest: of what all repetitions share.
    """
    return table / RECORDS / method / f"{run_name(digest, repetition)}.json"


def single_path(record: Path) -> Path:
    """Beside the record of the fold models: that of the one model of their size together."""
    return record.with_suffix(".single.json")


def metrics_path(record: Path, metrics: Iterable[str]) -> Path:
    """Beside a test record: more metrics of its run."""
    return record.with_name(f"{record.stem}.metrics.{'+'.join(sorted(metrics))}.json")


def metrics_beside(record: Path) -> set[str]:
    """The metrics that the files beside a test record hold."""
    start, end = f"{record.stem}.metrics.", ".json"
    names = [path.name for path in record.parent.glob(f"{start}*{end}")]
    return {m for name in names for m in name.removeprefix(start).removesuffix(end).split("+")}


def holds_metrics(path: Path) -> bool:
    """Whether a file of records has more metrics of a run, and is not its test record."""
    return ".metrics." in path.name


def validation_path(table: Path, method: str, digest: str, repetition: int) -> Path:
    """The record of one repetition that was validated and not tested."""
    return table / VALIDATION / method / f"{run_name(digest, repetition)}.json"


def find_validations(table: Path) -> list[Path]:
    """Every file of repetitions that were not tested, in the order of the names."""
    return sorted(table.glob(f"{VALIDATION}/*/*.json"))


def sweep_folder(results: Path, name: str) -> Path:
    """A sweep, with tables of its own in it: never ranked with others."""
    return results / SWEEPS / name


def find_sweeps(results: Path) -> list[Path]:
    """Every sweep of a results folder, in the order of the names."""
    return sorted(path.parent for path in (results / SWEEPS).glob(f"*/{PLAN}"))


def table_lock(table: Path) -> Path:
    """Held by who adds to a table, to its ledger, or writes its files; whoever reads needs none."""
    return table / LOCKS / "table.lock"


def record_lock(record: Path, what: str = "") -> Path:
    """Held by who makes a record, or `what` beside it, whatever run folder it works in."""
    name = ".".join(filter(None, [record.parent.name, record.stem, what]))
    return record.parents[2] / LOCKS / f"{name}.lock"


def fold_folder(search: Path, digest: str) -> Path:
    """What one model leaves behind, by a hash of what defines it."""
    return search / FOLDS / digest
