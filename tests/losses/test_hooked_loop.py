"""CCP outside the harness: in a plain loop, in PML's trainers and in Lightning's callbacks."""

from __future__ import annotations

import copy
import runpy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import unit_of
from documents import ROOT
from pytorch_metric_learning.trainers import MetricLossOnly
from torch import Tensor, nn

from harness.experiment import Experiment
from harness.losses import AlternatingProjections, CCPLoss, HookCallback, class_images
from harness.training.trainer import Trainer

CPU = torch.device("cpu")
CLASSES, FEATURES, DIM, BATCH, EPOCH = 6, 10, 4, 12, 3
# With a patience of one there is a new problem after the third, the fifth and the sixth.
SCORES = (0.1, 0.3, 0.2, 0.4, 0.1, 0.05)


def test_the_example_gives_the_scores_of_the_harness(
    make_experiment: Callable[..., Experiment], tmp_path: Path
) -> None:
    experiment = make_experiment(loss="ccp", trunk="convnet")
    protocol = replace(experiment.protocol, max_steps=12, validate_every=2, patience=None)
    unit = unit_of(replace(experiment, protocol=protocol))
    hooks: list[AlternatingProjections] = []

    def trainer() -> Trainer:
        hooks.append(AlternatingProjections(pool_size=5, reference_weight=0.5, patience=1))
        return unit.build_trainer(CPU, wrap_hook=lambda own: hooks[-1])

    fit = trainer().fit(tmp_path / "c.pt", seed=0)
    assert hooks[0].instance > 0

    plain = trainer()
    plain._train_mode()

    def draw(images_per_class: int, step: int) -> Tensor:
        return torch.cat(
            [part.to(CPU) for part in plain.batches.class_pool(images_per_class, step)]
        )

    scores = runpy.run_path(str(ROOT / "examples" / "ccp_plain.py"))["train"](
        plain.model,
        plain.loss,
        hooks[1].in_loop(plain.model, plain.loss, draw),
        plain.optimizer,
        (plain.batches[step] for step in range(12)),
        lambda: plain.validate(plain.model, 0),
        every=2,
    )
    assert scores == [score for _, _, score in fit.history]
    assert hooks[1].renewed == hooks[0].renewed


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(BATCH * EPOCH) % CLASSES
    return torch.randn(BATCH * EPOCH, FEATURES, generator=generator), labels


@dataclass
class Setting:
    """The parts of a small run, always with the same weights."""

    model: nn.Sequential
    loss: CCPLoss
    optimizer: torch.optim.Optimizer
    hook: AlternatingProjections
    draw: Callable[[int, int], Tensor] = field(default_factory=lambda: class_images(*data()))

    def weights(self) -> list[Tensor]:
        both = (*self.model.parameters(), *self.loss.parameters())
        return [parameter.detach().clone() for parameter in both]


def setting(**options: Any) -> Setting:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(FEATURES, 8), nn.Linear(8, DIM))
    loss = CCPLoss(CLASSES, DIM, proxies_per_class=2)
    optimizer = torch.optim.SGD([*model.parameters(), *loss.parameters()], lr=0.1)
    options = {"pool_size": 3, "reference_weight": 0.5, "patience": 1, **options}
    return Setting(model, loss, optimizer, AlternatingProjections(**options))


def epochs(count: int) -> Iterable[tuple[Tensor, Tensor]]:
    features, labels = data()
    for _ in range(count):
        yield from zip(features.split(BATCH), labels.split(BATCH), strict=True)


def take(run: Setting, loop: Any, scores: Sequence[float]) -> None:
    left = iter(scores)
    for step, (features, labels) in enumerate(epochs(len(scores)), start=1):
        run.optimizer.zero_grad()
        value = run.loss(run.model(features), labels)
        value.backward()
        loop.step(value)
        run.optimizer.step()
        if step % EPOCH == 0:
            loop.validated(next(left))


def by_plain_loop(run: Setting) -> list[Tensor]:
    take(run, run.hook.in_loop(run.model, run.loss, run.draw), SCORES)
    return run.weights()


