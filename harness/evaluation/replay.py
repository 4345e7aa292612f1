"""The two stages of `select=replay`: one model finds out how long to train, another is tested."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from harness.evaluation.runs import Reproduction
from harness.records.records import FoldFacts, FoldRecord
from harness.training.replay import build_second_trainer, replayed


class Replay(Reproduction):
    """A model that is validated, then one of all trainval classes."""

    def finish(self) -> None:
        path = self.job.record_paths(self.repetition)[0]
        (first,) = self.units(self.opened.experiment)
        if not path.exists():
            self.train(first)
        record = first.find_record()
        if record is None:  # another worker is at it
            return
        (second,) = self.units(replayed(self.opened.experiment, record))
        if not path.exists():
            self.train(second, partial(build_second_trainer, first=record))
            self.test([second], path)
        self.measure([second], path)

    def facts(self, folds: Sequence[FoldRecord]) -> list[FoldFacts]:
        """Of the first model, which has a score, and of the second."""
        (first,) = self.units(self.opened.experiment)
        record = first.find_record()
        assert record is not None, "the second model was made from its record"
        return [record.facts(scored=True), *(fold.facts(scored=False) for fold in folds)]
