"""More metrics of runs that were tested before, each in a record of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from filelock import FileLock, Timeout

from harness.errors import HarnessError
from harness.evaluation.scoring import TestEmbeddings, measure
from harness.records.layout import metrics_beside, metrics_path, record_lock
from harness.records.records import MetricsRecord, TestRecord


def missing_metrics(path: Path, metrics: Sequence[str]) -> list[str]:
    """Those that no record of the run holds; `path` is that of its TestRecord."""
    known = metrics_beside(path)
    return [metric for metric in metrics if metric not in known]


def add_metrics(path: Path, metrics: Sequence[str], embed: Callable[[], TestEmbeddings]) -> None:
    """Measure what is missing of a run, which opens the test classes once more.

    Args:
        path: of the run's TestRecord.
        embed: opens the test classes and embeds them as the run did.
    """
    if not path.exists() or not missing_metrics(path, metrics):
        return
    try:
        with FileLock(record_lock(path, "metrics"), timeout=0):
            missing = missing_metrics(path, metrics)
            if missing:
                _measure(path, missing, embed)
    except Timeout:  # another worker is at it
        return


def _measure(path: Path, metrics: Sequence[str], embed: Callable[[], TestEmbeddings]) -> None:
    record = TestRecord.read(path)
    test = embed()
    if test.fingerprint != record.test_fingerprint:
        raise HarnessError(f"{path}: the test images have changed since, so nothing is added to it")
    MetricsRecord(
        kind=record.kind,
        identity=record.identity,
        params=record.params,
        repetition=record.repetition,
        scores=measure(test, metrics),
        test_fingerprint=test.fingerprint,
        provenance=test.provenance(metrics),
    ).write(metrics_path(path, metrics))
