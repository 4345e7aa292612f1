"""ProxyNCA++ against its formula, worked examples and PML."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from pytorch_metric_learning.distances import CosineSimilarity, LpDistance
from pytorch_metric_learning.losses import NormalizedSoftmaxLoss, ProxyNCALoss
from torch import Tensor

from harness.losses._tools.checks import check_batch
from harness.losses.method import OPTIMIZER_PARAMS
from harness.losses.proxynca_pp import METHODS, ProxyNCAPlusPlusLoss

METHOD: Any = METHODS[0]
DATASETS = ("cub", "cars", "sop", "inshop", "inaturalist", "imagenet", "glyphs", "folder")


def two_proxies(**settings: Any) -> ProxyNCAPlusPlusLoss:
    loss = ProxyNCAPlusPlusLoss(2, 2, **settings)
    # Of lengths 3 and 0.5: only their directions count.
    loss.proxies.data = torch.tensor([[3.0, 0.0], [0.0, 0.5]])
    return loss


def random_problem(batch: int = 6, classes: int = 5, dim: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    embeddings = torch.randn(batch, dim, generator=generator, dtype=torch.float64)
    proxies = torch.randn(classes, dim, generator=generator, dtype=torch.float64)
    labels = torch.randint(classes, (batch,), generator=generator)
    return embeddings, proxies, labels


def with_proxies(proxies: Tensor, **settings: Any) -> ProxyNCAPlusPlusLoss:
    loss = ProxyNCAPlusPlusLoss(*proxies.shape, **settings).double()
    loss.proxies.data = proxies.clone()
    return loss


def plain_loops(
    embeddings: Tensor, proxies: Tensor, labels: Tensor, temperature: float, negatives: bool
) -> float:
    total = 0.0
    for embedding, label in zip(embeddings, labels.tolist(), strict=True):
        x = embedding / embedding.norm()
        squared = [float(((x - p / p.norm()) ** 2).sum()) for p in proxies]
        denominator = sum(
            math.exp(-distance / temperature)
            for c, distance in enumerate(squared)
            if not (negatives and c == label)
        )
        total += squared[label] / temperature + math.log(denominator)
    return total / len(labels)


@pytest.mark.parametrize(
    ("temperature", "label", "expected"),
    [(1, 0, 0.126928), (1, 1, 2.126928), (1 / 9, 1, 18.0)],
)
def test_the_worked_example(temperature: float, label: int, expected: float) -> None:
    loss = two_proxies(temperature=temperature)
    value = loss(torch.tensor([[2.0, 0.0]]), torch.tensor([label]))
    assert value.item() == pytest.approx(expected, abs=1e-5)


def test_the_first_proxynca_can_be_negative() -> None:
    loss = two_proxies(temperature=1, denominator="negatives")
    assert loss(torch.tensor([[2.0, 0.0]]), torch.tensor([0])).item() == pytest.approx(-2)


@pytest.mark.parametrize("denominator", ["all", "negatives"])
@pytest.mark.parametrize("temperature", [1 / 9, 0.7])
def test_equals_the_formula_in_plain_loops(denominator: str, temperature: float) -> None:
    embeddings, proxies, labels = random_problem()
    loss = with_proxies(proxies, temperature=temperature, denominator=denominator)
    expected = plain_loops(embeddings, proxies, labels, temperature, denominator == "negatives")
    assert loss(embeddings, labels).item() == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("denominator", ["all", "negatives"])
def test_gradients_equal_finite_differences(denominator: str) -> None:
    embeddings, proxies, labels = random_problem()
    loss = with_proxies(proxies, denominator=denominator)

    def value(embeddings: Tensor, proxies: Tensor) -> Tensor:
        return torch.func.functional_call(loss, {"proxies": proxies}, (embeddings, labels))

    inputs = (embeddings.requires_grad_(), proxies.requires_grad_())
    assert torch.autograd.gradcheck(value, inputs)


@pytest.mark.parametrize("peer", ["proxynca", "softmax"])
def test_equals_the_losses_of_pml_in_value_and_gradient(peer: str) -> None:
    embeddings, proxies, labels = random_problem()
    ours = with_proxies(proxies)
    theirs = (
        ProxyNCALoss(*proxies.shape, softmax_scale=9)
        if peer == "proxynca"
        else NormalizedSoftmaxLoss(*proxies.shape, temperature=1 / 18)
    )
    weight = theirs.proxies if peer == "proxynca" else theirs.W
    weight.data = proxies.clone() if peer == "proxynca" else proxies.t().clone()
    results = []
    for loss in (ours, theirs):
        inputs = embeddings.clone().requires_grad_()
        value = loss(inputs, labels)
        value.backward()
        results.append((value, inputs.grad))
    torch.testing.assert_close(results[0], results[1], rtol=1e-5, atol=1e-8)
    weight_grad = weight.grad if peer == "proxynca" else weight.grad.t()
    torch.testing.assert_close(ours.proxies.grad, weight_grad, rtol=1e-5, atol=1e-8)


def test_a_probability_that_underflows_is_no_loss_lost() -> None:
    # PML's class drops such samples, and returns NaN if they are all.
    loss = two_proxies(temperature=1 / 1000)
    value = loss(torch.tensor([[2.0, 0.0]]), torch.tensor([1]))
    assert value.item() == pytest.approx(2000)


def test_a_distance_is_used_as_the_formula_is_printed() -> None:
    embeddings, proxies, labels = random_problem()
    printed = with_proxies(proxies, distance=LpDistance(power=2))
    assert printed(embeddings, labels).item() == pytest.approx(
        with_proxies(proxies)(embeddings, labels).item(), rel=1e-9
    )


@pytest.mark.parametrize("collect_stats", [False, True])
def test_the_power_of_a_similarity_is_respected(collect_stats: bool) -> None:
    embeddings, proxies, _ = random_problem()
    squared = CosineSimilarity(power=2, collect_stats=collect_stats)
    logits = with_proxies(proxies, temperature=2, distance=squared).get_logits(embeddings)
    torch.testing.assert_close(logits, CosineSimilarity()(embeddings, proxies) ** 2)


def test_logits_are_what_the_softmax_is_taken_of() -> None:
    embeddings, proxies, labels = random_problem()
    loss = with_proxies(proxies)
    expected = torch.nn.functional.cross_entropy(loss.get_logits(embeddings), labels)
    assert loss(embeddings, labels).item() == pytest.approx(expected.item(), rel=1e-12)
    assert loss.get_logits(10 * proxies).argmax(dim=1).tolist() == list(range(len(proxies)))


def test_proxies_start_an_eighth_long_in_every_dimension() -> None:
    torch.manual_seed(0)
    proxies = ProxyNCAPlusPlusLoss(200, 128).proxies
    assert proxies.std().item() == pytest.approx(0.125, rel=0.02)


def test_weights_of_a_miner_multiply_each_sample() -> None:
    embeddings, proxies, labels = random_problem()
    loss = with_proxies(proxies)
    each = torch.stack([loss(embeddings[i : i + 1], labels[i : i + 1]) for i in range(3)])
    # Sample 0 three times, 1 twice, 2 once, 3 to 5 never.
    triplets = (torch.tensor([0, 0]), torch.tensor([1, 1]), torch.tensor([2, 0]))
    expected = (each * torch.tensor([1, 2 / 3, 1 / 3])).sum() / len(labels)
    assert loss(embeddings, labels, triplets).item() == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": 0}, "temperature must be positive, got 0"),
        ({"temperature": -1}, "temperature must be positive, got -1"),
        ({"denominator": "some"}, "denominator must be one of .*'some'"),
        ({"num_classes": 1, "denominator": "negatives"}, "2 proxies or more, got 1"),
        ({"num_classes": 0}, "num_classes must be positive, got 0"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ProxyNCAPlusPlusLoss(**{"num_classes": 4, "embedding_size": 2, **settings})


def test_finite_embeddings_with_an_infinite_sum_are_not_refused() -> None:
    check_batch(torch.full((2, 2), 3e38), torch.tensor([0, 1]), num_classes=2, embedding_size=2)


@pytest.mark.parametrize("preset", ["mlrc", "paper", "official"])
@pytest.mark.parametrize("dataset", DATASETS)
def test_every_preset_has_the_published_temperature(preset: str, dataset: str) -> None:
    params = METHOD.preset(preset, dataset).params
    assert METHOD.make_loss(8, 4, params).temperature == pytest.approx(1 / 9)


def test_learning_rates_in_the_hundreds_never_come_without_their_epsilon() -> None:
    for by_dataset in METHOD.presets.values():
        for preset in by_dataset.values():
            assert preset.params["loss_lr"] <= 1 or preset.protocol["optimizer_eps"] == 1.0


def test_the_learning_rate_of_the_proxies_is_searched() -> None:
    assert set(METHOD.space("cub", 100)) & set(OPTIMIZER_PARAMS) == {"loss_lr"}
