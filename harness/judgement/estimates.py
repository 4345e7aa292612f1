"""Differences of two rows with all of their noise, before any correction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from harness.judgement.families import Pair
from harness.judgement.judged import EMBEDDING, METRIC, Estimate, Reason, Scope
from harness.judgement.samples import (
    Pool,
    Sample,
    differences_of,
    paired_noise,
    pool_of,
    shared_runs,
)
from harness.judgement.statistic import (
    MIN_CLASSES,
    NO_NOISE,
    Noise,
    Spread,
    class_variance,
    together,
)
from harness.metrics.names import EMBEDDINGS, METRICS
from harness.records.records import TestRecord


class Pools:
    """Shared noise of the rows: stored rows know nothing of the user's."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self._samples = samples
        self._found: dict[tuple[bool, str, str], Pool] = {}

    def of(self, stored: bool, embedding: str, metric: str) -> Pool:
        """Over the stored rows only, or over all."""
        key = (stored, embedding, metric)
        if key not in self._found:
            counted = [sample for sample in self._samples if sample.stored or not stored]
            self._found[key] = pool_of(counted, embedding, metric)
        return self._found[key]


@dataclass(frozen=True)
class Measured:
    """A pair with its numbers, before the correction."""

    pair: Pair
    estimates: Mapping[str, Mapping[str, Estimate]]
    scope: Scope | None
    num_classes: int
    reason: Reason | None
    noise: tuple[Noise, Noise] | None
    classes: float
    measured_searches: bool

    @property
    def ranked(self) -> Estimate:
        """What the pair is answered by."""
        return self.estimates[EMBEDDING][METRIC]

    @property
    def spread(self) -> Spread:
        """Of that difference, from all sources of noise; there must be noise to tell."""
        assert self.noise is not None
        return together(*self.noise, self.classes, self.num_classes)


def measure(pair: Pair, pools: Pools) -> Measured:
    runs = shared_runs(pair.one, pair.other)
    found = {
        embedding: {metric: _estimate(pair, pools, runs, embedding, metric) for metric in METRICS}
        for embedding in EMBEDDINGS
    }
    ranked = found[EMBEDDING][METRIC]
    return Measured(
        pair=pair,
        estimates={e: {m: one.estimate for m, one in of.items()} for e, of in found.items()},
        scope=_scope(pair, pools),
        num_classes=ranked.num_classes,
        reason=ranked.reason,
        noise=ranked.noise,
        classes=ranked.classes,
        measured_searches=not ranked.paired,
    )


@dataclass(frozen=True)
class _Found:
    """One estimate, with what it was made from."""

    estimate: Estimate
    reason: Reason | None = None
    noise: tuple[Noise, Noise] | None = None
    classes: float = 0.0
    num_classes: int = 0
    paired: bool = False


def _estimate(
    pair: Pair,
    pools: Pools,
    runs: Sequence[tuple[TestRecord, TestRecord]],
    embedding: str,
    metric: str,
) -> _Found:
    one, other = pair.one, pair.other
    pool = pools.of(one.stored and other.stored, embedding, metric)
    paired = (one.searched or other.searched) and not pool.freedom
    value = one.mean(embedding, metric) - other.mean(embedding, metric)
    noise: tuple[Noise, Noise] | None
    if paired:
        if differences := differences_of(runs, embedding, metric):
            value = float(np.mean(differences))
        seeds = paired_noise(runs, embedding, metric)
        noise = None if seeds is None else (seeds, NO_NOISE)
        of_runs: list[list[TestRecord]] = [list(records) for records in zip(*runs, strict=True)]
    else:
        of_one, of_other = (sample.noise(embedding, metric, pool) for sample in (one, other))
        noise = None if of_one is None or of_other is None else (of_one, of_other)
        of_runs = []
    scored = [
        sample.class_means(embedding, metric, chosen)
        for sample, chosen in zip((one, other), of_runs or ([], []), strict=True)
    ]
    alone = _Found(Estimate(value), paired=paired)
    first, second = scored
    if noise is None:
        return replace(alone, reason=Reason.FEW_RUNS)
    if first is None or second is None or first[1] != second[1]:
        return replace(alone, reason=Reason.NO_CLASSES)
    queries = first[1]
    if len(queries) < MIN_CLASSES:
        return replace(alone, reason=Reason.FEW_CLASSES, num_classes=len(queries))
    classes = float(class_variance(first[0] - second[0], queries, value))
    spread = together(*noise, classes, len(queries))
    half = float(spread.half_width)
    return _Found(
        Estimate(
            difference=value,
            low=value - half,
            high=value + half,
            p=float(spread.p_value(value)),
            error=float(spread.error),
            freedom=float(spread.freedom),
        ),
        noise=noise,
        classes=classes,
        num_classes=len(queries),
        paired=paired,
    )


def _scope(pair: Pair, pools: Pools) -> Scope | None:
    """The weakest of the two rows'."""
    pool = pools.of(pair.one.stored and pair.other.stored, EMBEDDING, METRIC)
    scopes = {sample.scope(pool) for sample in (pair.one, pair.other)}
    order = (Scope.ONE_SEARCH, Scope.BORROWED, Scope.SEARCHES, Scope.FIXED)
    return next((scope for scope in order if scope in scopes), None)
