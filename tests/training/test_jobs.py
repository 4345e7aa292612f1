"""A config is resolved once in every process that works on it."""

from __future__ import annotations

import pickle
from collections import Counter
from typing import Any

import pytest

from harness import registry
from harness.config import RunConfig
from harness.experiment import build_experiment
from harness.searching.loop import search
from harness.training.opened import open_experiment


def test_a_search_in_one_process_resolves_its_config_once(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: Counter[str] = Counter()

    def count(name: str) -> None:
        plain = getattr(registry, name)

        def counted(*arguments: Any, **named: Any) -> Any:
            calls[name] += 1
            return plain(*arguments, **named)

        monkeypatch.setattr(registry, name, counted)

    for name in ("load_method", "load_dataset", "load_protocol", "load_trunk"):
        count(name)
    search([config.updated({"trials": 1, "workers": 1})])
    assert set(calls.values()) == {1}


def test_an_experiment_that_is_sent_to_another_process_is_resolved_there(
    config: RunConfig,
) -> None:
    here = open_experiment(build_experiment(config), fixed="+preset=paper")
    there = pickle.loads(pickle.dumps(here)).placed("cpu", loader_workers=2)
    assert there.experiment is not here.experiment
    assert (there.identity, there.label) == (here.identity, here.label)
    assert there.experiment.config.loader_workers == 2
    assert here.placed("cpu", loader_workers=2).experiment.config == there.experiment.config
