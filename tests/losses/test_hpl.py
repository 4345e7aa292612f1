"""HPL against its formula, worked examples and PML."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from pytorch_metric_learning.distances import LpDistance
from pytorch_metric_learning.losses import ProxyAnchorLoss, ProxyNCALoss
from pytorch_metric_learning.reducers import DoNothingReducer
from torch import Tensor

from harness.losses._tools.kmeans import cluster_means
from harness.losses.hpl import METHODS, HierarchicalProxyLoss
from harness.losses.method import adjusted_by
from harness.losses.proxynca_pp import ProxyNCAPlusPlusLoss

DATASETS = ("cub", "cars", "sop", "inshop", "inaturalist", "imagenet", "glyphs", "folder")
MODES = ("kmeans", "kmeans+grad", "mean")
CLASSES, DIM = 9, 5


def directions(*degrees: float) -> Tensor:
    radians = torch.tensor(degrees, dtype=torch.float64).deg2rad()
    return torch.stack([radians.cos(), radians.sin()], dim=1)


def four_proxies(**settings: Any) -> HierarchicalProxyLoss:
    loss = HierarchicalProxyLoss(4, 2, scale=1, num_coarse=(2,), **settings).double()
    loss.proxies.data = 3 * directions(0, 10, 90, 100)
    return loss


def random_problem(batch: int = 6) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    embeddings = torch.randn(batch, DIM, generator=generator, dtype=torch.float64)
    proxies = torch.randn(CLASSES, DIM, generator=generator, dtype=torch.float64)
    return embeddings, proxies, torch.tensor([0, 0, 3, 8, 5, 5])[:batch]


def with_proxies(proxies: Tensor, **settings: Any) -> HierarchicalProxyLoss:
    loss = HierarchicalProxyLoss(*proxies.shape, **settings).double()
    loss.proxies.data = proxies.clone()
    return loss


def unit(rows: Tensor) -> Tensor:
    return torch.nn.functional.normalize(rows)


def loop_nca(cosines: list[list[float]], labels: list[int], scale: float) -> float:
    total = 0.0
    for row, label in zip(cosines, labels, strict=True):
        total -= scale * (2 * row[label] - 2)
        total += math.log(sum(math.exp(scale * (2 * s - 2)) for s in row))
    return total / len(labels)


def loop_anchor(
    cosines: list[list[float]], labels: list[int], scale: float, margin: float
) -> float:
    num_proxies = len(cosines[0])
    positive = negative = 0.0
    for p in range(num_proxies):
        pairs = list(zip([row[p] for row in cosines], labels, strict=True))
        own = [math.exp(-scale * (s - margin)) for s, label in pairs if label == p]
        others = [math.exp(scale * (s + margin)) for s, label in pairs if label != p]
        positive += math.log(1 + sum(own))
        negative += math.log(1 + sum(others))
    return positive / len(set(labels)) + negative / num_proxies


def value_and_gradients(
    loss: Any, embeddings: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    inputs = embeddings.clone().requires_grad_()
    value = loss(inputs, labels)
    value.backward()
    return value, inputs.grad, loss.proxies.grad


@pytest.mark.parametrize("mode", MODES)
def test_the_worked_example(mode: str) -> None:
    loss = four_proxies(coarse_mode=mode)
    value = loss(directions(0), torch.tensor([0]))
    assert value.item() == pytest.approx(0.897383, abs=1e-6)
    assert loss.assign_1[0] == loss.assign_1[1] != loss.assign_1[2] == loss.assign_1[3]
    expected = directions(5, 95)
    torch.testing.assert_close(loss.coarse_1[loss.assign_1[[0, 2]]].detach(), expected)


def test_the_levels_of_the_worked_example() -> None:
    sub_losses = four_proxies(reducer=DoNothingReducer())(directions(0), torch.tensor([0]))
    assert sub_losses["level0"]["losses"].item() == pytest.approx(0.788928, abs=1e-6)
    assert sub_losses["level1"]["losses"].item() == pytest.approx(0.108455, abs=1e-6)


def test_level_weights_multiply_the_levels() -> None:
    loss = four_proxies(level_weights=(2, 10))
    value = loss(directions(0), torch.tensor([0]))
    assert value.item() == pytest.approx(2 * 0.788928 + 10 * 0.108455, abs=1e-5)


@pytest.mark.parametrize("base", ["nca", "anchor"])
@pytest.mark.parametrize("mode", MODES)
def test_equals_the_formula_in_plain_loops_on_every_level(base: str, mode: str) -> None:
    embeddings, proxies, labels = random_problem()
    scales, margins, weights = (4.0, 2.0, 3.0), (0.1, 0.2, 0.3), (1.0, 0.5, 2.0)
    loss = with_proxies(
        proxies,
        base=base,
        num_coarse=(4, 2),
        scale=scales,
        margin=margins,
        level_weights=weights,
        coarse_mode=mode,
    )
    value = loss(embeddings, labels)

    level_proxies = [unit(proxies)]
    level_labels = [labels.tolist()]
    for assign in (loss.assign_1.tolist(), loss.assign_2.tolist()):
        members = [
            torch.stack([p for p, a in zip(level_proxies[-1], assign, strict=True) if a == k])
            for k in range(max(assign) + 1)
        ]
        level_proxies.append(unit(torch.stack([group.mean(dim=0) for group in members])))
        level_labels.append([assign[label] for label in level_labels[-1]])
    expected = 0.0
    for level in range(3):
        cosines = (unit(embeddings) @ level_proxies[level].t()).tolist()
        if base == "nca":
            term = loop_nca(cosines, level_labels[level], scales[level])
        else:
            term = loop_anchor(cosines, level_labels[level], scales[level], margins[level])
        expected += weights[level] * term
    assert value.item() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("base", ["nca", "anchor"])
@pytest.mark.parametrize("mode", MODES)
def test_gradients_equal_finite_differences(base: str, mode: str) -> None:
    embeddings, proxies, labels = random_problem()
    loss = with_proxies(proxies, base=base, num_coarse=(3,), scale=2, coarse_mode=mode)
    loss(embeddings, labels)
    loss.eval()  # the hierarchy stays as it is

    def value(embeddings: Tensor, *values: Tensor) -> Tensor:
        parameters = dict(zip(dict(loss.named_parameters()), values, strict=True))
        return torch.func.functional_call(loss, parameters, (embeddings, labels))

    inputs = [embeddings, *(parameter.detach() for parameter in loss.parameters())]
    assert len(inputs) == (3 if mode == "kmeans+grad" else 2)
    assert torch.autograd.gradcheck(value, [each.requires_grad_() for each in inputs])


@pytest.mark.parametrize("mined", [False, True])
def test_without_levels_it_is_the_anchor_loss_of_pml(mined: bool) -> None:
    embeddings, proxies, labels = random_problem()
    ours = with_proxies(proxies, base="anchor", num_coarse=())
    theirs = ProxyAnchorLoss(CLASSES, DIM)
    theirs.proxies.data = proxies.clone()
    triplets = (torch.tensor([0, 0]), torch.tensor([1, 1]), torch.tensor([2, 3]))
    results = []
    for loss in (ours, theirs):
        inputs = embeddings.clone().requires_grad_()
        value = loss(inputs, labels, triplets if mined else None)
        value.backward()
        results.append((value, inputs.grad, loss.proxies.grad))
    torch.testing.assert_close(results[0], results[1])


def test_without_levels_it_is_proxynca() -> None:
    embeddings, proxies, labels = random_problem()
    ours = with_proxies(proxies, num_coarse=(), scale=7)
    theirs = ProxyNCALoss(CLASSES, DIM, softmax_scale=7)
    theirs.proxies.data = proxies.clone()
    torch.testing.assert_close(
        value_and_gradients(ours, embeddings, labels),
        value_and_gradients(theirs, embeddings, labels),
    )


def test_a_denominator_of_negatives_is_that_of_the_base() -> None:
    embeddings, proxies, labels = random_problem()
    ours = with_proxies(proxies, num_coarse=(), scale=3, denominator="negatives")
    theirs = ProxyNCAPlusPlusLoss(CLASSES, DIM, temperature=1 / 3, denominator="negatives")
    theirs.proxies.data = proxies.clone()
    torch.testing.assert_close(ours(embeddings, labels), theirs(embeddings, labels))


def test_one_coarse_proxy_adds_nothing_to_nca() -> None:
    embeddings, proxies, labels = random_problem()
    one = value_and_gradients(with_proxies(proxies, num_coarse=(1,)), embeddings, labels)
    none = value_and_gradients(with_proxies(proxies, num_coarse=()), embeddings, labels)
    torch.testing.assert_close(one, none, rtol=0, atol=0)


def test_one_coarse_proxy_adds_only_positives_to_anchor() -> None:
    embeddings, proxies, labels = random_problem()
    loss = with_proxies(
        proxies, base="anchor", num_coarse=(1,), scale=2, reducer=DoNothingReducer()
    )
    inputs = embeddings.requires_grad_()
    sub_losses = loss(inputs, labels)
    assert sub_losses["level1_neg"]["losses"].tolist() == [0]
    assert sub_losses["level1_pos"]["losses"].item() > 0
    sum(info["losses"].sum() for info in sub_losses.values()).backward()
    assert inputs.grad is not None
    assert inputs.grad.isfinite().all()


@pytest.mark.parametrize("base", ["nca", "anchor"])
def test_as_many_coarse_proxies_as_classes_repeat_the_base(base: str) -> None:
    embeddings, proxies, labels = random_problem()
    loss = with_proxies(proxies, base=base, num_coarse=(CLASSES,), level_weights=(1, 0.7))
    value = loss(embeddings, labels)
    assert sorted(loss.assign_1.tolist()) == list(range(CLASSES))
    expected = with_proxies(proxies, base=base, num_coarse=())(embeddings, labels)
    torch.testing.assert_close(value, 1.7 * expected)


def test_coarse_proxies_get_gradients_in_their_mode_only() -> None:
    embeddings, proxies, labels = random_problem()
    for mode in MODES:
        loss = with_proxies(proxies, num_coarse=(3,), level_weights=(0, 1), coarse_mode=mode)
        loss(embeddings, labels).backward()
        assert loss.proxies.grad is not None
        assert (loss.proxies.grad.abs().max() > 0) == (mode == "mean")
        assert ("coarse_1" in dict(loss.named_parameters())) == (mode == "kmeans+grad")
        if mode == "kmeans+grad":
            assert loss.coarse_1.grad.abs().max() > 0


def steps(loss: HierarchicalProxyLoss, count: int, move: float = 0.0) -> list[list[int]]:
    """Assignments after each of some training steps, with the proxies moved in between."""
    embeddings, _, labels = random_problem()
    generator = torch.Generator().manual_seed(4)
    seen = []
    for _ in range(count):
        loss(embeddings, labels)
        seen.append(loss.assign_1.tolist())
        noise = torch.randn(CLASSES, DIM, generator=generator, dtype=torch.float64)
        loss.proxies.data += move * noise
    return seen


def test_clusters_are_found_at_the_first_step_and_every_so_many() -> None:
    loss = with_proxies(random_problem()[1], num_coarse=(3,), update_every=4)
    seen = steps(loss, 12, move=2.0)
    for start in (0, 4, 8):
        assert seen[start : start + 4] == [seen[start]] * 4
    assert seen[0] != seen[4] != seen[8]


def test_assignments_are_the_nearest_clusters_of_the_proxies() -> None:
    loss = with_proxies(random_problem()[1], num_coarse=(3,), update_every=1)
    steps(loss, 3, move=0.5)
    embeddings, _, labels = random_problem()
    loss(embeddings, labels)
    nearest = (unit(loss.proxies) @ loss.coarse_1.t()).argmax(dim=1)
    assert loss.assign_1.tolist() == nearest.tolist()


def test_evaluation_neither_counts_nor_clusters() -> None:
    embeddings, proxies, labels = random_problem()
    loss = with_proxies(proxies, num_coarse=(3,), update_every=1)
    loss(embeddings, labels)
    loss.proxies.data = proxies.flip(0).clone()
    before = {name: value.clone() for name, value in loss.state_dict().items()}
    loss.eval()
    loss(embeddings, labels)
    torch.testing.assert_close(dict(loss.state_dict()), before, rtol=0, atol=0)
    assert loss.step == 1


def test_evaluation_before_training_gives_the_value_of_the_first_step() -> None:
    embeddings, proxies, labels = random_problem()
    loss = with_proxies(proxies, num_coarse=(3,)).eval()
    before = {name: value.clone() for name, value in loss.state_dict().items()}
    value = loss(embeddings, labels)
    torch.testing.assert_close(dict(loss.state_dict()), before, rtol=0, atol=0)
    torch.testing.assert_close(value, loss.train()(embeddings, labels))


def test_a_state_dict_holds_clusters_and_step() -> None:
    loss = with_proxies(random_problem()[1], num_coarse=(3, 2), update_every=5)
    steps(loss, 7, move=1.0)
    other = with_proxies(random_problem()[1], num_coarse=(3, 2), update_every=5)
    other.load_state_dict(loss.state_dict())
    assert other.step == 7
    assert other.assign_1.tolist() == loss.assign_1.tolist()
    assert other.assign_2.tolist() == loss.assign_2.tolist()
    assert torch.equal(other.coarse_1, loss.coarse_1)


def test_clustering_leaves_the_random_stream_alone() -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    loss = with_proxies(random_problem()[1], num_coarse=(3,), update_every=1)
    torch.manual_seed(0)
    steps(loss, 3, move=1.0)
    assert torch.rand(3).tolist() == expected.tolist()


def test_clustering_does_not_depend_on_the_random_stream() -> None:
    seen = []
    for seed in (0, 1):
        loss = with_proxies(random_problem()[1], num_coarse=(3,), update_every=1)
        torch.manual_seed(seed)
        seen.append(steps(loss, 4, move=1.0))
    assert seen[0] == seen[1]


def test_backward_survives_a_clustering_after_forward() -> None:
    embeddings, proxies, labels = random_problem()
    for mode in MODES:
        loss = with_proxies(proxies, num_coarse=(3,), update_every=1, coarse_mode=mode)
        (loss(embeddings, labels) + loss(embeddings, labels)).backward()


def test_superclasses_are_level_one_for_good() -> None:
    embeddings, proxies, labels = random_problem()
    superclasses = [7, 7, 7, 1, 1, 1, 4, 4, 4]
    for mode in MODES:
        loss = with_proxies(
            proxies, superclasses=superclasses, update_every=2, scale=3, coarse_mode=mode
        )
        value = loss(embeddings, labels)
        assert loss.assign_1.tolist() == [2, 2, 2, 0, 0, 0, 1, 1, 1]
        groups = [[3, 4, 5], [6, 7, 8], [0, 1, 2]]
        means = unit(torch.stack([unit(proxies)[group].mean(dim=0) for group in groups]))
        coarse = loop_nca((unit(embeddings) @ means.t()).tolist(), [2, 2, 0, 1, 0, 0], 3)
        fine = loop_nca((unit(embeddings) @ unit(proxies).t()).tolist(), labels.tolist(), 3)
        assert value.item() == pytest.approx(fine + coarse, rel=1e-9)
        assert steps(loss, 3, move=2.0)[-1] == [2, 2, 2, 0, 0, 0, 1, 1, 1]


def test_the_means_of_superclasses_are_renewed_on_time() -> None:
    embeddings, proxies, labels = random_problem()
    loss = with_proxies(proxies, superclasses=[0, 1, 2] * 3, update_every=2)
    loss(embeddings, labels)
    first = loss.coarse_1.clone()
    loss.proxies.data = proxies.flip(1).clone()
    loss(embeddings, labels)
    assert torch.equal(loss.coarse_1, first)
    loss(embeddings, labels)
    torch.testing.assert_close(loss.coarse_1, cluster_means(unit(loss.proxies), loss.assign_1, 3))


def test_levels_above_superclasses_are_clustered() -> None:
    embeddings, proxies, labels = random_problem()
    loss = with_proxies(proxies, superclasses=[0, 1, 2] * 3, num_coarse=(99, 2))
    loss(embeddings, labels)
    assert loss.num_coarse == (3, 2)
    assert set(loss.assign_2.tolist()) == {0, 1}


def test_momenta_of_new_coarse_proxies_are_zeroed() -> None:
    embeddings, proxies, labels = random_problem()
    loss = with_proxies(proxies, num_coarse=(3,), update_every=3, coarse_mode="kmeans+grad")
    optimizer = torch.optim.SGD(loss.parameters(), lr=0.1, momentum=0.9)
    optimizer.register_step_pre_hook(loss.forget_reseeded)
    for step in range(7):
        optimizer.zero_grad()
        loss(embeddings, labels).backward()
        optimizer.step()
        momentum = optimizer.state[loss.coarse_1]["momentum_buffer"]
        assert torch.equal(momentum, loss.coarse_1.grad) == (step % 3 == 0)
        if step > 0:
            fine_momentum = optimizer.state[loss.proxies]["momentum_buffer"]
            assert not torch.equal(fine_momentum, loss.proxies.grad)  # type: ignore[arg-type]


def test_coarse_parameters_are_trained_between_clusterings() -> None:
    embeddings, proxies, labels = random_problem()
    loss = with_proxies(proxies, num_coarse=(3,), update_every=2, coarse_mode="kmeans+grad")
    optimizer = torch.optim.SGD([loss.coarse_1], lr=0.1)
    loss(embeddings, labels).backward()
    optimizer.step()
    means = cluster_means(unit(loss.proxies), loss.assign_1, 3)
    assert not torch.allclose(loss.coarse_1, means)
    loss(embeddings, labels)
    assert not torch.allclose(loss.coarse_1, means)
    loss(embeddings, labels)
    torch.testing.assert_close(
        loss.coarse_1.detach(), cluster_means(unit(loss.proxies), loss.assign_1, 3).detach()
    )


@pytest.mark.parametrize("base", ["nca", "anchor"])
def test_logits_are_those_of_the_classes(base: str) -> None:
    embeddings, proxies, _ = random_problem()
    loss = with_proxies(proxies, base=base, num_coarse=(3,), scale=(5, 1))
    factor = 10 if base == "nca" else 1
    expected = factor * unit(embeddings) @ unit(proxies).t()
    torch.testing.assert_close(loss.get_logits(embeddings), expected)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"base": "triplet"}, "base must be one of .*'triplet'"),
        ({"num_coarse": (10,)}, r"between 1 and .* 9, got \(10,\)"),
        ({"num_coarse": (0,)}, r"between 1 and .* 9, got \(0,\)"),
        ({"num_coarse": (3, 4)}, r"between 1 and .* 3, got \(3, 4\)"),
        ({"update_every": 0}, "update_every must be positive, got 0"),
        ({"scale": 0}, "scale must be positive, got 0"),
        ({"scale": (1, 2, 3)}, "scale must be one number or one per level, here 2 .*got 3"),
        ({"margin": (1,)}, "margin must be one number or one per level, here 2 .*got 1"),
        ({"level_weights": (1, -1)}, "level_weights must not be negative"),
        ({"coarse_mode": "other"}, "coarse_mode must be one of .*'other'"),
        ({"superclasses": [0, 1]}, r"one for each of 9 classes, got shape \(2,\)"),
        ({"denominator": "negatives", "num_coarse": (1,)}, "2 proxies or more, got 1"),
        ({"distance": LpDistance()}, "CosineSimilarity, got distance=LpDistance"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HierarchicalProxyLoss(CLASSES, DIM, **{"num_coarse": (3,), **settings})


@pytest.mark.parametrize("method", METHODS[:2], ids=lambda method: method.name)
@pytest.mark.parametrize("num_classes", [4, 75, 8488])
def test_few_classes_have_at_most_half_as_many_coarse_proxies(
    method: Any, num_classes: int
) -> None:
    for dataset in DATASETS:
        params = method.preset("mlrc", dataset).params
        loss = method.make_loss(num_classes, 2, params)
        assert loss.num_coarse == (min(params["num_coarse"], num_classes // 2),)


def test_the_coarse_level_has_the_classes_scale_and_margin_unless_it_has_its_own() -> None:
    nca, anchor, *_ = METHODS
    loss: Any = nca.make_loss(100, 2, {"scale_fine": 5.0})
    assert loss.scale == (5, 5)
    loss = anchor.make_loss(100, 2, {"scale_fine": 5.0, "margin_fine": 0.3})
    assert (loss.scale, loss.margin) == ((5, 5), (0.3, 0.3))
    assert anchor.make_loss(100, 2, {}).scale == (32, 32)


def test_options_of_a_method_reach_its_loss() -> None:
    params = {"coarse_weight": 0.25, "coarse_mode": "mean", "denominator": "negatives"}
    loss: Any = METHODS[0].make_loss(100, 2, params)
    assert loss.level_weights == (1, 0.25)
    assert (loss.coarse_mode, loss.denominator) == ("mean", "negatives")


def test_every_parameter_reaches_its_level() -> None:
    nca, anchor, *_ = METHODS
    loss: Any = nca.build_loss(
        100, 2, num_coarse=7, update_every=9, scale_fine=2.0, scale_coarse=3.0
    )
    assert (loss.base, loss.num_coarse, loss.update_every) == ("nca", (7,), 9)
    assert loss.scale == (2, 3)
    loss = anchor.build_loss(
        100, 2, scale_fine=20.0, scale_coarse=30.0, margin_fine=0.2, margin_coarse=0.3
    )
    assert (loss.base, loss.scale, loss.margin) == ("anchor", (20, 30), (0.2, 0.3))


def test_published_numbers_of_coarse_proxies() -> None:
    for method in METHODS[:2]:
        counts = [method.preset("paper", name).params["num_coarse"] for name in DATASETS[:4]]
        assert counts == [10, 10, 500, 500]


def build(name: str, hierarchy: list[int] | None = None, **params: Any) -> Any:
    (method,) = [method for method in METHODS if method.name == name]
    return method.make_loss(8, 4, params, hierarchy)


def test_several_levels_are_parameters_of_the_method() -> None:
    loss = build("hpl-pa", num_coarse=4, more_coarse=[2], level_weights=[1.0, 0.5, 0.25])
    assert loss.num_coarse == (4, 2)
    assert loss.level_weights == (1.0, 0.5, 0.25)
    assert len(loss.scale) == len(loss.margin) == 3


def test_the_number_of_clusters_is_capped_and_that_is_told() -> None:
    loss = build("hpl-nca", num_coarse=500, more_coarse=[500])
    assert loss.num_coarse == (4, 2)
    notes = adjusted_by(loss)
    assert notes["num_coarse"] == {
        "given": 500,
        "used": 4,
        "reason": "at most half of the 8 classes",
    }
    assert notes["more_coarse"]["used"] == [2]
    assert adjusted_by(build("hpl-nca", num_coarse=3)) == {}


@pytest.mark.parametrize("name", ["hpl-nca-gt", "hpl-pa-gt"])
def test_given_superclasses_are_the_first_coarse_level(name: str) -> None:
    hierarchy = [9, 9, 3, 3, 3, 5, 5, 9]
    loss = build(name, hierarchy)
    assert loss.num_coarse == (3,) and loss.assign_1.tolist() == [2, 2, 0, 0, 0, 1, 1, 2]
    assert adjusted_by(loss)["num_coarse"]["used"] == 3  # how many there are is written down
    same = build(name.removesuffix("-gt"), hierarchy, superclasses=True)
    assert same.assign_1.tolist() == loss.assign_1.tolist()
    assert build(name.removesuffix("-gt"), hierarchy, num_coarse=2).num_coarse == (2,)


def test_superclasses_of_a_data_set_without_any_are_refused() -> None:
    with pytest.raises(ValueError, match="needs a data set that has superclasses"):
        build("hpl-nca-gt")
