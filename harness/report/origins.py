"""Part 9: provenance. Commands, commits, versions, data, splits, and every look at the test."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from harness.records.records import TestRecord
from harness.report.table import Table


@dataclass(frozen=True)
class Origin:
    """Where the numbers of a table come from.

    Attributes:
        facts: what all records share, name -> value.
        commands, commits, platforms, versions: value -> how many records state it.
        openings: method -> how often the test classes were opened for it, first and last time.
    """

    facts: dict[str, str]
    commands: dict[str, int]
    commits: dict[str, int]
    platforms: dict[str, int]
    versions: dict[str, int]
    openings: list[tuple[str, int, str, str]]


def origin(table: Table) -> Origin:
    records = [record for row in table.rows.values() for record in row]
    newest, identity = table.newest, table.newest.identity
    return Origin(
        facts={
            "protocol": str(identity["protocol"]["name"]),
            "data set": identity["dataset"],
            "trunk": identity["trunk"],
            "weights of the trunk": identity.get("weights") or "none, or not stated",
            "class split": identity["split"],
            "trainval images": identity["data_fingerprint"],
            "test images": newest.test_fingerprint,
            "seed": str(identity["seed"]),
            "settings": ", ".join(
                f"{name} {value}" for name, value in sorted(identity["protocol"].items())
            ),
        },
        commands=_counted([record.provenance["command"] for record in records]),
        commits=_counted([_commit(record) for record in records]),
        platforms=_counted([record.provenance.get("platform", "not stated") for record in records]),
        versions=_counted(
            [
                f"{name} {version}"
                for record in records
                for name, version in {
                    "python": record.provenance["python"],
                    **record.provenance["versions"],
                }.items()
            ]
        ),
        openings=_openings(table),
    )


def _counted(values: list[str]) -> dict[str, int]:
    return dict(sorted(Counter(values).items()))


def _commit(record: TestRecord) -> str:
    commit, clean = record.provenance["commit"], record.provenance["clean"]
    if commit is None:
        return "an installed package"
    return commit[:12] + ("" if clean else ", with changes")


def _openings(table: Table) -> list[tuple[str, int, str, str]]:
    times: dict[str, list[str]] = {}
    for opening in table.ledger:
        times.setdefault(opening["method"], []).append(opening.get("time", ""))
    return [
        (method, len(found), min(found)[:10], max(found)[:10])
        for method, found in sorted(times.items())
    ]