@pytest.mark.parametrize("options", [{}, {"start": 4}, {"monitor": "loss"}])
def test_the_trainer_of_pml_trains_as_a_plain_loop_does(
    options: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    expected, run = setting(**options), setting(**options)
    left = iter(SCORES)
    trainer = MetricLossOnly(
        models={"trunk": run.model[0], "embedder": run.model[1]},
        optimizers={"embedder_optimizer": run.optimizer},
        batch_size=BATCH,
        loss_funcs={"metric_loss": run.loss},
        dataset=torch.utils.data.TensorDataset(*data()),
        sampler=list(range(BATCH * EPOCH)),
        data_device=CPU,
        dataloader_num_workers=0,
        **run.hook.in_loop(run.model, run.loss, run.draw).pml_hooks(lambda trainer: next(left)),
    )
    trainer.train(num_epochs=len(SCORES))
    capfd.readouterr()
    torch.testing.assert_close(by_plain_loop(expected), run.weights(), rtol=0, atol=0)
    assert run.hook.renewed == expected.hook.renewed
    assert run.hook.instance > 0


def lightning(run: Setting, callback: Any, scores: Sequence[float]) -> None:
    """Calls a callback in the order in which Lightning does."""
    module = SimpleNamespace(model=run.model, loss=run.loss)
    trainer = SimpleNamespace(sanity_checking=True, callback_metrics={})
    callback.on_validation_end(trainer, module)  # Lightning's dry run, without a score
    trainer.sanity_checking = False
    callback.on_train_start(trainer, module)
    left = iter(scores)
    for step, batch in enumerate(epochs(len(scores)), start=1):
        run.optimizer.zero_grad()
        value = run.loss(run.model(batch[0]), batch[1])
        value.backward()
        callback.on_before_optimizer_step(trainer, module, run.optimizer)
        run.optimizer.step()
        callback.on_train_batch_end(trainer, module, {"loss": value}, batch, step)
        if step % EPOCH == 0:
            trainer.callback_metrics["val_map"] = torch.tensor(next(left), dtype=torch.float64)
            callback.on_validation_end(trainer, module)


@pytest.mark.parametrize("options", [{}, {"start": 4}, {"monitor": "loss"}])
def test_a_lightning_callback_trains_as_a_plain_loop_does(options: dict[str, Any]) -> None:
    expected, run = setting(**options), setting(**options)
    lightning(run, HookCallback(run.hook, run.draw, "val_map"), SCORES)
    torch.testing.assert_close(by_plain_loop(expected), run.weights(), rtol=0, atol=0)


def test_a_lightning_callback_goes_on_from_its_state() -> None:
    expected = by_plain_loop(setting())
    run = setting()
    first = HookCallback(run.hook, run.draw, "val_map")
    lightning(run, first, SCORES[:3])
    state = copy.deepcopy(first.state_dict())
    run.hook = setting().hook
    second = HookCallback(run.hook, run.draw, "val_map")
    second.load_state_dict(state)
    lightning(run, second, SCORES[3:])
    torch.testing.assert_close(expected, run.weights(), rtol=0, atol=0)


def test_a_plain_loop_goes_on_from_its_state() -> None:
    expected, run = by_plain_loop(setting()), setting()
    loop = run.hook.in_loop(run.model, run.loss, run.draw)
    take(run, loop, SCORES[:3])
    state = copy.deepcopy(loop.state_dict())
    take(run, setting().hook.in_loop(run.model, run.loss, run.draw, state), SCORES[3:])
    torch.testing.assert_close(expected, run.weights(), rtol=0, atol=0)


def test_picking_proxies_leaves_modes_and_generators_alone() -> None:
    run = setting()
    run.model[0].eval()
    before = torch.get_rng_state()
    run.hook.in_loop(run.model, run.loss, run.draw)
    assert [module.training for module in run.model] == [False, True]
    assert torch.equal(before, torch.get_rng_state())


def test_every_image_of_a_class_is_drawn_once_before_any_repeats() -> None:
    images, labels = torch.arange(7), [0, 1, 0, 1, 0, 1, 1]
    draw = class_images(images, labels)
    drawn = draw(7, 0).view(2, 7).tolist()
    for members, own in zip(([0, 2, 4], [1, 3, 5, 6]), drawn, strict=True):
        assert sorted(own[: len(members)]) == members
        assert set(own) == set(members)
    assert torch.equal(draw(7, 0), draw(7, 0)) and not torch.equal(draw(7, 0), draw(7, 1))
