"""The work on finalists: each is trained and scored on every other partition of the classes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from filelock import Timeout

from harness.searching.finalists import key_of
from harness.searching.study import Study
from harness.system.progress import FinalistScored, Listener
from harness.system.trouble import forgiving
from harness.training.fold import run_fold, tell_validations
from harness.training.trainer import TrainingFailed
from harness.training.trial import records_of
from harness.training.trial_score import score_trial
from harness.training.unit import Unit

# The models of a trial with some parameters, on the partition of a number.
UnitsOf = Callable[[Mapping[str, Any], int], list[Unit]]


def score_finalists(study: Study, units_of: UnitsOf, listener: Listener) -> None:
    """Train every model of the finalists that nobody else trains, and score those that are done."""
    finalists = study.finalists()
    for number, finalist in enumerate(finalists, start=1):
        for partition in finalist.missing:
            units = units_of(study.params_of(finalist.trial.params), partition)
            tell = partial(study.tell_finalist, finalist.trial, partition)
            ended = partial(
                FinalistScored,
                method=study.experiment.method.name + study.experiment.seed_note,
                run=f"finalist-{number}-partition-{partition}",
                finalist=number,
                finalists=len(finalists),
                partition=partition,
            )
            work = study.folder / key_of(finalist.trial, partition)
            if not study.records.lease(work):
                continue
            study.records.fetch(records_of(units))
            try:
                scores = _score(units, ended, listener)
            except TrainingFailed as failure:
                tell(reason=str(failure))
                study.records.release(work)
                listener(ended(reason=str(failure)))
            else:
                study.records.send(records_of(units))
                if scores is not None:
                    tell(scores=scores)
                    study.records.release(work)
                    listener(ended(score=float(np.mean(scores))))


def _score(
    units: list[Unit], ended: Callable[..., FinalistScored], listener: Listener
) -> tuple[float, ...] | None:
    """Train what is missing; None if another worker is at one of the models."""
    about = ended()
    on_validation = tell_validations(listener, about.method, about.finalist, run=about.run)
    folds = []
    for unit in units:
        try:
            folds.append(forgiving(partial(run_fold, unit, on_validation, wait=False)))
        except Timeout:
            continue
    return score_trial(units, folds) if len(folds) == len(units) else None
