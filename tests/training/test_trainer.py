"""One training run: what stops it, what it keeps, and that a resumed one is the same run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import unit_of
from torch import Tensor, nn

from harness.data.loading import Loader
from harness.experiment import Experiment
from harness.losses.ccp import AlternatingProjections
from harness.losses.method import Hook
from harness.model.build import build_model
from harness.training.trainer import Trainer, TrainingFailed

CPU = torch.device("cpu")
MakeTrainer = Callable[..., Trainer]


@pytest.fixture
def make_trainer(make_experiment: Callable[..., Experiment]) -> MakeTrainer:
    """A trainer of fold 0 whose validation scores are given, or counted up."""

    def make(
        scores: Iterable[float] = (), hook: Hook | None = None, loss: str = "triplet", **fields: Any
    ) -> Trainer:
        experiment = make_experiment(loss=loss, trunk="convnet")  # with batch norm
        protocol = replace(experiment.protocol, **fields)
        experiment = replace(experiment, protocol=protocol)
        left = iter(scores)
        return unit_of(experiment).build_trainer(
            CPU,
            validate=lambda model, step: next(left, step / 1000),
            wrap_hook=lambda own: hook or own,
        )

    return make


def weights(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


def test_a_validation_without_a_score_ends_the_run_in_words(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    trainer = make_trainer([float("nan")], max_steps=4, validate_every=2)
    with pytest.raises(TrainingFailed, match="no image of the validation classes has another"):
        trainer.fit(tmp_path / "c.pt", seed=0)


def test_loader_processes_change_nothing(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    trainers = [make_trainer(loss="ccp", max_steps=4, validate_every=2) for _ in range(2)]
    trainers[1].loader = Loader(CPU, processes=2)
    fits = [trainer.fit(tmp_path / f"{i}.pt", seed=0) for i, trainer in enumerate(trainers)]
    assert fits[0].history == fits[1].history
    assert same(weights(trainers[0].model), weights(trainers[1].model))


def test_patience_counts_validations_without_improvement(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    trainer = make_trainer([0.1, 0.3, 0.2, 0.3, 0.25], max_steps=100, validate_every=2, patience=3)
    fit = trainer.fit(tmp_path / "c.pt", seed=0)
    assert (fit.best_score, fit.best_step, fit.steps) == (0.3, 4, 10)
    assert fit.stopped_by == "patience"
    assert [(step, score) for step, _, score in fit.history] == [
        (2, 0.1),
        (4, 0.3),
        (6, 0.2),
        (8, 0.3),
        (10, 0.25),
    ]


def test_patience_is_the_protocols_for_every_method(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    for loss in ("triplet", "ccp"):
        scores = [0.3, 0.2, 0.2, 0.4]
        trainer = make_trainer(scores, loss=loss, max_steps=100, validate_every=2, patience=2)
        fit = trainer.fit(tmp_path / f"{loss}.pt", seed=0)
        assert (fit.steps, fit.stopped_by) == (6, "patience")


def test_the_last_step_is_validated_even_off_the_beat(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    fit = make_trainer(max_steps=5, validate_every=3).fit(tmp_path / "c.pt", seed=0)
    assert [step for step, _, _ in fit.history] == [3, 5]
    assert fit.stopped_by == "max_steps"


def test_the_model_ends_with_its_best_weights(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    trainer = make_trainer([0.5, 0.1], max_steps=4, validate_every=2)
    seen: list[dict[str, Tensor]] = []
    trainer.fit(
        tmp_path / "c.pt",
        seed=0,
        on_validation=lambda progress: seen.append(weights(trainer.model)),
    )
    assert same(weights(trainer.model), seen[0])
    assert not same(seen[0], seen[1])


class Stop(Exception):
    """Stands for a kill."""


@pytest.mark.parametrize("loss", ["triplet", "proxyanchor", "ccp", "drml-margin", "c2-xbm", "hpl"])
def test_a_resumed_run_is_bit_identical(
    make_trainer: MakeTrainer, tmp_path: Path, loss: str
) -> None:
    """drml-margin draws at random, c2-xbm has a memory, hpl a clustering, ccp a hook."""
    settings = {"loss": loss, "max_steps": 12, "validate_every": 2}
    # Fruitless validations, so that CCP switches its problem before and after the interruption.
    scores = [0.3, 0.2, 0.2, 0.2, 0.1, 0.4]
    whole = make_trainer(scores, **settings)
    expected = whole.fit(tmp_path / "whole.pt", seed=5)

    def stop(progress: Any) -> None:
        if progress.step == 6:
            raise Stop

    with pytest.raises(Stop):
        make_trainer(scores[:3], **settings).fit(tmp_path / "cut.pt", seed=5, on_validation=stop)
    torch.manual_seed(99)
    np.random.seed(99)
    resumed = make_trainer(scores[3:], **settings)
    fit = resumed.fit(tmp_path / "cut.pt", seed=5)
    assert fit.history == expected.history
    assert same(weights(resumed.model), weights(whole.model))
    assert same(weights(resumed.loss), weights(whole.loss))


@pytest.mark.parametrize("cut", [2, 4, 6])
def test_a_run_that_starts_with_its_base_alone_resumes_as_the_same_run(
    make_trainer: MakeTrainer, tmp_path: Path, cut: int
) -> None:
    """Interrupted before, at and after the step at which CCP picks its first proxies."""
    settings = {"loss": "ccp", "max_steps": 12, "validate_every": 2}
    scores = [0.3, 0.2, 0.3, 0.2, 0.2, 0.2]

    def trainer(left: list[float]) -> Trainer:
        return make_trainer(left, hook=AlternatingProjections(start=4), **settings)

    whole = trainer(scores)
    expected = whole.fit(tmp_path / "whole.pt", seed=5)
    assert expected.hook["instances"] == 2 and expected.hook["start"] == 4

    def stop(progress: Any) -> None:
        if progress.step == cut:
            raise Stop

    with pytest.raises(Stop):
        trainer(scores[: cut // 2]).fit(tmp_path / "cut.pt", seed=5, on_validation=stop)
    resumed = trainer(scores[cut // 2 :])
    assert resumed.fit(tmp_path / "cut.pt", seed=5).history == expected.history
    assert same(weights(resumed.loss), weights(whole.loss))


def test_the_optimizer_forgets_parameters_that_a_loss_has_set_anew(
    make_trainer: MakeTrainer,
) -> None:
    trainer = make_trainer(loss="hpl")
    trainer.loss.reseeded = True
    trainer.optimizer.step()
    assert trainer.loss.reseeded is False


class Drawing(nn.Module):
    """A loss that draws from the generators a loss may draw from."""

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return embeddings.square().mean() * (np.random.rand() + torch.rand(()))


def test_a_loss_that_draws_at_random_goes_on_with_its_stream(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    def stop(progress: Any) -> None:
        if progress.step == 4:
            raise Stop

    def fit(name: str, report: Callable[[Any], None] = lambda progress: None) -> Any:
        trainer = make_trainer(max_steps=8, validate_every=2)
        trainer.loss = Drawing()
        return trainer.fit(tmp_path / name, seed=5, on_validation=report)

    whole = fit("whole.pt")
    with pytest.raises(Stop):
        fit("cut.pt", stop)
    assert fit("cut.pt").history == whole.history


def test_a_loss_that_is_not_a_number_ends_the_run_with_its_reason(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    class Broken(nn.Module):
        def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
            return embeddings.sum() * float("nan")

    trainer = make_trainer(max_steps=6, validate_every=3)
    trainer.loss = Broken()
    with pytest.raises(TrainingFailed, match="the loss became nan between steps 0 and 3"):
        trainer.fit(tmp_path / "c.pt", seed=0)


def test_trunk_head_and_loss_have_rates_and_decays_of_their_own(make_trainer: MakeTrainer) -> None:
    groups = make_trainer(loss="margin", lr=0.5, weight_decay=0.1).optimizer.param_groups
    assert [(g["name"], g["lr"], g["weight_decay"]) for g in groups] == [
        ("trunk", 0.5, 0.1),
        ("head", 0.5, 0.1),
        ("loss", 0.0013149, 0.0),
    ]
    owned = [p for group in groups for p in group["params"]]
    assert len(owned) == len({id(p) for p in owned})


def test_the_trunk_can_have_a_rate_of_its_own(make_trainer: MakeTrainer) -> None:
    groups = make_trainer(loss="proxyanchor", lr=0.5, trunk_lr=0.25).optimizer.param_groups
    assert [(g["name"], g["lr"]) for g in groups][:2] == [("trunk", 0.25), ("head", 0.5)]
    assert groups[2]["lr"] not in (0.25, 0.5)  # searched


@pytest.mark.parametrize("freeze_batchnorm", [True, False])
@pytest.mark.parametrize("optimizer", ["rmsprop", "adam", "adamw", "sgd"])
def test_the_trunk_and_its_statistics_stay_as_they_are_during_warm_up(
    make_trainer: MakeTrainer, tmp_path: Path, optimizer: str, freeze_batchnorm: bool
) -> None:
    seen: list[tuple[int, dict[str, Tensor], dict[str, Tensor]]] = []

    def see(progress: Any) -> None:
        seen.append((progress.step, weights(trainer.model.trunk), weights(trainer.model.head)))

    trainer = make_trainer(
        warmup_steps=2,
        max_steps=3,
        validate_every=1,
        optimizer=optimizer,
        freeze_batchnorm=freeze_batchnorm,
    )
    before = weights(trainer.model.trunk)
    trainer.fit(tmp_path / "c.pt", seed=0, on_validation=see)
    assert [step for step, _, _ in seen] == [1, 2, 3]
    assert same(seen[0][1], before) and same(seen[1][1], before)
    assert not same(seen[0][2], seen[1][2])  # the head trains from the start
    moved = {name for name, value in seen[2][1].items() if not torch.equal(value, before[name])}
    assert "network.layers.0.0.weight" in moved
    assert ("network.layers.0.1.running_mean" in moved) != freeze_batchnorm


def test_no_gradient_is_computed_for_the_trunk_during_warm_up(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    class Watching(Hook):
        def after_backward(self, context: Any) -> None:
            gradients = [p.grad is not None for p in context.model.trunk.parameters()]
            assert len(set(gradients)) == 1
            watched.append(gradients[0])

    watched: list[bool] = []
    trainer = make_trainer(hook=Watching(), warmup_steps=2, max_steps=4, validate_every=4)
    trainer.fit(tmp_path / "c.pt", seed=0)
    assert watched == [False, False, True, True]


@pytest.mark.parametrize(("params", "steps"), [({}, 7), ({"warmup_steps": 3}, 3)])
def test_a_warm_up_among_the_parameters_replaces_that_of_the_protocol(
    make_experiment: Callable[..., Experiment], params: dict[str, Any], steps: int
) -> None:
    experiment = make_experiment(loss="proxyanchor", params=params)
    experiment = replace(experiment, protocol=replace(experiment.protocol, warmup_steps=7))
    assert unit_of(experiment).build_trainer(CPU).plan.warmup == steps


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_beta2_of_adam_is_the_protocols(make_trainer: MakeTrainer, optimizer: str) -> None:
    found = {
        make_trainer(optimizer=optimizer, adam_beta2=beta2).optimizer.defaults["betas"]
        for beta2 in (0.999, 0.99)
    }
    assert found == {(0.9, 0.999), (0.9, 0.99)}


@pytest.mark.parametrize("cut", [2, 4, 6])
@pytest.mark.parametrize("loss", ["proxyanchor", "ccp"])
def test_a_run_cut_before_at_or_after_the_end_of_warm_up_goes_on_as_if_it_had_not_been(
    make_trainer: MakeTrainer, tmp_path: Path, loss: str, cut: int
) -> None:
    settings = {"loss": loss, "max_steps": 8, "validate_every": 2, "warmup_steps": 4}
    scores = [0.3, 0.2, 0.2, 0.2]

    def stop(progress: Any) -> None:
        if progress.step == cut:
            raise Stop

    whole = make_trainer(scores, **settings)
    expected = whole.fit(tmp_path / "whole.pt", seed=5)
    with pytest.raises(Stop):
        make_trainer(scores, **settings).fit(tmp_path / "cut.pt", seed=5, on_validation=stop)
    resumed = make_trainer(scores[cut // 2 :], **settings)
    assert resumed.fit(tmp_path / "cut.pt", seed=5).history == expected.history
    last, first = (torch.load(tmp_path / f"{n}.pt", weights_only=False) for n in ("whole", "cut"))
    assert same(last["model"], first["model"])


@pytest.mark.parametrize("optimizer", ["rmsprop", "adam", "adamw", "sgd"])
def test_every_optimizer_trains(make_trainer: MakeTrainer, tmp_path: Path, optimizer: str) -> None:
    trainer = make_trainer(optimizer=optimizer, lr=1e-3, max_steps=2, validate_every=2)
    before = weights(trainer.model.head)
    trainer.fit(tmp_path / "c.pt", seed=0)
    assert not same(weights(trainer.model.head), before)


def test_mlrc_uses_rmsprop_with_momentum(make_trainer: MakeTrainer) -> None:
    group = make_trainer(optimizer="rmsprop").optimizer.param_groups[0]
    assert (group["momentum"], group["eps"]) == (0.9, 1e-8)


class Recorder(Hook):
    """Notes what it is called with, and adds a large gradient."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def on_train_begin(self, context: Any) -> None:
        self.calls.append(("begin", context.step, context.embed_class_pool(2).shape))
        self.modes = [module.training for module in context.model.modules()]

    def after_backward(self, context: Any) -> None:
        next(context.model.parameters()).grad += 1000.0
        self.calls.append(("backward", context.step))

    def on_validation_end(self, context: Any, score: float) -> None:
        self.calls.append(("validation", context.step, score))


