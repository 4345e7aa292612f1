"""Large trunks in small memory, and other precisions: the same training, as far as promised."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from conftest import FOLDER, unit_of
from timm.layers import DropPath
from torch import Tensor, nn

from benchmarks.pretended_gpu import pretended_gpu
from harness.config import RunConfig
from harness.errors import HarnessError
from harness.experiment import Experiment, build_experiment
from harness.model.build import check_trunk
from harness.model.memory import advice, save_memory
from harness.model.network import PooledTrunk
from harness.system.precision import training_precision
from harness.training.trainer import Trainer

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
BATCHES_MEET = FOLDER  # the small network trains its batch norm
APART = FOLDER.replace("freeze_batchnorm=false", "freeze_batchnorm=true")

Make = Callable[..., Experiment]


@pytest.fixture
def make(folder_config: RunConfig) -> Make:
    def make(**values: Any) -> Experiment:
        return build_experiment(folder_config.updated({"protocol": APART, **values}))

    return make


def gradients(trainer: Trainer) -> dict[str, Tensor]:
    """Of every parameter of model and loss, after one step."""
    trainer._train_mode()
    trainer.hook.on_train_begin(trainer)
    images, labels = trainer.batches[0]
    trainer._train_step(images, labels)
    both = {"model": trainer.model, "loss": trainer.loss}
    return {
        f"{part}.{name}": parameter.grad
        for part, module in both.items()
        for name, parameter in module.named_parameters()
        if parameter.grad is not None
    }


@pytest.mark.parametrize("loss", ["contrastive", "proxyanchor", "ccp", "drml-pa", "hpl", "margin"])
@pytest.mark.parametrize("size", [1, 3, 8])
def test_gradients_by_pieces_are_those_of_the_batch(loss: str, size: int, make: Make) -> None:
    """Eight images of a batch: one by one, with a rest, and all at once."""
    whole = gradients(unit_of(make(loss=loss)).build_trainer(CPU))
    pieces = gradients(unit_of(make(loss=loss, micro_batch=size)).build_trainer(CPU))
    assert pieces.keys() == whole.keys() and any(name.startswith("model.trunk") for name in whole)
    for name, gradient in whole.items():
        scale = float(gradient.abs().max())
        assert torch.allclose(pieces[name], gradient, rtol=1e-3, atol=1e-4 * scale), name


@pytest.mark.parametrize("loss", ["contrastive", "proxyanchor", "ccp", "drml-pa", "proxygml", "ms"])
@pytest.mark.parametrize("size", [1, 3])
def test_in_double_precision_they_are_the_same_numbers(loss: str, size: int, make: Make) -> None:
    """So that all that differs in float32 is rounding; batch norm is frozen."""

    def exact(**values: Any) -> dict[str, Tensor]:
        trainer = unit_of(make(loss=loss, **values)).build_trainer(CPU)
        trainer.model.double()
        trainer.loss.double()
        return gradients(trainer)

    whole, pieces = exact(), exact(micro_batch=size)
    assert pieces.keys() == whole.keys()
    assert all(g.abs().max() > 0 for name, g in whole.items() if name.startswith("model.trunk"))
    for name, gradient in whole.items():
        assert gradient.dtype == torch.float64
        assert (pieces[name] - gradient).abs().max() <= 1e-12 * gradient.abs().max(), name


def test_a_trunk_that_warms_up_gets_no_gradient_by_pieces(make: Make) -> None:
    values = {"loss": "proxyanchor", "micro_batch": 3, "protocol": f"{APART}+warmup_steps=2"}
    found = gradients(unit_of(make(**values)).build_trainer(CPU))
    assert not any(name.startswith("model.trunk") for name in found)
    assert any(name.startswith("model.head") for name in found)


def test_pieces_are_refused_where_images_of_a_batch_meet(make: Make) -> None:
    with pytest.raises(
        HarnessError, match=r"batch norm of convnet sees all images.*\n.*\+freeze_b"
    ):
        check_trunk(make(protocol=BATCHES_MEET, micro_batch=4))


@pytest.mark.parametrize("layer", [nn.Dropout(0.1), DropPath(0.1)])
def test_pieces_are_refused_where_units_are_left_out_at_random(
    make: Make, layer: nn.Module
) -> None:
    trunk = nn.Module()
    trunk.network = nn.Sequential(nn.Linear(2, 2), layer)
    with pytest.raises(HarnessError, match="convnet leaves out units at random"):
        save_memory(make(micro_batch=4), cast(PooledTrunk, trunk))
    trunk.network[1] = type(layer)(0.0)
    save_memory(make(micro_batch=4), cast(PooledTrunk, trunk))


VIT = {
    "trunk": "timm:test_vit:16",
    "weights": "none",
    "protocol": APART.replace("crop=12", "crop=16"),
}


def test_layers_of_timm_are_computed_again_for_the_same_gradients(make: Make) -> None:
    kept = gradients(unit_of(make(loss="contrastive", **VIT)).build_trainer(CPU))
    again = make(loss="contrastive", checkpoint_gradients=True, **VIT)
    trainer = unit_of(again).build_trainer(CPU)
    assert trainer.model.trunk.network.network.grad_checkpointing
    found = gradients(trainer)
    assert all(torch.allclose(found[name], kept[name], rtol=1e-5, atol=1e-8) for name in kept)
    with pytest.raises(
        HarnessError, match=r"convnet cannot compute its layers again.*--micro-batch"
    ):
        check_trunk(make(checkpoint_gradients=True))


def test_a_trunk_that_does_not_fit_says_what_would_make_it_fit(make: Make) -> None:
    def told(**values: Any) -> str:
        experiment = make(**values)
        return advice(experiment)

    assert "--micro-batch 4" in told() and "--checkpoint" not in told()
    assert "--micro-batch 2" in told(micro_batch=4)
    assert "--micro-batch 4" in told(**VIT) and "--checkpoint-gradients" in told(**VIT)
    alone = {"protocol": BATCHES_MEET, "workers": 1}
    assert told(**alone).startswith("smaller batches, as with +batch_size=")


@pytest.mark.parametrize("loss", ["proxyanchor", "drml-pa", "ccp"])
def test_bfloat16_trains_nearly_the_same_and_its_name_says_so(
    loss: str, make: Make, tmp_path: Path
) -> None:
    full, half = make(loss=loss), make(loss=loss, protocol=f"{APART}+precision=bf16")
    assert "+precision=bf16" in half.protocol.name
    assert "precision" not in full.protocol.identity()
    trainers = [unit_of(one).build_trainer(CPU) for one in (full, half)]
    images, _ = trainers[1].batches[0]
    with torch.no_grad():
        exact, rounded = (trainer.model.eval()(images) for trainer in trainers)
    assert rounded.dtype == torch.float32
    assert not torch.equal(exact, rounded)
    assert torch.allclose(exact, rounded, atol=0.05 * float(exact.abs().max()))
    histories = [t.fit(tmp_path / f"{i}.pt", seed=0).history for i, t in enumerate(trainers)]
    for (_, expected, _), (_, found, _) in zip(*histories, strict=True):
        assert found == pytest.approx(expected, rel=0.2)


def test_the_loss_is_exact_where_products_of_the_trunk_are_not(make: Make) -> None:
    """Under tf32 the settings of torch say so while each part is computed."""
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    seen: dict[str, str] = {}
    with pretended_gpu(), training_precision("tf32", CUDA) as operations:
        assert operations == ["convolutions", "products"]
        trainer = unit_of(make(loss="contrastive", protocol=f"{APART}+precision=tf32"))
        trainer = trainer.build_trainer(CUDA)
        trainer.loss.register_forward_hook(lambda *unused: seen.update(loss=matmul.fp32_precision))
        trainer.model.trunk.register_forward_hook(
            lambda *unused: seen.update(trunk=matmul.fp32_precision)
        )
        trainer.model.trunk.network.register_full_backward_hook(
            lambda *unused: seen.update(backward=matmul.fp32_precision)
        )
        images, labels = trainer.batches[0]
        trainer._train_step(images.to(CUDA), labels.to(CUDA))
    assert seen == {"trunk": "tf32", "loss": "ieee", "backward": "tf32"}
    assert matmul.fp32_precision == before


def test_precision_is_of_the_trunk_alone(make: Make) -> None:
    with pytest.raises(HarnessError, match="precision must be fp32 where the trunk is frozen"):
        make(protocol="frozen+precision=bf16")
