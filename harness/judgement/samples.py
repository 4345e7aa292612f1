"""The records of a row as numbers: scores by search and reproduction, and by test class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from harness.judgement.declared import base_near, declared_rivals
from harness.judgement.fairness import share_at_first, share_at_limit, still_rises
from harness.judgement.judged import Budget, Scope, Score
from harness.judgement.statistic import (
    MIN_PAIRS,
    NO_NOISE,
    Array,
    Noise,
    Spread,
    moderated,
    pooled,
)
from harness.losses.shown_facts import FACTS
from harness.records.records import FoldFacts, TestRecord
from harness.records.rows import Searches, newest_of, run_of


@dataclass(frozen=True)
class Pool:
    """Noise that the rows of a table share, in one metric of one embedding.

    Attributes:
        freedom: 0 where no row was searched twice.
    """

    variance: float
    freedom: float


@dataclass(frozen=True, eq=False)
class Sample:
    """One row.

    Attributes:
        searches: its records, search by search.
    """

    name: str
    stored: bool
    searches: Searches

    @cached_property
    def records(self) -> list[TestRecord]:
        return [record for row in self.searches for record in row]

    @cached_property
    def newest(self) -> TestRecord:
        found = newest_of(self.records)
        assert isinstance(found, TestRecord)
        return found

    @property
    def method(self) -> str:
        return self.newest.identity["method"]

    @property
    def trained(self) -> bool:
        return self.newest.kind != "naive"

    @property
    def searched(self) -> bool:
        """Whether its parameters were searched, and not given."""
        return bool(self.newest.search.get("trials"))

    @property
    def random(self) -> bool:
        """Whether another seed could give another score: PCA of features draws nothing."""
        return self.trained or [record.repetition for record in self.records] != [0]

    @property
    def num_searches(self) -> int:
        return len(self.searches) if self.searched else 0

    @property
    def trials(self) -> int | None:
        """Of the shortest search."""
        counts = [row[-1].search.get("trials", 0) for row in self.searches]
        return min(counts) if self.searched else None

    @property
    def asked(self) -> int | None:
        counts = [row[-1].search["asked"]["trials"] for row in self.searches if _asked(row)]
        return max(counts) if self.searched and counts else None

    @property
    def reproductions(self) -> int:
        return len(self.records)

    @property
    def asked_reproductions(self) -> int:
        """Of all searches together; 0 if the records do not state it."""
        return sum(row[-1].search["asked"]["reproductions"] for row in self.searches if _asked(row))

    @property
    def budget(self) -> Budget:
        if not self.trained:
            return Budget.NO_TRAINING
        if not self.searched:
            return Budget.FIXED
        short = any(
            row[-1].search.get("trials", 0) < row[-1].search["asked"]["trials"]
            for row in self.searches
            if _asked(row)
        )
        return Budget.SHORT if short else Budget.FULL

    @property
    def rivals(self) -> dict[str, str]:
        """Method -> what it is to this one, by declaration."""
        return declared_rivals(self.newest)

    @property
    def base(self) -> str:
        return self.newest.search.get("base", "")

    @property
    def coincides_with(self) -> str:
        """The base, where every search ended where the method nearly is its base."""
        near = {base_near(self.method, row[-1].params, row[-1].search) for row in self.searches}
        return near.pop() if len(near) == 1 else ""

    @property
    def search_seconds(self) -> float | None:
        """Training time of one search with its reproductions, by its records."""
        folds = self.folds
        if not self.searched or not folds:
            return None
        of_model = float(np.mean([fold["train_seconds"] for fold in folds]))
        models = len(self.newest.folds)
        recorded = [
            seconds
            for row in self.searches
            for seconds in row[-1].search.get("trial_seconds", [])
            if seconds is not None
        ]
        of_trial = float(np.mean(recorded)) if recorded else models * of_model
        reproductions = len(self.records) / len(self.searches)
        return of_trial * (self.trials or 0) + of_model * models * reproductions

    @property
    def at_step_limit(self) -> float | None:
        return share_at_limit([fold["stopped_by"] for fold in self.folds if "stopped_by" in fold])

    @property
    def best_at_first(self) -> float | None:
        return share_at_first(
            [
                (fold["best_step"], fold["history"]["steps"])
                for fold in self.folds
                if "score" in fold.get("history", {})
            ]
        )

    @property
    def still_rising(self) -> bool:
        return any(still_rises(row[-1].search) for row in self.searches)

    @property
    def versions(self) -> dict[str, list[str]]:
        """What the trials of a search were trained with, where that differs."""
        found = (row[-1].search.get("versions", {}) for row in self.searches)
        return {name: values for versions in found for name, values in versions.items()}

    @property
    def on_bound(self) -> dict[str, str]:
        return {
            name: end
            for row in self.searches
            for name, end in row[-1].search.get("on_bound", {}).items()
        }

    @property
    def method_notes(self) -> list[str]:
        """What the method says about facts that are below what it expects."""
        values = [(fact, self.fact(fact.name)) for fact in FACTS]
        return [fact.note for fact, value in values if value is not None and value < fact.expected]

    def fact(self, name: str) -> float | None:
        """A number that the method's hook reports of its models, mean over those that have it."""
        found = [fold["hook"][name] for fold in self.folds if name in fold.get("hook", {})]
        return float(np.mean(found)) if found else None

    @cached_property
    def folds(self) -> list[FoldFacts]:
        return [fold for record in self.records for fold in record.folds]

    def scores(self, embedding: str, metric: str) -> list[list[float]] | None:
        """By search and reproduction; None if a record lacks this score."""
        found = [
            [record.scores.get(embedding, {}).get(metric) for record in row]
            for row in self.searches
        ]
        if any(score is None for row in found for score in row):
            return None
        return found  # type: ignore[return-value]

    def mean(self, embedding: str, metric: str) -> float:
        """Over reproductions, then over searches; NaN if a record lacks this score."""
        found = self.scores(embedding, metric)
        return float("nan") if found is None else float(np.mean([np.mean(row) for row in found]))

    def noise(self, embedding: str, metric: str, pool: Pool) -> Noise | None:
        """What another search with other seeds would change; None if it cannot be known."""
        if not self.random:
            return NO_NOISE
        found = self.scores(embedding, metric)
        if found is None:
            return None
        if not self.searched:
            return seed_noise([score for row in found for score in row])
        if not pool.freedom:
            return None
        means = [np.mean(row) for row in found]
        own = float(np.var(means, ddof=1)) if len(means) > 1 else 0.0
        return moderated(own, len(means), pool.variance, pool.freedom)

    def scope(self, pool: Pool) -> Scope | None:
        """Which noise its interval accounts for."""
        if not self.random:
            return None
        if not self.searched:
            return Scope.FIXED
        if len(self.searches) > 1:
            return Scope.SEARCHES
        return Scope.BORROWED if pool.freedom else Scope.ONE_SEARCH

    def score(self, embedding: str, metric: str, pool: Pool) -> Score:
        """Mean and 95% confidence interval, without the noise of the test classes."""
        noise = self.noise(embedding, metric, pool)
        if noise is None:  # of one search, the seeds alone
            found = self.scores(embedding, metric) or [[]]
            noise = seed_noise(found[0]) if len(found) == 1 else None
            if noise is None:
                return Score(self.mean(embedding, metric), None)
        half = float(Spread(np.sqrt(noise.of_mean), noise.freedom).half_width)
        return Score(self.mean(embedding, metric), half if self.random else None)

    def class_means(
        self, embedding: str, metric: str, runs: Sequence[TestRecord] = ()
    ) -> tuple[Array, tuple[int, ...]] | None:
        """Score and number of queries of each class with queries; None without such scores.

        Args:
            runs: records to average over; by default all, within searches and then over them.
        """
        groups = [list(runs)] if runs else self.searches
        queries = tuple(self.newest.class_queries)
        means = []
        for group in groups:
            found = [record.per_class.get(embedding, {}).get(metric) for record in group]
            if not queries or any(values is None for values in found):
                return None
            if any(tuple(record.class_queries) != queries for record in group):
                return None
            means.append(np.mean(np.array(found, float), axis=0))
        counts = np.array(queries) > 0
        return np.mean(means, axis=0)[counts], tuple(np.array(queries)[counts].tolist())


