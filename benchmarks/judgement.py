"""Error rates and power of the judgement, on simulated tables.

    python -m benchmarks.judgement

Estimates how much searches, seeds and test classes change scores from the committed records, draws
tables with that noise and without any true difference, and counts false claims: of the judgement,
and of the rule that it replaced (a paired t-test over seeds, and a bootstrap over test classes).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

import numpy as np
from scipy import stats

from harness.judgement.judge import read_samples
from harness.judgement.samples import Sample
from harness.judgement.statistic import (
    LEVEL,
    Array,
    class_variance,
    holm,
    moderated,
    pooled,
    together,
)

TABLES = (
    "results/frozen/cub-efficientnet_lite0",
    "results/frozen/cars-efficientnet_lite0",
)
ROWS, CLASSES = 12, 100
REPRODUCTIONS = {"10 in total": (4, 3, 3), "4 each": (4, 4, 4)}
PAIRS = np.array(list(combinations(range(ROWS), 2)))
# As in the committed tables: eight planned pairs, and all others.
PLANNED = 8
RESAMPLES = 500  # of test classes, for the rule that was replaced
BATCH = 100  # tables at a time


@dataclass(frozen=True)
class Components:
    """Standard deviations of scores, in points of MAP@R.

    Attributes:
        search: another search of the same method.
        seed: another reproduction of the same search.
        method_class, search_class, run_class: of a method, a search or a run on a single class.
    """

    search: float
    seed: float
    method_class: float
    search_class: float
    run_class: float


def measure(tables: Sequence[str] = TABLES) -> Components:
    """Estimate the components from records.

    Search noise shows where a method coincides with its base: these are two searches of one loss.
    """
    found = [_measure(read_samples(Path(table), None, [])) for table in tables]
    means = np.mean(found, axis=0)
    return Components(*(100 * np.sqrt(np.maximum(means, 0))))


def _measure(samples: Sequence[Sample]) -> list[float]:
    """Variances of one table, in the order of Components."""
    trained = [sample for sample in samples if sample.trained]
    by_class = {sample.name: _by_class(sample) for sample in trained}
    runs = {name: len(scores) for name, scores in by_class.items()}
    profiles = {name: scores.mean(axis=0) for name, scores in by_class.items()}
    # Residuals of runs on classes, without what a whole run or a class as such changes.
    seed = np.mean([scores.mean(axis=1).var(ddof=1) for scores in by_class.values()])
    run_class = np.mean(
        [
            (scores - scores.mean(axis=1, keepdims=True)).var(axis=0, ddof=1).mean()
            for scores in by_class.values()
        ]
    )
    twins = [(s.name, s.coincides_with) for s in trained if s.coincides_with in profiles]
    apart = [(profiles[a] - profiles[b], 1 / runs[a] + 1 / runs[b]) for a, b in twins]
    search = np.mean([(d.mean() ** 2 - share * seed) / 2 for d, share in apart])
    search_class = np.mean([(d.var(ddof=1) - share * run_class) / 2 for d, share in apart])
    every = np.array([profile - profile.mean() for profile in profiles.values()])
    method_class = (every - every.mean(axis=0)).var(axis=0, ddof=1).mean()
    method_class -= search_class + run_class / np.mean(list(runs.values()))
    return [search, seed, method_class, search_class, run_class]


def _by_class(sample: Sample) -> Array:
    """(runs, classes) concatenated MAP@R."""
    return np.array([r.per_class["concatenated"]["map_at_r"] for r in sample.records], float)


def draw(
    rng: np.random.Generator,
    tables: int,
    components: Components,
    reproductions: Sequence[int],
    effects: Sequence[float] = (),
) -> Array:
    """(tables, rows, searches, classes) scores in points, averaged over reproductions.

    Args:
        effects: true score of each row; none differ without it.
    """
    searches, c = len(reproductions), components
    shape = (tables, ROWS, searches, CLASSES)
    per_run = 1 / np.sqrt(np.array(reproductions))
    scores = c.method_class * rng.standard_normal((tables, ROWS, 1, CLASSES))
    scores = scores + c.search * rng.standard_normal((tables, ROWS, searches, 1))
    scores += c.seed * rng.standard_normal((tables, ROWS, searches, 1)) * per_run[:, None]
    scores += c.search_class * rng.standard_normal(shape)
    scores += c.run_class * rng.standard_normal(shape) * per_run[:, None]
    if len(effects):
        scores += np.asarray(effects)[:, None, None]
    return scores


def p_values(scores: Array) -> Array:
    """(tables, pairs) uncorrected p-values of the judgement."""
    by_search = scores.mean(axis=-1)
    searches = by_search.shape[-1]
    own = by_search.var(axis=-1, ddof=1)
    shared, freedom = pooled(own, np.full(own.shape, searches - 1))
    noise = moderated(own, searches, shared[:, None], freedom[:, None])
    profiles = scores.mean(axis=2)
    one, other = PAIRS.T
    apart = profiles[:, one] - profiles[:, other]
    mean = apart.mean(axis=-1)
    classes = class_variance(apart, np.ones(CLASSES), mean)
    return together(noise[:, one], noise[:, other], classes, CLASSES).p_value(mean)


def families(p: Array) -> Array:
    """(tables, pairs) p-values, corrected within the planned pairs and within the others."""
    return np.concatenate([holm(p[:, :PLANNED]), holm(p[:, PLANNED:])], axis=1)


def old_claims(rng: np.random.Generator, tables: int, c: Components) -> tuple[Array, Array]:
    """(tables, pairs) claims of the former rule, for one pair alone and with Holm's correction.

    One search of each row and ten runs with shared seeds.
    """
    runs = 10
    rows = c.method_class * rng.standard_normal((tables, ROWS, 1, CLASSES))
    rows = rows + c.search * rng.standard_normal((tables, ROWS, 1, 1))
    rows += c.search_class * rng.standard_normal((tables, ROWS, 1, CLASSES))
    scores = rows + c.seed * rng.standard_normal((tables, ROWS, runs, 1))
    scores += c.run_class * rng.standard_normal((tables, ROWS, runs, CLASSES))
    one, other = PAIRS.T
    means = scores.mean(axis=-1)
    seeds = stats.ttest_1samp(means[:, one] - means[:, other], 0, axis=-1).pvalue
    profiles = scores.mean(axis=2)
    draws = rng.multinomial(CLASSES, np.full(CLASSES, 1 / CLASSES), RESAMPLES) / CLASSES
    drawn = (profiles[:, one] - profiles[:, other]) @ draws.T
    low, high = np.quantile(drawn, [LEVEL / 2, 1 - LEVEL / 2], axis=-1)
    shown = (low > 0) | (high < 0)
    return shown & (seeds < LEVEL), shown & (holm(seeds) < LEVEL)


@dataclass(frozen=True)
class Rates:
    """Shares of false claims where no row differs.

    Attributes:
        pair: of single pairs, without correction.
        planned, others: of families with any claim.
        table: of tables with a claim in any family.
    """

    pair: float
    planned: float
    others: float
    table: float


def error_rates(tables: int, components: Components, reproductions: Sequence[int]) -> Rates:
    """False claims of the judgement."""
    rng = np.random.default_rng(0)
    found = [
        p_values(draw(rng, BATCH, components, reproductions)) for _ in range(-(-tables // BATCH))
    ]
    p = np.concatenate(found)
    claims = families(p) < LEVEL
    planned, others = claims[:, :PLANNED].any(axis=1), claims[:, PLANNED:].any(axis=1)
    rates = ((p < LEVEL).mean(), planned.mean(), others.mean(), (planned | others).mean())
    return Rates(*map(float, rates))


def old_error_rates(tables: int, components: Components) -> tuple[float, float]:
    """False claims of the former rule: of single pairs, and of tables with any."""
    rng = np.random.default_rng(0)
    found = [old_claims(rng, BATCH // 5, components) for _ in range(-(-tables // (BATCH // 5)))]
    alone = np.concatenate([single for single, _ in found])
    corrected = np.concatenate([table for _, table in found])
    return float(alone.mean()), float(corrected.any(axis=1).mean())


def power(
    tables: int, components: Components, reproductions: Sequence[int], effect: float
) -> tuple[float, float]:
    """How often a planned pair, and another one, is claimed if one row is better than all others.

    Args:
        effect: true difference in points.
    """
    rng = np.random.default_rng(1)
    effects = [effect] + [0.0] * (ROWS - 1)
    found = [
        families(p_values(draw(rng, BATCH, components, reproductions, effects)))
        for _ in range(-(-tables // BATCH))
    ]
    claims = np.concatenate(found) < LEVEL
    # The first row is in all planned pairs, which are the first ones, and in some of the others.
    return float(claims[:, :PLANNED].mean()), float(claims[:, PLANNED : ROWS - 1].mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tables", type=int, default=4000, help="simulated tables")
    tables = parser.parse_args().tables
    components = measure()
    print("standard deviations in points, from the committed records:")
    for name, value in vars(components).items():
        print(f"  {name:14} {value:.2f}")
    for what, assumed in (
        ("with search noise", components),
        ("without search noise", replace(components, search=0.0, search_class=0.0)),
    ):
        pair, table = old_error_rates(tables // 4, assumed)
        print(f"former rule, one search of 10 reproductions, {what}:")
        print(f"  false claims {pair:.1%} per pair, {table:.1%} of tables with any after Holm")
    for name, reproductions in REPRODUCTIONS.items():
        rates = error_rates(tables, components, reproductions)
        print(f"judgement, 3 searches, reproductions {name}:")
        print(f"  false claims {rates.pair:.1%} per pair, {rates.table:.1%} of tables with any")
        print(f"  {rates.planned:.1%} of planned families, {rates.others:.1%} of other families")
        for effect in (0.5, 1.0, 2.0):
            planned, other = power(tables // 4, components, reproductions, effect)
            print(f"  power for {effect} points: {planned:.2f} planned, {other:.2f} other pairs")


if __name__ == "__main__":
    main()
