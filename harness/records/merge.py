"""Records of other machines and labs, brought into one folder of results."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock

from harness.errors import HarnessError
from harness.foreign_files import read_foreign
from harness.records.classes import note_test_classes, read_test_classes
from harness.records.layout import (
    LEDGER,
    RECORDS,
    find_tables,
    run_name,
    run_of_file,
    table_lock,
    table_path,
)
from harness.records.ledger import read_ledger
from harness.records.records import MetricsRecord
from harness.records.rows import AnyRecord, difference, key_of, newest_of, read_records
from harness.system.files import append_lines, replacing


@dataclass
class Merged:
    """What a merge did.

    Attributes:
        tables: folders of results that were looked at.
        known: records that were there already.
        refused: files that do not belong, each with the reason.
        problems: lines of ledgers that cannot be read.
    """

    tables: list[Path] = field(default_factory=list)
    copied: int = 0
    known: int = 0
    refused: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def merge(sources: Sequence[Path], results: Path) -> Merged:
    """Copy what belongs there byte for byte; nothing that is there is ever overwritten."""
    for source in sources:
        if source.resolve() == results.resolve():
            raise HarnessError(f"{source} is the results folder itself; name another one")
        if not find_tables(source):
            raise HarnessError(
                f"no records in {source}: a results folder has them in "
                "PROTOCOL/DATASET-TRUNK/records/METHOD"
            )
    done = Merged()
    for source in sources:
        for table in find_tables(source):
            target = results / table.relative_to(source)
            theirs = read_records(table, done.refused)
            if theirs:
                with FileLock(table_lock(target)):
                    _merge_table(table, theirs, target, done)
            if target not in done.tables and (target / RECORDS).exists():
                done.tables.append(target)
    return done


def _merge_table(table: Path, theirs: dict[Path, AnyRecord], target: Path, done: Merged) -> None:
    ours = read_records(target, [])
    # As for a leaderboard, the newest record decides which version of the data counts.
    reference = newest_of((ours or theirs).values())
    runs = {_run(record): path for path, record in ours.items()}
    foreign = set()
    for path, record in theirs.items():
        reason = _misplaced(record, path) or difference(record, reference)
        if reason:
            done.refused.append(f"{path}: {reason}")
            foreign.add(_opening(path))
            continue
        place = target / RECORDS / path.parent.name / path.name
        twin = runs.get(_run(record))
        if twin is not None:
            _compare_with_twin(path, record, twin, ours[twin], done)
        elif place.exists():
            done.refused.append(f"{path}: {place} is there and holds something else")
        else:
            with replacing(place) as file:
                file.write(read_foreign(path, within=table))
            runs[_run(record)], ours[place] = place, record
            done.copied += 1
    if any(_opening(path) not in foreign for path in theirs):
        _merge_ledger(table / LEDGER, target / LEDGER, foreign, done.problems)
        split = reference.identity["split"]
        names = read_test_classes(table, split)
        if names is not None and read_test_classes(target, split) is None:
            note_test_classes(target, split, names)


def _compare_with_twin(
    path: Path, record: AnyRecord, twin: Path, other: AnyRecord, done: Merged
) -> None:
    """The same run on both sides: fine if it came to the same, else ours stays."""
    differing = [
        f"{metric} {embedding} {value} there, {other.scores.get(embedding, {}).get(metric)} here"
        for embedding, values in record.scores.items()
        for metric, value in values.items()
        if value != other.scores.get(embedding, {}).get(metric)
    ]
    if differing:
        done.refused.append(f"{path}: the same run has other scores in {twin}: {differing[0]}")
    else:
        done.known += 1


def _run(record: AnyRecord) -> tuple[str, ...]:
    """What a record measures: a run and, beside its test, metrics on demand."""
    more = sorted(record.scores["concatenated"]) if isinstance(record, MetricsRecord) else []
    return key_of(record), *more


def _misplaced(record: AnyRecord, path: Path) -> str:
    """Why a record does not belong into the folder it lies in."""
    identity = record.identity
    table = table_path(str(identity["protocol"]["name"]), identity["dataset"], identity["trunk"])
    says = table / RECORDS / identity["method"]
    lies = Path(*path.parent.parts[-4:])
    return "" if says == lies else f"lies in {lies} but says that it belongs in {says}"


def _opening(path: Path) -> tuple[str, str]:
    """Method and run, as a ledger names them."""
    return path.parent.name, run_of_file(path)


def _merge_ledger(
    source: Path, target: Path, foreign: set[tuple[str, str]], problems: list[str]
) -> None:
    """Add the openings that are not there yet; those of records of something else stay out."""
    entries = [
        json.dumps(entry, sort_keys=True)
        for entry in read_ledger(source, problems)
        if (entry["method"], run_name(entry["params"], entry["repetition"])) not in foreign
    ]
    there = [json.dumps(entry, sort_keys=True) for entry in read_ledger(target, [])]
    append_lines(target, map(json.loads, (Counter(entries) - Counter(there)).elements()))
