"""Runs whose weights are selected on the test classes, as many papers report them.

Every look at the test classes, one an epoch, is in the ledger. The scores of the last epoch stand
beside those that were selected.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from harness.data.sources import open_part
from harness.evaluation.runs import Reproduction
from harness.evaluation.scoring import describe_test
from harness.model.network import Model
from harness.records.layout import LAST_WEIGHTS
from harness.records.records import TEST_SELECTED, FoldFacts, FoldRecord
from harness.training.embed import embed_with
from harness.training.trainer import Trainer
from harness.training.unit import Unit, evaluation_loader


class SelectedOnTest(Reproduction):
    """One model that is tested at the end of its epochs."""

    kind = TEST_SELECTED

    def finish(self) -> None:
        path = self.job.record_paths(self.repetition)[0]
        (unit,) = self.units(self.opened.experiment)
        if not path.exists():
            self.train(unit, self.build_trainer)
            self.test([unit], path)
        self.measure([unit], path)

    def build_trainer(self, unit: Unit, device: torch.device) -> Trainer:
        experiment, metric = unit.experiment, unit.experiment.protocol.metric
        loader = evaluation_loader(experiment, device)
        test = open_part(experiment, "test")

        def look(model: Model, step: int) -> float:
            del step
            self.opened.note_opening(self.job.params, self.repetition)
            normalizer = experiment.method.normalizer
            embeddings = embed_with(model, test, test.indices, loader, normalizer)
            described = describe_test(
                experiment, unit.trainval, test, {"concatenated": [embeddings]}
            )
            return described.evaluate(embeddings, (metric,)).values[metric]

        return unit.build_trainer(device, validate=look)

    def facts(self, folds: Sequence[FoldRecord]) -> list[FoldFacts]:
        """With the course of its scores, of which none is one of validation."""
        facts = [fold.facts(scored=True) for fold in folds]
        for fold in facts:
            fold.pop("best_score")
        return facts

    def score(self, units: Sequence[Unit]) -> dict[str, Any]:
        measured = super().score(units)
        protocol = self.opened.experiment.protocol
        last = self.embed(units, LAST_WEIGHTS).scores(protocol.test_metrics or ())
        return {**measured, "last": last}