def seed_noise(runs: Sequence[float]) -> Noise | None:
    """Noise of the mean of runs that differ in their seeds alone; None of fewer than two."""
    if len(runs) < 2:
        return None
    of_mean = float(np.var(runs, ddof=1)) / len(runs)
    return Noise(of_mean, of_mean, len(runs) - 1)


def pool_of(samples: Sequence[Sample], embedding: str, metric: str) -> Pool:
    """The variance over searches that some rows share."""
    variances, degrees = [], []
    for sample in samples:
        found = sample.scores(embedding, metric)
        if sample.searched and found is not None and len(found) > 1:
            variances.append(np.var([np.mean(row) for row in found], ddof=1))
            degrees.append(len(found) - 1)
    if not degrees:
        return Pool(0.0, 0.0)
    variance, freedom = pooled(variances, degrees)
    return Pool(float(variance), float(freedom))


def shared_runs(one: Sample, other: Sample) -> list[tuple[TestRecord, TestRecord]]:
    """Records of two rows with the same seed and repetition; all of them where one is not random.

    Such runs start from the same weights and batches, as far as their losses allow it.
    """
    if not (one.random and other.random):
        return [(a, b) for a in one.records for b in other.records]
    mine, theirs = ({run_of(r): r for r in sample.records} for sample in (one, other))
    return [(mine[run], theirs[run]) for run in sorted(mine.keys() & theirs.keys())]


def paired_noise(
    runs: Sequence[tuple[TestRecord, TestRecord]], embedding: str, metric: str
) -> Noise | None:
    """Seed noise of the difference of runs that share their seeds; None from too few of them.

    For records of one search each, whose search noise nobody measured.
    """
    differences = differences_of(runs, embedding, metric)
    if differences is None or len(differences) < MIN_PAIRS:
        return None
    return seed_noise(differences)


def differences_of(
    runs: Sequence[tuple[TestRecord, TestRecord]], embedding: str, metric: str
) -> list[float] | None:
    """One difference for each pair of runs; None if a record lacks this score."""
    scores = [
        [record.scores.get(embedding, {}).get(metric) for record in records] for records in runs
    ]
    if not scores or any(score is None for pair in scores for score in pair):
        return None
    return [a - b for a, b in scores]  # type: ignore[operator]


def _asked(row: list[TestRecord]) -> bool:
    return "asked" in row[-1].search
