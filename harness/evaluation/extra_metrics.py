"""More metrics of runs that were tested before, each in a record of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from filelock import FileLock, Timeout

from harness.errors import HarnessError
from harness.evaluation.scoring import TestEmbeddings, measure
from harness.results.records import MetricsRecord, TestRecord, provenance


def missing_metrics(path: Path, metrics: Sequence[str]) -> list[str]:
    """Those that no record of the run holds; `path` is that of its TestRecord."""
    start, end = f"{path.stem}.metrics.", ".json"
    known = {
        metric
        for more in path.parent.glob(f"{start}*{end}")
        for metric in more.name.removeprefix(start).removesuffix(end).split("+")
    }
    return [metric for metric in metrics if metric not in known]


def add_metrics(
    path: Path, metrics: Sequence[str], embed: Callable[[], TestEmbeddings], locks: Path
) -> None:
    """Measure what is missing of a run, which opens the test classes once more.

    Args:
        path: of the run's TestRecord.
        embed: opens the test classes and embeds them as the run did.
        locks: folder of the lock that keeps other workers from doing the same.
    """
    if not path.exists() or not missing_metrics(path, metrics):
        return
    try:
        with FileLock(locks / f"{path.stem}.metrics.lock", timeout=0):
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
        provenance=provenance(),
    ).write(path.with_name(f"{path.stem}.metrics.{'+'.join(sorted(metrics))}.json"))
