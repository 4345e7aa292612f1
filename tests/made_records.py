"""Records with made-up scores, for tests of what is made from records."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.records.layout import metrics_path, record_path, table_path
from harness.records.records import MetricsRecord, TestRecord

QUERIES = [4, 2, 2] * 4  # of twelve test classes


def make_record(
    method: str = "ms", repetition: int = 1, score: float = 0.5, **changes: Any
) -> TestRecord:
    """A reproduction whose every score is `score`; `changes` replace fields or identity keys."""
    protocol = {
        **{"name": "mlrc", "trunk": "bninception", "optimizer": "rmsprop", "lr": 1e-6},
        **{"batch_size": 32, "folds": "mlrc", "embedding_size": 128, "weight_decay": 1e-4},
        **{"clip_norm": None, "clip_value": None, "pooling": "avg"},
    }
    identity = {
        **{"method": method, "protocol": protocol, "dataset": "cub", "trunk": "bninception"},
        **{"data_fingerprint": "d1", "split": "s1", "seed": 0},
    }
    scores = {"map_at_r": score, "r_precision": score, "p_at_1": score}
    per_class: dict[str, list[float | None]] = {
        metric: [score] * len(QUERIES) for metric in ("map_at_r", "p_at_1")
    }
    fold = {
        **{"best_step": 200, "steps": 400, "train_seconds": 8.0, "peak_memory": 2**30},
        **{"device": "cpu", "stopped_by": "patience"},
    }
    values: dict[str, Any] = {
        "kind": "reproduction",
        "identity": {
            **identity,
            **{key: changes.pop(key) for key in list(changes) if key in identity},
        },
        "params": {"alpha": 2.0},
        "repetition": repetition,
        "dims": {"concatenated": 512, "separated": 128},
        "scores": {"concatenated": scores, "separated": scores},
        "separated": [scores] * 4,
        "queries": sum(QUERIES),
        "queries_dropped": 0,
        "test_fingerprint": "t1",
        "folds": [fold] * 4,
        "search": {
            **{"trials": 50, "failed": 1, "validation": 0.4, "on_bound": {}},
            "asked": {"trials": 50, "reproductions": 10},
        },
        "provenance": {
            **{"time": "2026-01-01T00:00:00+00:00", "command": "harness eval", "commit": "c0ffee"},
            **{"clean": True, "python": "3.12", "versions": {"torch": "2"}, "platform": "Linux"},
        },
        "per_class": {"concatenated": per_class, "separated": per_class},
        "class_queries": QUERIES,
    }
    return TestRecord(**{**values, **changes})


def put(results: Path, record: TestRecord, digest: str = "abc") -> Path:
    """Write a record where an evaluation would; returns the file."""
    identity = record.identity
    table = table_path(str(identity["protocol"]["name"]), identity["dataset"], identity["trunk"])
    path = record_path(results / table, identity["method"], digest, record.repetition)
    record.write(path)
    return path


def put_scores(
    results: Path, method: str, scores: Sequence[float], digest: str = "abc", **changes: Any
) -> Path:
    """One record per score, as reproductions 1, 2, ...; returns the folder of their table."""
    for repetition, score in enumerate(scores, start=1):
        path = put(results, make_record(method, repetition, score, **changes), digest)
    return path.parent.parent.parent


def put_metrics(path: Path, scores: dict[str, float]) -> Path:
    """Metrics on demand for the run whose record lies at `path`; returns their file."""
    record = TestRecord.read(path)
    more = MetricsRecord(
        kind=record.kind,
        identity=record.identity,
        params=record.params,
        repetition=record.repetition,
        scores={"concatenated": scores, "separated": scores},
        test_fingerprint=record.test_fingerprint,
        provenance=record.provenance,
    )
    place = metrics_path(path, scores)
    more.write(place)
    return place
