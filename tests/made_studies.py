"""Studies with made-up trials, for tests of what is shown of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
from optuna.trial import TrialState, create_trial

from harness.config import RunConfig
from harness.records.layout import CONFIG
from harness.searching.journal import Journal
from harness.system.files import write_text


def put_study(config: RunConfig, name: str, reason: str, **identity: Any) -> Path:
    """One trial that is complete and one that failed, where a search would put them.

    Args:
        name: protocol / data set - trunk / method.
        reason: of the failure.
    """
    folder = Path(config.runs_dir, name)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(
        storage=Journal(folder).optuna, study_name=name, direction="maximize"
    )
    usual = {"method": folder.name, "protocol": {}, "fixed_params": {}}
    study.set_user_attr("identity", {**usual, **identity})
    done = {"index": 0, "folds": [0.1, 0.2, 0.3, 0.4], "seconds": 1.0}
    study.add_trial(create_trial(values=[0.25], user_attrs=done))
    failed = {"index": 1, "reason": reason}
    study.add_trial(create_trial(state=TrialState.FAIL, user_attrs=failed))
    write_text(folder / CONFIG, config.to_yaml())
    return folder
