"""Which trial of a search is evaluated, and that old searches still can be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import study_of
from optuna.trial import TrialState, create_trial

from harness.config import RunConfig
from harness.evaluation.reproductions import evaluate
from harness.experiment import build_experiment
from harness.records.layout import CONFIG
from harness.tables import leaderboard

# Three trials of ProxyAnchor on folds of which two are hard: the first, with the best mean, owes it
# to one fold; the second is a little better than the third on all of them.
LUCKY, STEADY, USUAL = (0.3, 0.5, 0.1, 0.5), (0.14, 0.54, 0.14, 0.54), (0.1, 0.5, 0.1, 0.5)


@pytest.fixture
def searched(folder_config: RunConfig) -> RunConfig:
    """A search that is over, with parameters to be told apart by their margin."""
    experiment = build_experiment(folder_config)
    study = study_of(experiment)
    for index, (margin, folds) in enumerate([(0.1, LUCKY), (0.3, STEADY), (0.5, USUAL)]):
        trial = create_trial(
            state=TrialState.COMPLETE,
            value=sum(folds) / 4,
            params={"margin": margin, "alpha": 32.0, "loss_lr": 0.01},
            distributions=dict(experiment.space),
            user_attrs={"index": index, "worker": "one", "folds": folds, "seconds": 1.0},
        )
        study.optuna.add_trial(trial)
    (study.folder / CONFIG).write_text(folder_config.to_yaml())
    return folder_config


def margins(config: RunConfig, **values: Any) -> dict[str, float]:
    """Row of the table -> the margin that it was made with."""
    where = {"runs_dir": config.runs_dir, "results_dir": config.results_dir, "reproductions": 1}
    done = evaluate([], {**where, "workers": 1, "device": "cpu", **values})
    assert done.problems == []
    rows = leaderboard.build(done.tables[0]).frame
    trained = rows[rows["kind"] == "reproduction"]
    params = [json.loads(text) for text in trained["params"]]
    return {name: p["margin"] for name, p in zip(trained["method"], params, strict=True)}


def test_a_trial_can_be_chosen_by_its_mean_less_its_standard_error(searched: RunConfig) -> None:
    assert margins(searched) == {"proxyanchor": 0.1}
    # By differences to the mean trial, 0.35 - 0.033 is less than 0.34 - 0.017; by the folds as they
    # are, 0.35 - 0.096 is more than 0.34 - 0.115. It is a row of its own beside the usual one.
    both = margins(searched, select="mean-se")
    assert both == {"proxyanchor": 0.1, "proxyanchor+select=mean-se": 0.3}


def test_records_say_what_the_search_was_like(searched: RunConfig) -> None:
    margins(searched)
    table = Path(searched.results_dir) / build_experiment(searched).table
    row = leaderboard.build(table).frame.set_index("method").loc["proxyanchor"]
    assert row["dimensions"] == 3
    assert row["validation_sd"] == pytest.approx(0.1915, abs=1e-4)
    assert bool(row["not_flat"]) is False  # the last trial brought nothing


def test_a_search_in_a_space_of_other_days_is_evaluated_as_it_is(searched: RunConfig) -> None:
    # Today's experiment would search two parameters; its study has three.
    assert margins(searched, params={"alpha": 16.0}) == {"proxyanchor": 0.1}
