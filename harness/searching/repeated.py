"""Repeated searches of one method, which show how much of a score is luck of the search."""

from __future__ import annotations

from collections.abc import Iterable

from harness.config import RunConfig
from harness.experiment import build_experiment


def repeated(configs: Iterable[RunConfig]) -> list[RunConfig]:
    """One config for each search that the configs ask for.

    Search k has the seed of the config plus k. A method without anything to search is searched
    once: its reproductions measure all noise there is.
    """
    return [one for config in configs for one in _searches_of(config)]


def _searches_of(config: RunConfig) -> list[RunConfig]:
    if config.searches == 1:
        return [config]
    count = config.searches if build_experiment(config).space else 1
    return [
        config.updated({"seed": config.seed + k, "repeat": config.repeat + k, "searches": 1})
        for k in range(count)
    ]
