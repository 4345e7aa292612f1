"""Runs in epochs: schedules, warm-up, what is frozen and clipped, and exact resumption."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import unit_of
from torch import Tensor, nn
from torch.optim import lr_scheduler

from harness.config import RunConfig
from harness.experiment import build_experiment
from harness.records.records import Fit
from harness.training.trainer import Trainer

CPU = torch.device("cpu")
EPOCH = 3  # steps: 30 training images in batches of 8, the rest dropped
MakeTrainer = Callable[..., Trainer]


@pytest.fixture
def make_trainer(folder_config: RunConfig) -> MakeTrainer:
    """A trainer in epochs whose validation scores are given, or counted up."""

    def make(scores: Iterable[float] = (), loss: str = "proxyanchor", **fields: Any) -> Trainer:
        experiment = build_experiment(folder_config.updated({"loss": loss}))
        wanted = {"epochs": 4, "batches": "shuffled", "patience": None, **fields}
        experiment = replace(experiment, protocol=replace(experiment.protocol, **wanted))
        left = iter(scores)
        return unit_of(experiment).build_trainer(
            CPU, validate=lambda model, step: next(left, step / 1000)
        )

    return make


def rates(trainer: Trainer) -> list[float]:
    return [group["lr"] for group in trainer.optimizer.param_groups]


def fit(trainer: Trainer, place: Path, seen: Callable[[], Any] = lambda: None) -> tuple[Fit, list]:
    """How it went, and what was seen at the end of every epoch."""
    found: list[Any] = []
    done = trainer.fit(place / "c.pt", seed=0, on_validation=lambda progress: found.append(seen()))
    return done, found


def weights(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def test_an_epoch_is_a_pass_over_the_images_and_ends_with_a_validation(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    done, _ = fit(make_trainer(), tmp_path)
    assert [step for step, _, _ in done.history] == [EPOCH, 2 * EPOCH, 3 * EPOCH, 4 * EPOCH]
    assert done.stopped_by == "epochs"


def test_only_some_epochs_are_validated_and_always_the_last(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    done, _ = fit(make_trainer(epochs=5, validate_epochs=(1, 3)), tmp_path)
    assert [step // EPOCH for step, _, _ in done.history] == [1, 3, 5]


SCORES = [0.3, 0.31, 0.31, 0.31, 0.30, 0.31, 0.31, 0.40]
SCHEDULES: dict[str, tuple[dict[str, Any], Callable[[Any], Any]]] = {
    "step": (
        {"schedule": "step", "lr_every": 2, "lr_factor": 0.5},
        lambda optimizer: lr_scheduler.StepLR(optimizer, 2, 0.5),
    ),
    "multistep": (
        {"schedule": "multistep", "lr_epochs": (2, 5), "lr_factor": 0.1},
        lambda optimizer: lr_scheduler.MultiStepLR(optimizer, [2, 5], 0.1),
    ),
    "plateau": (
        {"schedule": "plateau", "lr_factor": 0.5, "plateau_patience": 1, "plateau_cooldown": 1},
        lambda optimizer: lr_scheduler.ReduceLROnPlateau(
            optimizer, mode="max", factor=0.5, patience=1, cooldown=1
        ),
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_rates_fall_as_torch_lets_them_fall_on_a_recorded_run(
    make_trainer: MakeTrainer, tmp_path: Path, name: str
) -> None:
    fields, build = SCHEDULES[name]
    trainer = make_trainer(SCORES, epochs=len(SCORES), **fields)
    begin = rates(trainer)
    done, found = fit(trainer, tmp_path, lambda: rates(trainer))
    groups = [{"params": [nn.Parameter(torch.zeros(1))], "lr": lr} for lr in begin]
    plain = torch.optim.SGD(groups)
    theirs = build(plain)
    expected = []
    for _, _, score in done.history:
        plain.step()
        theirs.step(score) if name == "plateau" else theirs.step()
        expected.append([group["lr"] for group in plain.param_groups])
    assert found == expected
    fell = [i + 1 for i, (a, b) in enumerate(zip([begin, *found], found, strict=False)) if b < a]
    assert done.drops == fell != []


def test_the_plateau_of_a_harmonic_mean_has_its_own_threshold(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    """From 0.5 to 0.5 (1 + 1.4e-4): more than 1e-4 of the score, less of 2r / (1 + r)."""
    scores = [0.5, 0.50007, 0.50007]
    fields = {"schedule": "plateau", "plateau_patience": 0, "epochs": 3}
    plain, _ = fit(make_trainer(scores[:2], **fields | {"epochs": 2}), tmp_path / "a")
    harmonic, _ = fit(
        make_trainer(scores[:2], **fields | {"epochs": 2, "plateau_on": "harmonic"}), tmp_path / "b"
    )
    assert (plain.drops, harmonic.drops) == ([], [2])


class Stop(Exception):
    """Stands for a kill."""


@pytest.mark.parametrize("cut", [1, 2, 5])
def test_a_resumed_run_is_bit_identical_with_its_schedule(
    make_trainer: MakeTrainer, tmp_path: Path, cut: int
) -> None:
    """Adam, a warm-up before the epochs, then a plateau: cut before and after a drop."""
    fields = {
        **{"epochs": 6, "schedule": "plateau", "plateau_patience": 0, "optimizer": "adam"},
        **{"warmup_epochs": 1, "warmup_extra": True, "validate_epochs": None},
    }
    scores = [0.3, 0.2, 0.4, 0.3, 0.5, 0.1]
    whole = make_trainer(scores, **fields)
    expected = whole.fit(tmp_path / "whole.pt", seed=5)

    def stop(progress: Any) -> None:
        if len(progress.history) == cut:
            raise Stop

    with pytest.raises(Stop):
        make_trainer(scores[:cut], **fields).fit(tmp_path / "cut.pt", seed=5, on_validation=stop)
    resumed = make_trainer(scores[cut:], **fields)
    done = resumed.fit(tmp_path / "cut.pt", seed=5)
    assert (done.history, done.drops) == (expected.history, expected.drops)
    assert rates(resumed) == rates(whole)
    for one, other in ((resumed.model, whole.model), (resumed.loss, whole.loss)):
        assert all(torch.equal(a, weights(other)[name]) for name, a in weights(one).items())


def test_a_run_is_resumed_from_an_epoch_that_was_not_validated(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    fields = {"epochs": 4, "validate_epochs": (4,)}
    whole = make_trainer(**fields)
    expected = whole.fit(tmp_path / "whole.pt", seed=5)

    def stop(progress: Any) -> None:
        if progress.step == 2 * EPOCH:
            raise Stop

    with pytest.raises(Stop):
        make_trainer(**fields).fit(tmp_path / "cut.pt", seed=5, on_validation=stop)
    assert make_trainer(**fields).fit(tmp_path / "cut.pt", seed=5).history == expected.history


def changed(trainer: Trainer, before: dict[str, Tensor]) -> set[str]:
    """Which of trunk, its batch norm's parts, head and loss have moved."""
    moved = set()
    now = {**weights(trainer.model), **{f"loss.{k}": v for k, v in weights(trainer.loss).items()}}
    for name, value in now.items():
        if not torch.equal(value, before[name]) and "num_batches" not in name:
            part = name.split(".")[0]
            moved.add("statistics" if "running" in name else part)
    return moved