def test_a_hook_is_called_at_its_points(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    hook = Recorder()
    make_trainer([0.1, 0.2], hook=hook, max_steps=3, validate_every=2).fit(tmp_path / "c.pt", 0)
    assert hook.calls == [
        ("begin", 0, (75, 2, 128)),
        ("backward", 0),
        ("backward", 1),
        ("validation", 2, 0.1),
        ("backward", 2),
        ("validation", 3, 0.2),
    ]
    assert all(hook.modes)  # embedding the pool left the model in training mode


def test_gradients_are_clipped_after_the_hook(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    seen: list[float] = []
    trainer = make_trainer(hook=Recorder(), max_steps=1, validate_every=1, clip_norm=2.0)
    step = trainer.optimizer.step

    def spy() -> None:
        parameters = [p for group in trainer.optimizer.param_groups for p in group["params"]]
        seen.append(torch.cat([p.grad.flatten() for p in parameters]).norm().item())
        step()

    trainer.optimizer.step = spy  # type: ignore[method-assign,assignment]
    trainer.fit(tmp_path / "c.pt", seed=0)
    assert seen == [pytest.approx(2.0, rel=1e-4)]


def test_training_leaves_the_global_generators_alone(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    torch.manual_seed(1)
    np.random.seed(1)
    expected = torch.rand(1).item(), np.random.rand()
    torch.manual_seed(1)
    np.random.seed(1)
    make_trainer(loss="drml-margin").fit(tmp_path / "c.pt", seed=0)
    assert (torch.rand(1).item(), np.random.rand()) == expected


def test_all_methods_start_from_the_same_trunk_and_see_the_same_images(
    make_trainer: MakeTrainer,
) -> None:
    one, other = make_trainer(loss="triplet"), make_trainer(loss="ms")
    assert same(weights(one.model), weights(other.model))
    assert torch.equal(one.batches[5][0], other.batches[5][0])
    drml = make_trainer(loss="drml")
    assert same(weights(one.model.trunk), weights(drml.model.trunk))


def test_initial_weights_are_a_function_of_the_seed_alone(
    make_experiment: Callable[..., Experiment],
) -> None:
    experiment = make_experiment()
    built = []
    for state, seed in ((1, 7), (2, 7), (2, 8)):
        torch.manual_seed(state)
        built.append(weights(build_model(experiment, experiment.published_params, seed)))
    assert same(built[0], built[1])
    assert not same(built[1], built[2])


def test_folds_and_repetitions_have_streams_of_their_own(
    make_experiment: Callable[..., Experiment],
) -> None:
    experiment = make_experiment()
    seeds = {
        experiment.seed(stream, fold, repetition)
        for stream in ("init", "sampler", "loss")
        for fold in range(4)
        for repetition in range(3)
    }
    assert len(seeds) == 36
    assert make_experiment(loss="ms").seed("init", 1, 2) == experiment.seed("init", 1, 2)
    assert make_experiment(seed=1).seed("init", 1, 2) not in seeds


def test_checkpoints_take_but_a_small_share_of_a_short_run(
    make_trainer: MakeTrainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six validations within the time that must pass between two checkpoints: one is written."""
    monkeypatch.setattr("harness.training.trainer.CHECKPOINT_SHARE", 1e-9)
    saved: list[int] = []
    save = torch.save

    def noted(state: Any, file: Any) -> None:
        saved.append(state["progress"]["step"])
        save(state, file)

    monkeypatch.setattr(torch, "save", noted)
    make_trainer([0.1] * 6, max_steps=12, validate_every=2, patience=9).fit(tmp_path / "c", seed=0)
    assert saved == [2]


def test_a_run_that_is_asked_to_stop_keeps_all_it_has_done(
    make_trainer: MakeTrainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "harness.training.trainer.CHECKPOINT_SHARE", 1e-9
    )  # none but the first is due

    def stop(progress: Any) -> None:
        if progress.step == 6:
            raise KeyboardInterrupt

    trainer = make_trainer(max_steps=12, validate_every=2)
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(tmp_path / "c.pt", seed=0, on_validation=stop)
    kept = torch.load(tmp_path / "c.pt", weights_only=False)
    assert kept["progress"]["step"] == 6
