"""Rules that select a configuration, and how well each selects what tests best."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import spearmanr

from harness.tables.rendering import markdown_table

FINALISTS = 5
ROTATIONS = (0, 2, 4)  # other partitions that finalists can be scored on
SMOOTHED = 5  # validations that a smoothed score is the mean of
DRAWS = 2000  # of the bootstrap
TARGETS = {"concatenated": "Concatenated embeddings", "separated": "Single models"}


@dataclass(frozen=True)
class Outcome:
    """What one configuration scored.

    Attributes:
        folds: mean over folds of the best validation score of a single model.
        smoothed: the same, of scores that are means over neighbouring validations.
        partitions: score by pairs of models on each partition, the first one first.
        test: embedding -> mean test score over seeds.
    """

    loss: str
    params: dict[str, Any]
    folds: float
    smoothed: float
    partitions: list[float]
    test: dict[str, float]


Pool = Sequence[Outcome]


def by_folds(pool: Pool) -> list[float]:
    return [one.folds for one in pool]


def by_smoothed_folds(pool: Pool) -> list[float]:
    return [one.smoothed for one in pool]


def by_pairs(pool: Pool, rotations: int) -> list[float]:
    return [float(np.mean(one.partitions[: 1 + rotations])) for one in pool]


@dataclass(frozen=True)
class Rule:
    """A way to choose among configurations.

    Attributes:
        score: of each configuration of a pool.
        finalists: only so many, the best on the first partition, may be chosen; 0 is no limit.
    """

    name: str
    score: Callable[[Pool], list[float]]
    finalists: int = 0

    def choice(self, pool: Pool) -> int:
        """Position of the configuration that the rule picks."""
        scores, first = self.score(pool), by_pairs(pool, 0)
        order = sorted(range(len(pool)), key=lambda i: -first[i])
        allowed = order[: self.finalists] if self.finalists else order
        return max(sorted(allowed), key=lambda i: scores[i])


def rules_for(rotations: int) -> list[Rule]:
    """All rules that can be compared with so many other partitions."""
    several = [count for count in ROTATIONS[1:] if count <= rotations]
    return [
        Rule("folds", by_folds),
        Rule("folds, smoothed", by_smoothed_folds),
        Rule("pairs", partial(by_pairs, rotations=0)),
        *(
            Rule(f"pairs, {count} rotations", partial(by_pairs, rotations=count), FINALISTS)
            for count in several
        ),
    ]


def correlation(rule: Rule, pools: Sequence[Pool], target: str) -> float:
    """Mean over losses of the rank correlation of a rule's scores with the test scores."""
    found = [
        spearmanr(rule.score(pool), [one.test[target] for one in pool]).statistic
        for pool in pools
        if len({one.test[target] for one in pool}) > 1 and len(set(rule.score(pool))) > 1
    ]
    return float(np.mean(found)) if found else float("nan")


def regret(rule: Rule, pools: Sequence[Pool], target: str) -> float:
    """Mean over losses of the test score that a rule loses against the best of its pool."""
    lost = []
    for pool in pools:
        test = [one.test[target] for one in pool]
        lost.append(max(test) - test[rule.choice(pool)])
    return float(np.mean(lost))


def random_regret(pools: Sequence[Pool], target: str) -> float:
    """What a random choice loses on average."""
    tests = [[one.test[target] for one in pool] for pool in pools]
    return float(np.mean([max(test) - np.mean(test) for test in tests]))


def interval(
    measure: Callable[[Sequence[Pool]], float], pools: Sequence[Pool], draws: int = DRAWS
) -> tuple[float, float]:
    """95% bootstrap interval: configurations of each loss are drawn with replacement."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(draws):
        drawn = [[pool[i] for i in rng.integers(len(pool), size=len(pool))] for pool in pools]
        found.append(measure(drawn))
    if np.isnan(found).all():
        return float("nan"), float("nan")
    low, high = np.nanpercentile(found, [2.5, 97.5])
    return float(low), float(high)


def smoothed_best(history: Iterable[tuple[int, float, float]]) -> float:
    """The best mean over neighbouring validations."""
    scores = np.array([score for _, _, score in history])
    width = min(SMOOTHED, len(scores))
    return float(np.convolve(scores, np.ones(width) / width, mode="valid").max())


def spread(scores: Sequence[float | None], count: int) -> list[int]:
    """Positions of some of the better half of all trials, evenly by rank.

    Args:
        scores: of all trials; None for one that failed.
    """
    done = [i for i, score in enumerate(scores) if score is not None]
    better = sorted(done, key=lambda i: -(scores[i] or 0))[: max(count, len(done) // 2)]
    places = np.linspace(0, len(better) - 1, min(count, len(better))).round().astype(int)
    return [better[place] for place in dict.fromkeys(places.tolist())]


def describe(pools: Mapping[str, Pool], rotations: int) -> list[str]:
    """One Markdown table per embedding: each rule for every loss, then over all of them."""
    sizes = ", ".join(f"{len(pool)} of {loss}" for loss, pool in pools.items())
    lines = [
        f"Configurations: {sizes}. Regret is the best test score of a loss's configurations "
        "minus that of the chosen one, in points of MAP@R. Parentheses hold 95% bootstrap "
        "intervals over configurations.",
    ]
    for target, title in TARGETS.items():
        rows = pd.DataFrame(_rows(pools, rotations, target))
        lines += ["", f"## {title}", "", *markdown_table(rows)]
    return lines


def _rows(pools: Mapping[str, Pool], rotations: int, target: str) -> Iterator[dict[str, str]]:
    groups = {loss: [pool] for loss, pool in pools.items()}
    if len(pools) > 1:
        groups["all"] = list(pools.values())
    for loss, group in groups.items():
        for rule in rules_for(rotations):
            ranked = partial(correlation, rule, target=target)
            lost = partial(regret, rule, target=target)
            yield {
                "loss": loss,
                "rule": rule.name,
                "rank correlation": _with_interval(ranked, group),
                "regret": _with_interval(lost, group, scale=100),
            }
        chance = f"{100 * random_regret(group, target):.2f}"
        yield {"loss": loss, "rule": "random choice", "rank correlation": "0", "regret": chance}


def _with_interval(
    measure: Callable[[Sequence[Pool]], float], pools: Sequence[Pool], scale: float = 1
) -> str:
    found = [scale * value for value in (measure(pools), *interval(measure, pools))]
    return "{:.2f} ({:.2f} to {:.2f})".format(*found)
