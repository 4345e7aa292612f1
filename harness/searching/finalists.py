"""The best trials of a search, scored again on other partitions of the classes.

A trial's score on one partition owes something to luck, and the best of many owes most. The best
mean over several partitions, each with other seeds, is a safer choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from optuna.trial import FrozenTrial, TrialState

from harness.records.rows import setting
from harness.searching.trials import index_of


@dataclass(frozen=True)
class Finalist:
    """A trial and what it scored on each partition.

    Attributes:
        scores: those that its score on a partition is the mean of, by partition; the first ones
            are the trial's. None where they are missing.
        failures: partition -> why the trial could not be scored there.
    """

    trial: FrozenTrial
    scores: tuple[tuple[float, ...] | None, ...]
    failures: Mapping[int, str]

    @property
    def missing(self) -> list[int]:
        """Partitions on which the trial is still to be scored."""
        return [
            number
            for number, scores in enumerate(self.scores)
            if scores is None and number not in self.failures
        ]

    @property
    def means(self) -> list[float]:
        """The score on each partition that has one."""
        return [float(np.mean(scores)) for scores in self.scores if scores is not None]

    @property
    def parts(self) -> tuple[float, ...]:
        """The scores on all partitions, one partition after the other."""
        return tuple(score for scores in self.scores for score in scores or ())

    @property
    def mean(self) -> float:
        """Over all partitions."""
        return float(np.mean(self.means))


KEY = "finalist {index} on partition {partition}"


def key_of(trial: FrozenTrial, partition: int) -> str:
    """Names what a study keeps of a finalist on one partition."""
    return KEY.format(index=index_of(trial), partition=partition)


def is_finalist_key(name: str) -> bool:
    """Whether a user attribute of a study is about a finalist."""
    return name.startswith(KEY.partition("{")[0])


def finalists_in(
    trials: Sequence[FrozenTrial], kept: Mapping[str, Any], protocol: Mapping[str, Any]
) -> list[Finalist]:
    """The finalists of a search, best first by the first partition.

    Trials with the same parameters count once. A choice between fewer than two needs no finalists.

    Args:
        kept: user attributes of the study.
        protocol: fields of the protocol, as identities state them.
    """
    count, rotations = setting(protocol, "finalists"), setting(protocol, "rotations")
    done = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    done.sort(key=lambda trial: (-trial.values[0], index_of(trial)))
    distinct: list[FrozenTrial] = []
    for trial in done:
        if len(distinct) < count and trial.params not in [other.params for other in distinct]:
            distinct.append(trial)
    if len(distinct) < 2:
        return []
    return [_finalist(trial, kept, rotations) for trial in distinct]


def _finalist(trial: FrozenTrial, kept: Mapping[str, Any], rotations: int) -> Finalist:
    scores: list[tuple[float, ...] | None] = [tuple(trial.user_attrs["scores"])]
    failures = {}
    for partition in range(1, 1 + rotations):
        facts = kept.get(key_of(trial, partition), {})
        if facts.get("params") != trial.params:  # of another trial, before a study was rebuilt
            facts = {}
        if "reason" in facts:
            failures[partition] = facts["reason"]
        scores.append(tuple(facts["scores"]) if "scores" in facts else None)
    return Finalist(trial, tuple(scores), failures)


def winner_of(finalists: Sequence[Finalist]) -> Finalist | None:
    """The best mean over all partitions; the earlier trial of two equal ones.

    None as long as a partition is missing. A trial that failed on one of them cannot win.
    """
    if any(finalist.missing for finalist in finalists):
        return None
    scored = [finalist for finalist in finalists if not finalist.failures]
    if not scored:
        return None
    return max(scored, key=lambda finalist: (finalist.mean, -index_of(finalist.trial)))


def partition_noise(finalists: Sequence[Finalist]) -> float | None:
    """Standard deviation of a trial's score between partitions; None if it cannot be told.

    Without what a partition adds to all finalists alike: some classes are easier than others.
    """
    scores = np.array([f.means for f in finalists if not f.failures and not f.missing])
    if scores.ndim != 2 or min(scores.shape) < 2:
        return None
    rows, columns = scores.mean(axis=1, keepdims=True), scores.mean(axis=0, keepdims=True)
    rest = scores - rows - columns + scores.mean()
    freedom = (scores.shape[0] - 1) * (scores.shape[1] - 1)
    return float(np.sqrt((rest**2).sum() / freedom))