@pytest.mark.parametrize(
    ("fields", "moved"),
    [
        ({}, {"head", "loss"}),
        ({"warmup_statistics": True}, {"head", "loss", "statistics"}),
        ({"warmup_groups": ("loss",)}, {"loss"}),
        ({"warmup_groups": ("trunk", "head", "loss")}, {"trunk", "head", "loss"}),
    ],
)
def test_a_warm_up_trains_only_its_groups(
    make_trainer: MakeTrainer, tmp_path: Path, fields: dict[str, Any], moved: set[str]
) -> None:
    trainer = make_trainer(epochs=2, warmup_epochs=1, **fields)
    before = {
        **weights(trainer.model),
        **{f"loss.{name}": value for name, value in weights(trainer.loss).items()},
    }
    _, seen = fit(trainer, tmp_path, lambda: changed(trainer, before))
    assert seen == [moved, {"trunk", "head", "loss", "statistics"}]


def test_a_warm_up_before_the_epochs_is_extra_and_leaves_a_fresh_optimizer(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    trainer = make_trainer(epochs=2, warmup_epochs=3, warmup_extra=True, optimizer="adam")

    def steps_of_the_optimizer() -> set[float]:
        return {float(state["step"]) for state in trainer.optimizer.state.values()}

    done, seen = fit(trainer, tmp_path, steps_of_the_optimizer)
    assert [step for step, _, _ in done.history] == [4 * EPOCH, 5 * EPOCH]
    assert seen == [{EPOCH}, {2 * EPOCH}]


@pytest.mark.parametrize(("affine", "trains"), [(False, True), (True, False)])
def test_batch_norm_is_frozen_with_or_without_its_scale_and_shift(
    make_trainer: MakeTrainer, tmp_path: Path, affine: bool, trains: bool
) -> None:
    trainer = make_trainer(epochs=1, freeze_batchnorm=True, freeze_affine=affine)
    norms = [m for m in trainer.model.trunk.modules() if isinstance(m, nn.BatchNorm2d)]
    before = [(m.running_mean.clone(), m.weight.clone(), m.bias.clone()) for m in norms]
    fit(trainer, tmp_path)
    for norm, (mean, weight, bias) in zip(norms, before, strict=True):
        assert torch.equal(norm.running_mean, mean)
        assert (not torch.equal(norm.weight, weight)) is trains
        assert (not torch.equal(norm.bias, bias)) is trains
    assert all(p.grad is not None for p in trainer.parameters)


def clip(trainer: Trainer, size: float) -> dict[str, float]:
    """Norm of the gradients of each group, all set to `size` before they are clipped."""
    for parameter in trainer.parameters:
        parameter.grad = torch.full_like(parameter, size)
    trainer._clip()
    return {
        name: float(torch.cat([p.grad.flatten() for p in parameters if p.grad is not None]).norm())
        for name, parameters in trainer.groups.items()
    }


def test_the_norm_is_clipped_of_all_together_or_of_each(make_trainer: MakeTrainer) -> None:
    together = clip(make_trainer(clip_norm=10.0), 1.0)
    assert sum(norm**2 for norm in together.values()) == pytest.approx(100, rel=1e-4)
    each = clip(make_trainer(clip_norm=10.0, clip_each=True), 1.0)
    assert list(each.values()) == pytest.approx([10, 10, 10], rel=1e-4)


def test_the_proxies_can_be_left_unclipped(make_trainer: MakeTrainer) -> None:
    free, bound = (clip(make_trainer(clip_value=10.0, clip_loss=c), 50.0) for c in (False, True))
    assert free["loss"] == pytest.approx(5 * bound["loss"])
    assert free["head"] == bound["head"]


def test_a_collapse_ends_training(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    done, _ = fit(make_trainer([0.5, 0.31, 0.3, 0.9], stop_below=0.6), tmp_path)
    assert (len(done.history), done.stopped_by) == (3, "collapse")


def test_a_gain_that_is_too_small_is_none(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    done, _ = fit(make_trainer([0.5, 0.5005, 0.501], min_gain=1e-3, patience=2), tmp_path)
    assert (done.best_score, len(done.history), done.stopped_by) == (0.5, 3, "patience")


def test_the_last_weights_are_kept_where_the_protocol_says_so(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    trainer = make_trainer([0.5, 0.1, 0.3, 0.2], select="last")
    done, seen = fit(trainer, tmp_path, lambda: weights(trainer.model))
    assert (done.best_score, done.best_step) == (0.2, 4 * EPOCH)
    assert all(torch.equal(value, seen[-1][k]) for k, value in weights(trainer.model).items())


def test_rates_of_trunk_head_and_loss(make_trainer: MakeTrainer) -> None:
    own = {"lr": 1e-3, "trunk_lr": 1e-4, "loss_lr": 1e-2}
    assert rates(make_trainer(loss="triplet", **own)) == [1e-4, 1e-3]
    assert rates(make_trainer(loss="triplet", **{**own, "trunk_lr": None})) == [1e-3, 1e-3]


def test_a_batch_has_at_most_so_many_classes(make_trainer: MakeTrainer) -> None:
    """30 images of six classes: batches of eight, two of each, would take four."""
    fields = {"batches": "drawn", "samples_per_class": 2, "classes_per_batch": 3}
    images, labels = make_trainer(loss="triplet", **fields).batches[0]
    assert len(images) == 6 and len(set(labels.tolist())) == 3


def test_the_head_has_a_bias_unless_the_protocol_says_no(make_trainer: MakeTrainer) -> None:
    biases = [make_trainer(head_bias=bias).model.head.bias for bias in (True, False)]
    assert biases[0] is not None and biases[1] is None
