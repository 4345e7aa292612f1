"""From features to embeddings: pooling, norms, frozen batch norm, pixels as trunks want them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest
import torch
from torch import Tensor, nn

from harness import registry
from harness.data.batches import Blocks, Source
from harness.data.loading import Loader
from harness.data.sources import open_part
from harness.experiment import Experiment
from harness.model.network import (
    NORMALIZERS,
    POOLINGS,
    Model,
    PooledTrunk,
    freeze_batchnorm,
    pooling,
)
from harness.training.embed import AT_ONCE, concatenate, embed, embed_with
from harness.trunks.convnet import ConvNet
from harness.trunks.trunk import Trunk


def test_poolings_by_hand() -> None:
    features = torch.tensor([[[[1.0, 2.0], [3.0, 6.0]]]])
    pooled = {name: pool(features).item() for name, pool in POOLINGS.items()}
    assert pooled == {"avg": 3.0, "max": 6.0, "avg+max": 9.0}


@pytest.mark.parametrize(
    ("name", "expected"), [("1-max", 6.0), ("2-max", 4.5), ("4-max", 3.0), ("9-max", 3.0)]
)
def test_k_max_is_the_mean_of_the_k_largest_or_of_all(name: str, expected: float) -> None:
    features = torch.tensor([[[[1.0, 2.0], [3.0, 6.0]]], [[[-1.0, -2.0], [-3.0, -6.0]]]])
    pooled = pooling(name)(features)
    assert pooled.shape == (2, 1) and pooled[0].item() == expected
    assert pooling("3-max")(features)[1].item() == -2.0


def test_k_max_sends_its_gradient_to_the_k_largest_alone() -> None:
    features = torch.tensor([[[[1.0, 2.0], [3.0, 6.0]]]], requires_grad=True)
    pooling("2-max")(features).sum().backward()
    assert features.grad is not None
    assert features.grad.flatten().tolist() == [0.0, 0.0, 0.5, 0.5]


def test_normalizers_by_hand() -> None:
    vectors = torch.tensor([[3.0, 4.0], [0.3, 0.4]])
    assert torch.allclose(NORMALIZERS["l2"](vectors), torch.tensor([[0.6, 0.8], [0.6, 0.8]]))
    assert torch.allclose(NORMALIZERS["ball"](vectors), torch.tensor([[0.6, 0.8], [0.3, 0.4]]))


def test_four_unit_vectors_side_by_side_keep_their_ranking() -> None:
    parts = [NORMALIZERS["l2"](torch.randn(5, 3)) for _ in range(4)]
    together = concatenate(parts, "l2")
    assert together.shape == (5, 12)
    assert torch.allclose(together, torch.cat(parts, 1) / 2)


def test_frozen_batch_norm_keeps_statistics_and_trains_scale_and_shift() -> None:
    trunk = ConvNet(1).train()
    freeze_batchnorm(trunk)
    norm = trunk.layers[0][1]
    before = norm.running_mean.clone()
    trunk(torch.randn(4, 1, 8, 8)).sum().backward()
    assert torch.equal(norm.running_mean, before)
    assert norm.weight.requires_grad and norm.bias.grad.abs().sum() > 0
    trunk.train()
    trunk(torch.randn(4, 1, 8, 8))
    assert not torch.equal(norm.running_mean, before)


def test_layer_norm_has_no_parameters_and_normalises_before_the_head() -> None:
    seen: list[torch.Tensor] = []
    head = nn.Identity()
    head.register_forward_hook(lambda module, inputs, output: seen.append(output))
    trunk = registry.load_trunk("convnet")
    model = Model(PooledTrunk(trunk.build(1), trunk.normalize, "avg"), "layer", head)
    model(torch.randint(0, 256, (3, 1, 8, 8), dtype=torch.uint8))
    assert torch.allclose(seen[0].mean(1), torch.zeros(3), atol=1e-5)
    assert torch.allclose(seen[0].var(1, unbiased=False), torch.ones(3), atol=1e-2)
    assert [name for name, _ in model.named_parameters() if "norm." in name] == []


def identity(channels: int, file: Path | None) -> nn.Module:
    return nn.Identity()


def test_pixels_are_normalised_as_the_trunk_says() -> None:
    images = torch.tensor([10, 20, 30], dtype=torch.uint8).view(1, 3, 1, 1)
    bgr = Trunk("t", "", identity, mean=(1, 2, 3), std=(1, 1, 2), scale=255.0, bgr=True)
    assert bgr.normalize(images).flatten().tolist() == pytest.approx([29, 18, 3.5])
    rgb = Trunk("t", "", identity, mean=(0.0,), std=(0.5,))
    assert rgb.normalize(images).flatten().tolist() == pytest.approx([20 / 255, 40 / 255, 60 / 255])


def test_no_step_brings_mean_and_std_to_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """They move with the weights, without being saved among them."""
    trunk = registry.load_trunk("convnet")
    pooled = PooledTrunk(trunk.build(1), trunk.normalize, "avg")
    assert all(name.startswith("network.") for name in pooled.state_dict())
    monkeypatch.setattr(torch, "tensor", lambda *given, **options: pytest.fail("made anew"))
    pooled(torch.zeros(2, 1, 8, 8, dtype=torch.uint8))
    assert {buffer.device.type for buffer in pooled.to("meta").buffers()} == {"meta"}


def test_grey_images_are_repeated_for_a_trunk_of_three_channels() -> None:
    trunk = Trunk("t", "", identity, channels=3, mean=(0.0,), std=(1.0,))
    grey = torch.full((2, 1, 4, 4), 51, dtype=torch.uint8)
    assert torch.allclose(trunk.normalize(grey), torch.full((2, 3, 4, 4), 0.2))


def test_embedding_leaves_the_mode_of_every_module_as_it_was(make_experiment) -> None:
    experiment: Experiment = make_experiment(trunk="convnet")
    trunk = experiment.trunk
    pooled = PooledTrunk(trunk.build(1), trunk.normalize, "avg")
    model = Model(pooled, "none", nn.Linear(64, 8)).train()
    freeze_batchnorm(model.trunk)
    modes = [module.training for module in model.modules()]
    source = open_part(experiment, "trainval")
    indices = experiment.of_classes(source.indices, (0,))
    once = embed_with(model, source, indices, Loader(torch.device("cpu")), "l2")
    assert [module.training for module in model.modules()] == modes
    assert once.shape == (48, 8) and not once.requires_grad


@pytest.mark.parametrize(("side", "most"), [(24, 256), (1000, AT_ONCE // 1000**2), (4000, 1)])
def test_large_images_are_encoded_some_at_a_time(side: int, most: int) -> None:
    """Each is numbered; whatever the blocks, the numbers come out once and in their order."""

    class Numbered:
        def for_evaluation(self, indices: Sequence[int]) -> Tensor:
            return torch.tensor(indices).view(-1, 1, 1, 1).expand(-1, 1, side, side)

        def check_stored(self, mapped_only: bool = False) -> None:
            """There is no file."""

    sizes = []

    def encode(images: Tensor) -> Tensor:
        sizes.append(len(images))
        return images[:, 0, 0, :1]

    numbers = list(range(300))
    blocks = Blocks(cast(Source, Numbered()), numbers)
    found = embed(encode, blocks, Loader(torch.device("cpu")))
    assert found.flatten().tolist() == numbers
    assert max(sizes) == most


def test_everything_on_the_way_to_the_loss_follows_the_device() -> None:
    trunk = registry.load_trunk("convnet")
    pooled = PooledTrunk(trunk.build(1), trunk.normalize, "avg+max")
    model = Model(pooled, "layer", nn.Linear(64, 8))
    images = torch.zeros(2, 1, 24, 24, dtype=torch.uint8)
    with torch.device("meta"):  # a tensor created without device= would not mix
        assert NORMALIZERS["ball"](model(images)).device.type == "cpu"
