"""The search: what it tries, that it loses nothing, and what it refuses."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import optuna
import pytest
from conftest import QUICK, study_of, unit_of
from filelock import FileLock
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages import JournalStorage
from optuna.trial import TrialState, create_trial

from harness import registry
from harness.config import RunConfig
from harness.errors import HarnessError
from harness.experiment import Experiment, build_experiment
from harness.records.layout import JOURNAL
from harness.searching import loop, samplers
from harness.searching.loop import search
from harness.searching.study import Study
from harness.searching.trials import index_of
from harness.system.progress import Event, Waiting
from harness.training.jobs import Job
from harness.training.opened import open_experiment
from harness.training.trainer import TrainingFailed


class Killed(BaseException):
    """Stands for the end of the process: nothing of ours may catch it."""


def tried(config: RunConfig) -> list[dict[str, Any]]:
    """Parameters of the trials that count, in the order of their places."""
    opened = study_of(build_experiment(config))
    return [t.params for t in sorted(opened.counted(), key=index_of)]


def study_with_two_left(config: RunConfig) -> Study:
    """Eleven trials are done, so that the sampler chooses the others."""
    search([config.updated({"trials": 11})])
    return study_of(build_experiment(config.updated({"trials": 13})))


def test_the_first_trial_is_the_published_one_and_ten_spread_points_follow(
    config: RunConfig, objective: SimpleNamespace
) -> None:
    search([config.updated({"trials": 11})])
    published = build_experiment(config).published_params
    assert objective.calls[0] == published
    margins = sorted(params["margin"] for params in objective.calls[1:])
    # Ten points of a Sobol sequence: no quarter of the range is left out.
    bounds = build_experiment(config).space["margin"]
    assert isinstance(bounds, FloatDistribution)
    size = bounds.high - bounds.low
    assert {int(4 * (margin - bounds.low) / size) for margin in margins} == {0, 1, 2, 3}


def test_the_summary_names_the_best_trial_and_its_folds(
    config: RunConfig, objective: SimpleNamespace
) -> None:
    summary = search([config.updated({"trials": 6})])[0]
    best = min(objective.calls, key=lambda params: abs(params["margin"] - 0.2))
    assert summary.best_params == best
    assert summary.best_score == pytest.approx(-((best["margin"] - 0.2) ** 2))
    assert np.mean(summary.fold_scores) == pytest.approx(summary.best_score)
    assert (summary.trials, summary.failed) == (6, 0)


def test_repeating_the_command_runs_nothing_again_and_more_trials_can_be_added(
    config: RunConfig, objective: SimpleNamespace
) -> None:
    search([config.updated({"trials": 3})])
    search([config.updated({"trials": 3})])
    assert len(objective.calls) == 3
    search([config.updated({"trials": 5})])
    assert len(objective.calls) == 5


def test_an_interrupted_search_proposes_what_an_uninterrupted_one_would(
    config: RunConfig, objective: SimpleNamespace, tmp_path: Any
) -> None:
    """Thirteen trials, so that the Gaussian process chooses the last two; killed in four."""
    whole = config.updated({"trials": 13, "runs_dir": str(tmp_path / "whole")})
    search([whole])

    cut = config.updated({"trials": 13, "runs_dir": str(tmp_path / "cut")})
    function = objective.function
    for deadly in (0, 4, 11, 12):

        def die(params: Mapping[str, Any], deadly: int = deadly) -> float:
            if len(tried(cut)) == deadly:
                raise Killed
            return function(params)

        objective.function = die
        with pytest.raises(Killed):
            search([cut])
    objective.function = function
    search([cut])
    assert tried(cut) == tried(whole)


def test_a_worker_that_dies_while_claiming_changes_nothing(
    config: RunConfig, objective: SimpleNamespace, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = config.updated({"trials": 4, "runs_dir": str(tmp_path / "whole")})
    search([whole])
    cut = config.updated({"trials": 4, "runs_dir": str(tmp_path / "cut")})
    search([cut.updated({"trials": 2})])

    create = JournalStorage.create_new_trial

    def die(*arguments: Any, **more: Any) -> None:
        create(*arguments, **more)  # the trial is taken, but nobody knows of it
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(JournalStorage, "create_new_trial", die)
        with pytest.raises(Killed):
            search([cut])
    search([cut])
    assert tried(cut) == tried(whole)


def test_a_failed_trial_is_kept_with_its_reason_and_the_search_goes_on(
    config: RunConfig, objective: SimpleNamespace
) -> None:
    def fail_once(params: Mapping[str, Any]) -> float:
        if len(objective.calls) == 2:
            raise TrainingFailed("the loss became nan between steps 0 and 3")
        return params["margin"]

    objective.function = fail_once
    summary = search([config.updated({"trials": 4})])[0]
    assert (summary.trials, summary.failed) == (4, 1)
    assert summary.reasons == ("the loss became nan between steps 0 and 3",)


def test_ten_failures_at_the_start_stop_the_search(
    config: RunConfig, objective: SimpleNamespace
) -> None:
    def fail(params: Mapping[str, Any]) -> float:
        raise TrainingFailed("no such thing")

    objective.function = fail
    with pytest.raises(HarnessError, match="first 10 trials of proxyanchor all failed"):
        search([config.updated({"trials": 50})])
    assert len(objective.calls) == 10


def test_a_living_worker_keeps_its_trial_and_a_dead_one_loses_it(
    config: RunConfig, objective: SimpleNamespace
) -> None:
    opened = study_of(build_experiment(config.updated({"trials": 2})))
    with opened.storage.joined() as alive:
        opened.claim(alive)
        second = opened.claim("long-gone")
        assert second is not None
        again = opened.claim(alive)
        assert again is not None and again.params == second.params
        assert opened.claim(alive) is None
    states = [trial.state for trial in opened.optuna.get_trials()]
    assert states == [TrialState.RUNNING, TrialState.FAIL, TrialState.RUNNING]


def test_a_trial_that_is_done_is_not_run_again_for_one_that_was_begun_twice(
    config: RunConfig, objective: SimpleNamespace
) -> None:
    """As after a restart of the database between the lock of a claim and the claim itself."""
    opened = study_of(build_experiment(config.updated({"trials": 2})))
    with opened.storage.joined() as worker:
        first = opened.claim(worker)
        assert first is not None
        attributes = {"index": first.index, "worker": "long-gone"}
        twice = create_trial(state=TrialState.RUNNING, user_attrs=attributes)
        opened.storage.optuna.create_new_trial(opened._id, template_trial=twice)
        opened.finish(first, TrialState.COMPLETE, 0.5, folds=[0.5] * 4)
        second = opened.claim(worker)
        assert second is not None and second.index == first.index + 1
        opened.finish(second, TrialState.COMPLETE, 0.4, folds=[0.4] * 4)
        assert opened.claim(worker) is None
    assert [index_of(trial) for trial in opened.counted()] == [0, 1]


def test_a_trial_taken_over_keeps_its_parameters_whatever_was_learned_since(
    config: RunConfig, objective: SimpleNamespace
) -> None:
    opened = study_with_two_left(config)
    with opened.storage.joined() as survivor:
        with opened.storage.joined() as victim:
            lost, other = opened.claim(victim), opened.claim(survivor)
            assert lost is not None and other is not None
            opened.finish(other, TrialState.COMPLETE, 5.0)
        again = opened.claim(survivor)
    assert again is not None and again.params == lost.params


def test_running_trials_are_known_to_the_sampler(
    config: RunConfig, objective: SimpleNamespace
) -> None:
    opened = study_with_two_left(config)
    with opened.storage.joined() as worker:
        one, other = opened.claim(worker), opened.claim(worker)
    assert one is not None and other is not None
    assert one.params != other.params


@pytest.mark.parametrize(
    ("values", "difference"),
    [
        ({"seed": 1}, "seed: 0 there, 1 here"),
        ({"params": {"margin": 0.1}}, r"fixed_params.margin: None there, 0.1 here"),
    ],
)
def test_a_study_refuses_trials_that_measure_something_else(
    config: RunConfig, objective: SimpleNamespace, values: dict[str, Any], difference: str
) -> None:
    search([config.updated({"trials": 1})])
    with pytest.raises(HarnessError, match=difference):
        search([config.updated({"trials": 2, **values})])


def test_edited_bounds_are_refused(
    config: RunConfig,
    objective: SimpleNamespace,
    make_experiment: Callable[..., Experiment],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    search([config.updated({"trials": 1})])
    wider = {**make_experiment().space, "margin": FloatDistribution(0.0, 0.9)}
    monkeypatch.setattr(Experiment, "space", wider)
    with pytest.raises(HarnessError, match=r"space\.margin\.attributes\.high: 1\.0 there, 0\.9"):
        search([config.updated({"trials": 2})])


def test_another_version_of_the_data_is_refused(
    folder_config: RunConfig, objective: SimpleNamespace, image_folder: Path
) -> None:
    search([folder_config.updated({"trials": 1})])
    changed = image_folder / "class_00" / "0.png"
    changed.write_bytes((image_folder / "class_01" / "0.png").read_bytes())
    registry.forget_listings()
    with pytest.raises(HarnessError, match=r"data_fingerprint: \w+ there, \w+ here"):
        search([folder_config.updated({"trials": 2})])


def test_an_optimum_on_a_bound_is_flagged(config: RunConfig, objective: SimpleNamespace) -> None:
    objective.function = lambda params: -params["margin"]
    fixed = {"alpha": 32.0, "loss_lr": 0.01}
    summary = search([config.updated({"trials": 14, "params": fixed})])[0]
    assert summary.on_bound == {"margin": "low"}


def test_fixed_parameters_are_not_searched(config: RunConfig, objective: SimpleNamespace) -> None:
    search([config.updated({"trials": 4, "params": {"alpha": 17.0}})])
    assert {params["alpha"] for params in objective.calls} == {17.0}
    assert len({params["margin"] for params in objective.calls}) == 4


def test_a_grid_ends_when_every_point_was_tried(
    config: RunConfig, objective: SimpleNamespace
) -> None:
    objective.function = lambda params: params["num_bins"]
    summary = search([config.updated({"loss": "fastap", "trials": 50})])[0]
    assert summary.trials == 31
    assert objective.calls[0]["num_bins"] == 17  # the published one
    assert sorted(params["num_bins"] for params in objective.calls) == list(range(2, 33))


def test_a_journal_cut_in_the_middle_of_a_line_is_mended(
    config: RunConfig, objective: SimpleNamespace
) -> None:
    search([config.updated({"trials": 2})])
    journal = build_experiment(config).runs / JOURNAL
    with open(journal, "ab") as file:
        file.write(b'{"op_code": 4, "unfin')
    search([config.updated({"trials": 4})])
    assert len(objective.calls) == 4


@pytest.mark.parametrize("name", ["gp", "tpe", "random", "grid"])
def test_every_sampler_runs(config: RunConfig, objective: SimpleNamespace, name: str) -> None:
    search([config.updated({"trials": 12, "sampler": name})])
    assert len(objective.calls) == 12


def test_an_unknown_sampler_is_refused(config: RunConfig) -> None:
    with pytest.raises(HarnessError, match=r"no sampler named 'gb'\. Did you mean 'gp'"):
        search([config.updated({"sampler": "gb"})])


def test_values_at_the_ends_of_a_distribution() -> None:
    assert samplers.value_at(FloatDistribution(1e-4, 1.0, log=True), 0.5) == pytest.approx(1e-2)
    assert samplers.value_at(FloatDistribution(-1.0, 3.0), 0.25) == 0.0
    whole = IntDistribution(2, 5)
    assert [samplers.value_at(whole, u) for u in (0, 0.3, 0.6, 0.999)] == [2, 3, 4, 5]
    assert samplers.value_at(CategoricalDistribution((2, 4, 8)), 0.999) == 8


@pytest.mark.parametrize(
    ("value", "distribution", "end"),
    [
        (0.0, FloatDistribution(0, 1), "low"),
        (0.995, FloatDistribution(0, 1), "high"),
        (0.5, FloatDistribution(0, 1), None),
        (1e-3, FloatDistribution(1e-3, 1, log=True), "low"),
        (0.02, FloatDistribution(1e-3, 1, log=True), None),
        (32, IntDistribution(2, 32), "high"),
        ("a", CategoricalDistribution(("a", "b")), None),
    ],
)
def test_which_values_lie_on_a_bound(
    value: Any, distribution: optuna.distributions.BaseDistribution, end: str | None
) -> None:
    assert samplers.on_bound(value, distribution) == end


def test_two_workers_never_claim_the_same_place(config: RunConfig) -> None:
    first = study_of(build_experiment(config.updated({"trials": 4})))
    second = study_of(build_experiment(config.updated({"trials": 4})))
    with first.storage.joined() as one, second.storage.joined() as other:
        claims = [first.claim(one), second.claim(other), first.claim(one), second.claim(other)]
        places = [claim.index for claim in claims if claim is not None]
        assert places == [0, 1, 2, 3]
        assert first.claim(one) is None


PRUNING = f"{QUICK}+prune=true"


def test_a_hopeless_trial_is_stopped_and_spent(
    config: RunConfig, objective: SimpleNamespace
) -> None:
    """Five trials of 0.5 to 0.54, then one of 0.1: it is stopped after its first fold."""
    objective.function = lambda params: 0.1 if len(objective.calls) == 6 else 0.5 + 0.01 * min(
        len(objective.calls), 4
    )  # fmt: skip
    summary = search([config.updated({"trials": 7, "protocol": PRUNING})])[0]
    assert (summary.trials, summary.pruned, summary.failed) == (7, 1, 0)
    study = study_of(build_experiment(config.updated({"protocol": PRUNING})))
    pruned = study.counted()[5]
    assert pruned.state == TrialState.PRUNED
    assert pruned.user_attrs["folds"] == [pytest.approx(0.0)]
    assert pruned.values == [pytest.approx(0.1)]  # what its one fold lets expect of all


def test_nothing_is_stopped_unless_it_is_asked_for(
    config: RunConfig, objective: SimpleNamespace
) -> None:
    objective.function = lambda params: 0.1 if len(objective.calls) == 6 else 0.5
    assert search([config.updated({"trials": 7})])[0].pruned == 0


def test_pruning_is_in_the_name_and_its_absence_changes_no_identity(config: RunConfig) -> None:
    plain, pruning = (build_experiment(config.updated({"protocol": p})) for p in (QUICK, PRUNING))
    assert pruning.protocol.name == "mlrc+max_steps=6+prune=true+validate_every=3"
    assert "prune" not in plain.protocol.identity()
    assert pruning.protocol.identity()["prune"] is True


def test_the_sampler_knows_where_trials_were_pruned() -> None:
    """A pruned trial counts for the Gaussian process as if it had the score expected of it."""
    space = {"x": FloatDistribution(0.0, 1.0)}

    def trial(x: float, value: float, state: TrialState) -> optuna.trial.FrozenTrial:
        return optuna.trial.create_trial(
            params={"x": x}, distributions=dict(space), value=value, state=state
        )

    points = np.linspace(0.0, 1.0, 11)
    complete = [trial(x, -((x - 0.3) ** 2), TrialState.COMPLETE) for x in points]
    some = complete[:6]
    rest = [trial(t.params["x"], t.values[0], TrialState.PRUNED) for t in complete[6:]]
    told = samplers.propose("gp", 1, space, [*some, *rest])
    assert told == samplers.propose("gp", 1, space, complete)
    assert told != samplers.propose("gp", 1, space, some)


@pytest.mark.parametrize("name", ["gp", "tpe"])
def test_workers_side_by_side_propose_different_points(
    config: RunConfig, objective: SimpleNamespace, name: str
) -> None:
    search([config.updated({"trials": 11, "sampler": name})])
    opened = study_of(build_experiment(config.updated({"trials": 15, "sampler": name})))
    with opened.storage.joined() as worker:
        claims = [opened.claim(worker) for _ in range(4)]
    points = [
        np.array([np.log(c.params[p]) if d.log else c.params[p] for p, d in _floats(opened)])
        for c in claims
        if c is not None
    ]
    widths = np.array([_width(d) for _, d in _floats(opened)])
    apart = [abs((a - b) / widths).max() for a, b in itertools.combinations(points, 2)]
    assert len(apart) == 6 and min(apart) > 0.01  # of the range of some parameter


def _floats(study: Study) -> list[tuple[str, FloatDistribution]]:
    return [(n, d) for n, d in study.experiment.space.items() if isinstance(d, FloatDistribution)]


def _width(dist: FloatDistribution) -> float:
    return float(np.log(dist.high / dist.low)) if dist.log else dist.high - dist.low


def work_beside(config: RunConfig, done: Callable[[], bool]) -> None:
    """Be a worker to whom no trial is left, until something is done or nothing happens."""
    waits = itertools.count()

    def heard(event: Event) -> None:
        if isinstance(event, Waiting) and (done() or next(waits) > 20):
            raise Killed

    with pytest.raises(Killed):
        loop.work([Job(open_experiment(build_experiment(config)))], heard)


def test_a_worker_left_without_trials_trains_folds_of_another(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It starts at the end, leaves the fold that is being trained, and its owner finds them."""
    monkeypatch.setattr(loop, "WAIT", 0.0)
    wanted = config.updated({"trials": 1})
    experiment = build_experiment(wanted)
    opened = study_of(experiment)
    with opened.storage.joined() as owner:
        claim = opened.claim(owner)
        assert claim is not None
        units = [unit_of(experiment, claim.params, fold) for fold in range(4)]
        units[0].folder.mkdir(parents=True)
        with FileLock(units[0].folder / "lock"):
            work_beside(wanted, lambda: units[1].find_record() is not None)
    assert [unit.find_record() is not None for unit in units] == [False, True, True, True]


def test_a_worker_in_another_directory_is_not_helped(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "WAIT", 0.0)
    wanted = config.updated({"trials": 1})
    opened = study_of(build_experiment(wanted))
    with opened.storage.joined() as owner:
        claim = opened.claim(owner)
        work_beside(wanted, lambda: False)
    assert claim is not None and not (opened.folder / "folds").exists()
