"""A search without training, and a list of what is trained."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from harness.records.records import FoldRecord
from harness.searching import loop
from harness.training import fold as training
from harness.training.unit import Unit


@pytest.fixture
def objective(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Replaces training by a function of the parameters; counts its calls."""
    fake = SimpleNamespace(calls=[], folds=(-0.1, 0.0, 0.1, 0.0))
    fake.function = lambda params: -((params["margin"] - 0.2) ** 2)

    def run_trial(units: Sequence[Unit], report: Any, enough: Any) -> list[Any]:
        params = dict(units[0].params)
        fake.calls.append(params)
        score = fake.function(params)
        folds = [SimpleNamespace(best_score=score + d, seconds=1.0) for d in fake.folds]
        return next((folds[:n] for n in range(1, 5) if enough(folds[:n])), folds)

    monkeypatch.setattr(loop, "run_trial", run_trial)
    return fake


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[Unit]:
    """The units that are really trained."""
    found: list[Unit] = []
    real = training._train

    def train(unit: Unit, *more: Any) -> FoldRecord:
        found.append(unit)
        return real(unit, *more)

    monkeypatch.setattr(training, "_train", train)
    return found
