"""ProxyGML against its formula, worked examples and PML."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch
from pytorch_metric_learning.distances import LpDistance
from pytorch_metric_learning.losses import NormalizedSoftmaxLoss, SoftTripleLoss
from pytorch_metric_learning.reducers import (
    ClassWeightedReducer,
    DivisorReducer,
    DoNothingReducer,
)
from torch import Tensor

from harness.losses import proxygml
from harness.losses.method import adjusted_by
from harness.losses.proxygml import (
    METHODS,
    ProxyGMLLoss,
    num_selected,
    proxy_losses,
    select_proxies,
)

METHOD: Any = METHODS[0]
EXAMPLE = torch.tensor(
    [[1.0, 0.0], [0.0, 1.0], [0.6, 0.8], [-1.0, 0.0], [0.0, -1.0], [0.8, -0.6]],
    dtype=torch.float64,
)


def with_proxies(proxies: Tensor, num_classes: int, **settings: float) -> ProxyGMLLoss:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loss = ProxyGMLLoss(
            num_classes, proxies.shape[1], len(proxies) // num_classes, **settings
        ).to(proxies.dtype)
    loss.proxies.data = proxies.clone()
    return loss


def random_problem(
    batch: int = 7, classes: int = 5, per_class: int = 3, dim: int = 6
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    embeddings = torch.randn(batch, dim, generator=generator, dtype=torch.float64)
    proxies = torch.randn(classes * per_class, dim, generator=generator, dtype=torch.float64)
    labels = torch.randint(classes, (batch,), generator=generator)
    return embeddings, proxies, labels


def plain_loops(
    embeddings: Tensor,
    proxies: Tensor,
    labels: Tensor,
    classes: int,
    k: int,
    reg_weight: float,
    positive_mask: bool = True,
    masked_softmax: bool = True,
) -> float:
    per_class = len(proxies) // classes
    unit = [(p / p.norm()).tolist() for p in proxies]
    owner = [j // per_class for j in range(len(unit))]

    def dot(a: list[float], b: list[float]) -> float:
        return sum(x * y for x, y in zip(a, b, strict=True))

    sample_term = 0.0
    for embedding, label in zip(embeddings, labels.tolist(), strict=True):
        similarity = [dot((embedding / embedding.norm()).tolist(), p) for p in unit]
        first = label if positive_mask else None
        ranking = sorted(
            range(len(unit)),
            key=lambda j: (owner[j] != first, -similarity[j]),
        )
        sums: dict[int, float] = (
            {label: 0.0} if masked_softmax else dict.fromkeys(range(classes), 0.0)
        )
        for j in ranking[:k]:
            sums[owner[j]] = sums.get(owner[j], 0.0) + similarity[j]
        sample_term += math.log(sum(math.exp(z) for z in sums.values())) - sums[label]
    proxy_term = 0.0
    for j, p in enumerate(unit):
        sums = {}
        for i, other in enumerate(unit):
            sums[owner[i]] = sums.get(owner[i], 0.0) + dot(p, other)
        proxy_term += math.log(sum(math.exp(z) for z in sums.values())) - sums[owner[j]]
    return sample_term / len(labels) + reg_weight * proxy_term / len(unit)


@pytest.mark.parametrize(
    ("k", "expected"),
    [(1, 0), (2, 0), (3, 0.598139), (4, 0.911901), (5, 0.911901), (6, 0.725289)],
)
def test_the_worked_example(k: int, expected: float) -> None:
    loss = with_proxies(EXAMPLE * 3, num_classes=3, ratio=k / 6, reg_weight=0)
    assert loss.num_selected == k
    value = loss(torch.tensor([[7.0, 0.0]], dtype=torch.float64), torch.tensor([0]))
    assert value.item() == pytest.approx(expected, abs=1e-6)


def test_the_proxy_term_of_the_worked_example() -> None:
    loss = with_proxies(EXAMPLE * 3, num_classes=3, ratio=1 / 3, reg_weight=0.5)
    value = loss(torch.tensor([[7.0, 0.0]], dtype=torch.float64), torch.tensor([0]))
    assert value.item() == pytest.approx(0.5 * 0.605802, abs=1e-6)


@pytest.mark.parametrize("k", [1, 4, 8, 15])
@pytest.mark.parametrize("positive_mask", [True, False])
@pytest.mark.parametrize("masked_softmax", [True, False])
def test_its_modules_can_be_switched_off(k: int, positive_mask: bool, masked_softmax: bool) -> None:
    embeddings, proxies, labels = random_problem()
    switches = {"positive_mask": positive_mask, "masked_softmax": masked_softmax}
    loss = with_proxies(proxies, num_classes=5, ratio=k / 15, reg_weight=0.3, **switches)
    expected = plain_loops(embeddings, proxies, labels, 5, k, 0.3, **switches)
    assert loss(embeddings, labels).item() == pytest.approx(expected, rel=1e-9)
    loss(embeddings.requires_grad_(), labels).backward()
    assert embeddings.grad is not None and embeddings.grad.isfinite().all()


@pytest.mark.parametrize("k", [1, 3, 4, 8, 15])
@pytest.mark.parametrize("reg_weight", [0, 0.3])
def test_equals_the_formula_in_plain_loops(k: int, reg_weight: float) -> None:
    embeddings, proxies, labels = random_problem()
    loss = with_proxies(proxies, num_classes=5, ratio=k / 15, reg_weight=reg_weight)
    expected = plain_loops(embeddings, proxies, labels, 5, k, reg_weight)
    assert loss(embeddings, labels).item() == pytest.approx(expected, rel=1e-10, abs=1e-12)


@pytest.mark.parametrize("k", [4, 9])
def test_gradients_equal_finite_differences(k: int) -> None:
    embeddings, proxies, labels = random_problem()
    loss = with_proxies(proxies, num_classes=5, ratio=k / 15)

    def value(embeddings: Tensor, proxies: Tensor) -> Tensor:
        return torch.func.functional_call(loss, {"proxies": proxies}, (embeddings, labels))

    inputs = (embeddings.requires_grad_(), proxies.requires_grad_())
    assert torch.autograd.gradcheck(value, inputs)


def value_and_gradients(
    loss: torch.nn.Module, embeddings: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor, list[Tensor]]:
    inputs = embeddings.clone().requires_grad_()
    value = loss(inputs, labels)
    value.backward()
    assert inputs.grad is not None
    gradients = [parameter.grad for parameter in loss.parameters() if parameter.grad is not None]
    return value, inputs.grad, gradients


def assert_same(ours: Any, theirs: Any, embeddings: Tensor, labels: Tensor) -> None:
    """In value and gradients; theirs holds its weights as columns."""
    value, gradient, (weights,) = value_and_gradients(ours, embeddings, labels)
    expected, expected_gradient, (columns,) = value_and_gradients(theirs, embeddings, labels)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(gradient, expected_gradient)
    torch.testing.assert_close(weights, columns.t())


def test_one_proxy_each_and_all_selected_is_a_normalized_softmax() -> None:
    embeddings, proxies, labels = random_problem(per_class=1)
    ours = with_proxies(proxies, num_classes=5, ratio=1, reg_weight=0)
    theirs = NormalizedSoftmaxLoss(5, 6, temperature=1)
    theirs.W.data = proxies.t().clone()
    assert_same(ours, theirs, embeddings, labels)


def test_all_selected_is_a_soft_triple_of_even_assignment() -> None:
    embeddings, proxies, labels = random_problem()
    ours = with_proxies(proxies, num_classes=5, ratio=1, reg_weight=0)
    theirs = SoftTripleLoss(5, 6, centers_per_class=3, la=3, gamma=1e12, margin=0)
    theirs.fc.data = proxies.t().clone()
    assert_same(ours, theirs, embeddings, labels)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_without_negatives_loss_and_gradient_are_zero(k: int) -> None:
    embeddings, proxies, labels = random_problem()
    loss = with_proxies(proxies, num_classes=5, ratio=k / 15, reg_weight=0)
    value, gradient, (weights,) = value_and_gradients(loss, embeddings, labels)
    assert value.item() == 0
    assert gradient.abs().max() == 0
    assert weights.abs().max() == 0


def test_without_negatives_the_proxy_term_still_moves_proxies() -> None:
    embeddings, proxies, labels = random_problem()
    loss = with_proxies(proxies, num_classes=5, ratio=0.2, reg_weight=0.3)
    _, gradient, (weights,) = value_and_gradients(loss, embeddings, labels)
    assert gradient.abs().max() == 0
    assert weights.abs().max() > 0


def test_a_ratio_without_negatives_is_warned_about_at_construction() -> None:
    with pytest.warns(UserWarning, match=r"ratio=0\.01 of 50 x 2 proxies selects 1"):
        ProxyGMLLoss(50, 4, 2, ratio=0.01)


def test_a_ratio_with_negatives_is_not_warned_about() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ProxyGMLLoss(50, 4, 2, ratio=0.05)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_exactly_k_proxies_are_selected_the_own_first(dtype: torch.dtype) -> None:
    embeddings, proxies, labels = random_problem(classes=6, per_class=4)
    similarities = with_proxies(proxies, 6)._similarities(embeddings).to(dtype)
    for k in (1, 3, 4, 5, 24):
        selected = select_proxies(similarities, labels, k)
        assert selected.flatten(1).sum(dim=1).tolist() == [k] * len(labels)
        own = selected[torch.arange(len(labels)), labels].sum(dim=1)
        assert own.tolist() == [min(k, 4)] * len(labels)


def test_with_fewer_selected_than_own_the_nearest_own_are_taken() -> None:
    similarities = torch.tensor([[[0.1, 0.7, 0.4], [0.9, 0.9, 0.9]]])
    selected = select_proxies(similarities, torch.tensor([0]), 2)
    assert selected.tolist() == [[[False, True, True], [False, False, False]]]


def test_a_selected_class_whose_similarities_cancel_stays_in_the_softmax() -> None:
    # Class 1's two proxies are opposite: selected, they sum to exactly zero.
    proxies = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8], [-0.6, -0.8]])
    loss = with_proxies(proxies, num_classes=2, ratio=1, reg_weight=0)
    value = loss(torch.tensor([[1.0, 0.0]]), torch.tensor([0]))
    assert value.item() == pytest.approx(math.log(math.e + 1) - 1, rel=1e-6)


@pytest.mark.parametrize(
    ("ratio", "classes", "per_class", "expected"),
    [
        (0.07, 100, 1, 7),  # 0.07 * 100 is a little more than 7 in floating point
        (0.05, 98, 12, 59),
        (0.05, 100, 12, 60),
        (0.0001, 10, 1, 1),
        (1, 10, 3, 30),
    ],
)
def test_the_number_selected_is_rounded_up(
    ratio: float, classes: int, per_class: int, expected: int
) -> None:
    assert num_selected(ratio, classes, per_class) == expected


def test_the_proxy_term_in_pieces_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    _, proxies, _ = random_problem()
    results = []
    for elements in (2**22, 10, 1):  # 15 rows at once, 2 rows of 5 classes, 1 row
        monkeypatch.setattr(proxygml, "CHUNK_ELEMENTS", elements)
        inputs = torch.nn.functional.normalize(proxies).requires_grad_()
        losses = proxy_losses(inputs, 5)
        (losses * torch.arange(15)).sum().backward()
        results.append((losses, inputs.grad))
    torch.testing.assert_close(results[1], results[0], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(results[2], results[0], rtol=1e-12, atol=1e-12)


def test_no_matrix_of_all_pairs_of_proxies_is_ever_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxygml, "CHUNK_ELEMENTS", 4 * 60)
    loss = ProxyGMLLoss(60, 4, proxies_per_class=1, ratio=0.1)
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            nonlocal largest
            result = func(*args, **(kwargs or {}))
            for tensor in result if isinstance(result, tuple | list) else [result]:
                if torch.is_tensor(tensor):
                    largest = max(largest, tensor.numel())
            return result

    with Watch():  # type: ignore[no-untyped-call]
        loss(torch.randn(3, 4, requires_grad=True), torch.tensor([0, 1, 59])).backward()
    assert 0 < largest < 60 * 60 / 10


def test_logits_are_sums_over_all_proxies_of_a_class() -> None:
    embeddings, proxies, _ = random_problem()
    logits = with_proxies(proxies, num_classes=5, scale=2).get_logits(embeddings)
    unit = torch.nn.functional.normalize(embeddings) @ torch.nn.functional.normalize(proxies).t()
    torch.testing.assert_close(logits, 2 * unit.view(7, 5, 3).sum(dim=2))


def test_the_length_of_embeddings_and_proxies_does_not_matter() -> None:
    embeddings, proxies, labels = random_problem()
    value = with_proxies(proxies, num_classes=5)(embeddings, labels)
    longer = with_proxies(3 * proxies, num_classes=5)(5 * embeddings, labels)
    torch.testing.assert_close(value, longer)


def test_scale_multiplies_the_class_sums() -> None:
    embeddings, proxies, labels = random_problem()
    loss = with_proxies(proxies, num_classes=5, ratio=1, reg_weight=0, scale=20)
    expected = torch.nn.functional.cross_entropy(loss.get_logits(embeddings), labels)
    torch.testing.assert_close(loss(embeddings, labels), expected)


def test_a_reducer_weighs_the_samples_and_leaves_the_proxy_term_a_mean() -> None:
    embeddings, proxies, labels = random_problem()
    loss = with_proxies(proxies, num_classes=5, ratio=0.5, reg_weight=0.3)
    loss.set_reducer(DoNothingReducer())
    terms = loss(embeddings, labels)
    weights = torch.tensor([1.0, 2, 3, 4, 5]).to(embeddings)
    loss.set_reducer(ClassWeightedReducer(weights))
    samples = (terms["loss"]["losses"] * weights[labels]).mean()
    expected = samples + terms["proxy_reg_loss"]["losses"]
    torch.testing.assert_close(loss(embeddings, labels), expected)
    loss.set_reducer(DivisorReducer())
    plain = with_proxies(proxies, num_classes=5, ratio=0.5, reg_weight=0.3)
    torch.testing.assert_close(loss(embeddings, labels), plain(embeddings, labels))


def test_weights_of_a_miner_leave_the_proxy_term_alone() -> None:
    embeddings, proxies, labels = random_problem()
    loss = with_proxies(proxies, num_classes=5, ratio=0.5, reg_weight=0.3)
    loss.reducer = DoNothingReducer()
    plain = loss(embeddings, labels)
    mined = loss(embeddings, labels, (torch.tensor([0]), torch.tensor([0]), torch.tensor([1])))
    weights = torch.tensor([1, 0.5, 0, 0, 0, 0, 0])
    torch.testing.assert_close(mined["loss"]["losses"], plain["loss"]["losses"] * weights)
    torch.testing.assert_close(mined["proxy_reg_loss"]["losses"], plain["proxy_reg_loss"]["losses"])


def test_proxies_start_uniform_within_the_authors_bounds() -> None:
    torch.manual_seed(0)
    proxies = ProxyGMLLoss(100, 512, 12).proxies
    bound = 1 / math.sqrt(1200)
    assert 0.99 * bound < proxies.abs().max().item() <= bound
    assert proxies.norm(dim=1).mean().item() == pytest.approx(0.38, abs=0.01)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ratio": 0}, "ratio must be positive, got 0"),
        ({"ratio": 1.5}, "at most 1, got 1.5"),
        ({"reg_weight": -1}, "reg_weight must not be negative, got -1"),
        ({"proxies_per_class": 0}, "proxies_per_class must be positive, got 0"),
        ({"scale": 0}, "scale must be positive, got 0"),
        ({"distance": LpDistance()}, "CosineSimilarity, got distance=LpDistance"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ProxyGMLLoss(4, 2, **settings)


@pytest.mark.parametrize("num_classes", [4, 8, 20, 21, 29, 30, 75, 8488])
def test_every_ratio_of_the_search_space_selects_negatives(num_classes: int) -> None:
    lowest = METHOD.space("cub", num_classes)["ratio"].low
    loss = METHOD.build_loss(num_classes, 4, proxies_per_class=2, ratio=lowest)
    assert loss.num_selected > 2


def test_a_ratio_that_selects_no_negatives_can_be_asked_for() -> None:
    with pytest.warns(UserWarning, match="sample term is zero"):
        loss = METHOD.build_loss(74, 4, ratio=0.01)
    assert loss.ratio == 0.01


def test_the_proxy_term_is_left_out_with_very_many_proxies() -> None:
    assert METHOD.build_loss(10_001, 2, proxies_per_class=2, reg_weight=0.3).reg_weight == 0
    assert METHOD.build_loss(10_000, 2, proxies_per_class=2, reg_weight=0.3).reg_weight == 0.3


@pytest.mark.parametrize("preset", ["mlrc", "paper", "official"])
@pytest.mark.parametrize(
    ("dataset", "expected"),
    [("cub", (12, 0.05, 0.3)), ("cars", (12, 0.05, 0.3)), ("sop", (1, 0.05, 0))],
)
def test_presets_have_the_published_values(
    preset: str, dataset: str, expected: tuple[float, ...]
) -> None:
    loss = METHOD.make_loss(75, 4, METHOD.preset(preset, dataset).params)
    assert (loss.proxies_per_class, loss.ratio, loss.reg_weight) == expected


def test_what_it_changes_of_its_parameters_is_told_with_the_reason() -> None:
    few = METHODS[0].make_loss(10, 8, {"ratio": 0.05})
    assert adjusted_by(few) == {
        "ratio": {
            "given": 0.05,
            "used": 0.15,
            "reason": "of 10 classes a smaller part selects a sample's own proxies alone",
        }
    }
    many = METHODS[0].make_loss(11318, 2, {"proxies_per_class": 2, "reg_weight": 0.3})
    assert adjusted_by(many)["reg_weight"]["used"] == 0.0
    assert adjusted_by(METHODS[0].make_loss(75, 8, {"ratio": 0.05})) == {}
