"""Equal chances: how many trials, in which space, and which of them is taken."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import study_of

from harness.config import RunConfig
from harness.errors import HarnessError
from harness.experiment import build_experiment
from harness.searching.loop import search
from harness.searching.study import sampler_of

FOLDS = (-0.1, 0.0, 0.1, 0.0)  # what they differ by in difficulty


def count(config: RunConfig, **values: Any) -> int:
    return search([config.updated(values)])[0].trials


def test_trials_can_be_asked_for_by_the_dimension(
    config: RunConfig, objective: SimpleNamespace
) -> None:
    assert len(build_experiment(config).space) == 3
    assert count(config, trials_per_dimension=4) == 12
    fixed = config.updated({"params": {"alpha": 32.0}, "runs_dir": f"{config.runs_dir}/fixed"})
    assert count(fixed, trials_per_dimension=4) == 8


def test_a_search_that_still_rises_goes_on_until_it_is_flat(
    config: RunConfig, objective: SimpleNamespace
) -> None:
    objective.folds = (0.0, 0.0, 0.0, 0.0)  # no noise: every rise is one
    # Rises up to the 14th trial, then never again.
    objective.function = lambda params: min(len(objective.calls), 14) / 100
    # After 17 trials the last fifth, four of them, holds the 14th; after 18 too; 18 - 4 = 14.
    assert count(config, trials=10, until_flat=True) == 18
    assert count(config, trials=10, until_flat=True) == 18  # and does not begin anew


def test_it_goes_on_to_the_limit_at_most(config: RunConfig, objective: SimpleNamespace) -> None:
    objective.folds = (0.0, 0.0, 0.0, 0.0)
    objective.function = lambda params: len(objective.calls) / 100
    assert count(config, trials=5, until_flat=True, max_trials=9) == 9
    # A limit below what was asked for takes nothing away.
    assert count(config, trials=12, until_flat=True, max_trials=9) == 12


def test_a_rise_within_the_noise_of_the_folds_is_flat(
    config: RunConfig, objective: SimpleNamespace
) -> None:
    def function(params: dict[str, Any]) -> float:
        del params
        noise = 0.1 if len(objective.calls) % 2 else -0.1  # between the 8th and the 10th it turns
        objective.folds = (noise, -noise, 0.0, 0.0) if len(objective.calls) < 9 else FOLDS
        return len(objective.calls) / 1000

    objective.function = function
    # The differences to the best of the first eight have a standard error of 0.02 and more.
    summary = search([config.updated({"trials": 10, "until_flat": True})])[0]
    assert summary.flat and summary.trials == 10


def test_a_small_rise_on_every_fold_is_one_however_folds_differ(
    config: RunConfig, objective: SimpleNamespace
) -> None:
    objective.folds = FOLDS  # a standard error of 0.04
    objective.function = lambda params: len(objective.calls) / 1000
    assert not search([config.updated({"trials": 10})])[0].flat


def test_the_summary_tells_dimensions_and_every_score(
    config: RunConfig, objective: SimpleNamespace
) -> None:
    objective.function = lambda params: float(len(objective.calls))
    summary = search([config.updated({"trials": 3})])[0]
    assert summary.dimensions == 3
    assert summary.trial_scores == (1.0, 2.0, 3.0)
    assert not summary.flat


def test_a_study_of_another_space_is_named_with_the_space_it_has(
    config: RunConfig, objective: SimpleNamespace
) -> None:
    count(config, trials=2, params={"alpha": 32.0})
    with pytest.raises(HarnessError) as refused:
        count(config, trials=3)
    message = str(refused.value)
    assert "was searched in another space, margin [-0.2, 1], loss_lr [1e-06, 1] log" in message
    assert "`harness eval` works with it as it is" in message


def test_the_paper_s_space_is_a_method_of_its_own(config: RunConfig) -> None:
    usual = build_experiment(config.updated({"loss": "ccp-c2"}))
    paper = build_experiment(config.updated({"loss": "ccp-c2", "space": "paper"}))
    assert paper.method.name == "ccp-c2+space=paper"
    assert set(paper.space) == {"reference_weight", "proxies_per_class", "pool_ratio"}
    assert set(usual.space) > {"pos_margin", "neg_margin", "batch_share", "loss_lr"}
    assert paper.runs.name == "ccp-c2+space=paper" and usual.runs.name == "ccp-c2"
    assert study_of(paper).optuna.study_name.endswith("/ccp-c2+space=paper")


def test_a_method_without_another_space_says_so(config: RunConfig) -> None:
    with pytest.raises(HarnessError, match=r"no other space of triplet named 'paper'"):
        build_experiment(config.updated({"loss": "triplet", "space": "paper"}))


def test_a_grid_of_one_parameter_is_searched_like_others_where_there_are_more(
    config: RunConfig,
) -> None:
    alone = build_experiment(config.updated({"loss": "fastap"}))
    assert set(alone.space) == {"num_bins"} and sampler_of(alone) == "grid"
    frozen = build_experiment(config.updated({"loss": "fastap", "protocol": "frozen"}))
    assert set(frozen.space) == {"num_bins", "head_lr"} and sampler_of(frozen) == "gp"
    other = replace(frozen, method=replace(frozen.method, sampler="tpe"))
    assert sampler_of(other) == "tpe"
