"""Which parameters to try next: published ones, then spread points, then a sampler's choice."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import FrozenTrial, TrialState
from scipy.stats import qmc

from harness.errors import HarnessError, unknown
from harness.losses.method import on_step

if TYPE_CHECKING:
    from harness.losses.method import Space

START_POINTS = 10
GRID_LEVELS = 5  # values of a real parameter in a grid

SAMPLERS = ("gp", "tpe", "random", "grid")
LEARNING = ("gp", "tpe")  # to which it matters what was tried


def check_sampler(name: str) -> None:
    if name not in SAMPLERS:
        raise unknown("sampler", name, SAMPLERS)


def check_first(space: Space, published: Mapping[str, Any], preset: str) -> None:
    """Refuse a preset that lies outside of the space that is searched."""
    for param, distribution in space.items():
        value = published[param]
        if not distribution._contains(distribution.to_internal_repr(value)):
            raise HarnessError(
                f"preset '{preset}' has {param}={value}, which is searched in "
                f"{spell_range(distribution)} only\n"
                f"  keep it out of the search: --set params.{param}={value}; or take another preset"
            )


def planned(
    name: str, space: Space, published: Mapping[str, Any], seed: int
) -> list[dict[str, Any]]:
    """The trials that are known before any is run: all of them for a grid."""
    first = {param: published[param] for param in space}
    if not space:
        return [first]
    if name == "grid":
        rest = [point for point in grid(space) if point != first]
        order = np.random.default_rng(seed).permutation(len(rest))
        return [first, *(rest[i] for i in order)]
    return [first, *sobol(space, seed)]


def sobol(space: Space, seed: int) -> list[dict[str, Any]]:
    """Points that fill the space evenly."""
    points = qmc.Sobol(len(space), rng=seed).random_base2(m=4)[:START_POINTS]
    return [
        {param: value_at(dist, u) for (param, dist), u in zip(space.items(), row, strict=True)}
        for row in points
    ]


def grid(space: Space) -> list[dict[str, Any]]:
    """Every whole number and choice, and a few values of each real parameter."""
    axes = [_levels(distribution) for distribution in space.values()]
    return [dict(zip(space, values, strict=True)) for values in itertools.product(*axes)]


def _levels(distribution: BaseDistribution) -> list[Any]:
    if isinstance(distribution, CategoricalDistribution):
        return list(distribution.choices)
    if isinstance(distribution, IntDistribution):
        return list(range(distribution.low, distribution.high + 1, distribution.step))
    levels = [value_at(distribution, u) for u in np.linspace(0, 1, GRID_LEVELS)]
    return list(dict.fromkeys(levels))  # those of a large step may be fewer


def grid_size(space: Space) -> int:
    """How many points a grid has."""
    return math.prod(len(_levels(distribution)) for distribution in space.values())


def spell_space(space: Space) -> str:
    return ", ".join(f"{name} {spell_range(dist)}" for name, dist in space.items()) or "of no size"


def spell_range(distribution: BaseDistribution) -> str:
    """As people write it: [1e-06, 1] log, or {all, negatives}."""
    if isinstance(distribution, CategoricalDistribution):
        return "{" + ", ".join(map(str, distribution.choices)) + "}"
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    log = " log" if distribution.log else ""
    return f"[{distribution.low:.4g}, {distribution.high:.4g}]{log}"


def ends_of(distribution: BaseDistribution) -> dict[str, Any]:
    """The range as plain data: its ends and whether it is logarithmic, or its choices."""
    if isinstance(distribution, CategoricalDistribution):
        return {"choices": list(distribution.choices)}
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    return {"low": distribution.low, "high": distribution.high, "log": distribution.log}


def value_at(distribution: BaseDistribution, u: float) -> Any:
    """The value at quantile u of [0, 1) of a distribution, on a log scale where it has one."""
    if isinstance(distribution, CategoricalDistribution):
        return distribution.choices[int(u * len(distribution.choices))]
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    low, high = distribution.low, distribution.high
    if isinstance(distribution, IntDistribution):
        # Half a step wider on both sides, so that the ends get their share when rounded.
        value = _between(low - 0.5, high + 0.5, u, distribution.log)
        return int(on_step(distribution, int(np.clip(round(value), low, high))))
    value = float(np.clip(_between(low, high, u, distribution.log), low, high))
    return on_step(distribution, value)


def _between(low: float, high: float, u: float, log: bool) -> float:
    return float(low * (high / low) ** u) if log else low + u * (high - low)


def propose(name: str, seed: int, space: Space, trials: Sequence[FrozenTrial]) -> dict[str, Any]:
    """What a sampler chooses after these trials, those under way among them.

    Optuna's Gaussian process passes over pruned trials, and would go back to where they failed: it
    is shown them as complete, with the scores that were expected of them.
    """
    memory = optuna.create_study(direction="maximize", sampler=make_sampler(name, seed))
    for trial in trials if name in LEARNING else ():
        if trial.state == TrialState.PRUNED:
            memory.add_trial(
                optuna.trial.create_trial(
                    params=trial.params, distributions=trial.distributions, values=trial.values
                )
            )
        elif trial.state in (TrialState.COMPLETE, TrialState.RUNNING):
            memory.add_trial(trial)
    return memory.ask(dict(space)).params


def make_sampler(name: str, seed: int) -> optuna.samplers.BaseSampler:
    """A sampler without a past: all it knows is in the study, so a restart changes nothing."""
    seed %= 2**31  # what every sampler takes
    if name == "gp":
        return optuna.samplers.GPSampler(seed=seed, n_startup_trials=START_POINTS)
    if name == "tpe":
        return optuna.samplers.TPESampler(
            seed=seed, n_startup_trials=START_POINTS, multivariate=True, constant_liar=True
        )
    return optuna.samplers.RandomSampler(seed=seed)


def on_bound(value: Any, distribution: BaseDistribution) -> str | None:
    """ "low" or "high" if a value lies within 1 % of an end of its range."""
    if isinstance(distribution, CategoricalDistribution):
        return None
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    ends = np.array([distribution.low, value, distribution.high], dtype=float)
    low, at, high = np.log(ends) if distribution.log else ends
    share = (at - low) / (high - low) if high > low else 0.5
    return "low" if share <= 0.01 else "high" if share >= 0.99 else None
