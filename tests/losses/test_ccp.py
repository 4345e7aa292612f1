"""CCP: its loss and the alternating projections."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from pytorch_metric_learning.losses import ContrastiveLoss, NTXentLoss, TripletMarginLoss
from torch import Tensor, nn

from harness.losses._tools.ball import BallLpDistance, ball_normalize
from harness.losses._tools.k_center import farthest_points
from harness.losses.ball_losses import PAIR_LOSSES, build_pair_loss
from harness.losses.ccp import (
    METHODS,
    AlternatingProjections,
    CCPLoss,
    build_hook,
)

EMBEDDINGS = torch.tensor([[3.0, 4.0], [0.3, 0.4], [-0.5, 0.5], [0.2, -0.9]])
LABELS = torch.tensor([0, 0, 1, 1])
CARS = PAIR_LOSSES["c2"].published["cars"]
PROXIES = torch.tensor([[[0.6, 0.8], [0.0, 0.5]], [[-1.0, 0.0], [0.0, -1.0]]])


def worked_example(
    base: Any, weight: float, base_params: Mapping[str, float] | None = None
) -> float:
    loss = CCPLoss(2, 2, base, 2, weight, base_params=base_params)
    loss.set_proxies(PROXIES)
    return loss(EMBEDDINGS, LABELS).item()


@pytest.mark.parametrize(
    ("base", "params", "expected"),
    [
        ("c2", CARS, 0.654916),
        ("ms", {"alpha": 2, "beta": 40, "base": 0.5}, 0.779663),
        ("triplet", {"margin": 0.1}, 0.553749),
        ("c1", {"margin": 0.5}, 1.299983),
    ],
)
def test_the_proxy_term_has_the_worked_out_value(
    base: str, params: dict[str, float], expected: float
) -> None:
    assert worked_example(base, 0, params) == pytest.approx(expected, abs=1e-6)


def test_the_batch_term_adds_a_tenth_of_the_loss_within_the_batch() -> None:
    assert worked_example("c2", 0.1, CARS) == pytest.approx(0.731658, abs=1e-6)


@pytest.mark.parametrize(
    ("share", "expected"),
    [
        (0.0, 0.654916),  # the proxies alone
        (1 / 11, 0.731658 * 10 / 11),  # the authors' sum, but for its scale
        # By hand: positives (0.6, 0.8), (0.3, 0.4) are 0.5 apart and (-0.5, 0.5), (0.2, -0.9)
        # are sqrt(2.45), on average 0.7674 beyond the margin of 0.2652; no negatives are nearer
        # than 0.5409.
        (1.0, (0.5 + math.sqrt(2.45)) / 2 - 0.2652),
    ],
)
def test_the_share_of_the_batch_goes_from_the_paper_to_the_base(
    share: float, expected: float
) -> None:
    loss = CCPLoss(2, 2, "c2", 2, base_params=CARS, batch_share=share)
    loss.set_proxies(PROXIES)
    assert loss(EMBEDDINGS, LABELS).item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("normalize", [True, False])
def test_a_pml_loss_as_base_sees_ball_normalised_vectors(normalize: bool) -> None:
    distance = BallLpDistance(normalize_embeddings=normalize)
    base = ContrastiveLoss(**CARS, distance=distance)
    assert worked_example(base, 0.1) == pytest.approx(0.731658, abs=1e-6)


def random_case(
    base: Any, classes: int = 5, per_class: int = 3, size: int = 6, **kwargs: Any
) -> tuple[CCPLoss, Tensor, Tensor]:
    torch.manual_seed(0)
    loss = CCPLoss(classes, 4, base, per_class, **kwargs).double()
    return loss, torch.randn(size, 4).double(), torch.randint(classes, (size,))


def test_the_triplet_base_sees_every_triplet_of_a_sample_and_two_proxies() -> None:
    loss, embeddings, labels = random_case("triplet", batch_loss_weight=0)
    ball = [v / max(1.0, float(v.norm())) for v in embeddings]
    proxies = [v / max(1.0, float(v.norm())) for v in loss.proxies.detach()]
    terms = [
        float((x - proxies[p]).norm() - (x - proxies[n]).norm()) + 0.0961
        for x, label in zip(ball, labels, strict=True)
        for p, n in itertools.product(range(15), repeat=2)
        if p % 5 == label and n % 5 != label
    ]
    nonzero = [term for term in terms if term > 0]
    expected = sum(nonzero) / len(nonzero)
    assert loss(embeddings, labels).item() == pytest.approx(expected)


def test_a_triplet_base_that_samples_its_triplets_goes_on_sampling_them() -> None:
    base = TripletMarginLoss(margin=0.5, triplets_per_anchor=1)
    loss, embeddings, labels = random_case(base, classes=20, batch_loss_weight=0)
    values = {round(loss(embeddings, labels).item(), 9) for _ in range(8)}
    assert len(values) > 1


@pytest.mark.parametrize("base", ["c1", "c2", "ms", "triplet"])
def test_gradients_are_right_for_embeddings_and_proxies(base: str) -> None:
    loss, embeddings, labels = random_case(base)

    def value(embeddings: Tensor, proxies: Tensor) -> Tensor:
        return torch.func.functional_call(loss, {"proxies": proxies}, (embeddings, labels))

    proxies = loss.proxies.detach().clone()
    assert torch.autograd.gradcheck(value, (embeddings.requires_grad_(), proxies.requires_grad_()))


@pytest.mark.parametrize("base", ["c1", "c2", "ms", "triplet"])
def test_a_share_mixes_the_two_terms_in_value_and_gradient(base: str) -> None:
    results = {}
    for share in (0.0, 0.3, 1.0):
        loss, embeddings, labels = random_case(base, batch_share=share)
        value = loss(embeddings.requires_grad_(), labels)
        results[share] = value.detach(), *torch.autograd.grad(value, embeddings)
    for mixed, proxies, batch in zip(results[0.3], results[0.0], results[1.0], strict=True):
        torch.testing.assert_close(mixed, 0.7 * proxies + 0.3 * batch)


@pytest.mark.parametrize("base", ["c1", "c2", "ms", "triplet"])
def test_the_whole_share_is_the_base_loss_alone(base: str) -> None:
    loss, embeddings, labels = random_case(base, batch_share=1.0)
    alone = build_pair_loss(base)(embeddings, labels)
    torch.testing.assert_close(loss(embeddings, labels), alone)
    loss(embeddings.requires_grad_(), labels).backward()
    assert loss.proxies.grad is None


@pytest.mark.parametrize("base", ["c1", "c2", "ms", "triplet"])
def test_every_tensor_is_made_on_the_device_of_the_inputs(base: str) -> None:
    loss, embeddings, labels = random_case(base)
    expected = loss(embeddings, labels).item()
    with torch.device("meta"):  # where a tensor made without device= cannot mix with real ones
        assert loss(embeddings, labels).item() == expected


@pytest.mark.parametrize("base", ["c1", "c2", "ms", "triplet"])
def test_one_class_and_one_proxy_work(base: str) -> None:
    loss, embeddings, labels = random_case(base, classes=1, per_class=1)
    assert loss(embeddings, labels).isfinite()


def test_a_miners_pairs_concern_the_batch_term_alone() -> None:
    loss, embeddings, labels = random_case("c2")
    pairs = (torch.tensor([0]), torch.tensor([1]), torch.tensor([2, 3]), torch.tensor([4, 5]))
    mined, plain = loss(embeddings, labels, pairs), loss(embeddings, labels)
    assert mined != plain
    within = [0.1 * loss.base(ball_normalize(embeddings), labels, given) for given in (pairs, None)]
    torch.testing.assert_close(mined - within[0], plain - within[1])


@pytest.mark.parametrize("base", ["c1", "c2"])
def test_logits_are_the_largest_similarity_to_a_proxy_of_the_class(base: str) -> None:
    loss = CCPLoss(2, 2, base, 2)
    loss.set_proxies(PROXIES)
    logits = loss.get_logits(torch.tensor([[0.0, 0.8], [-2.0, 0.0]]))
    expected = {
        "c1": [[0.64, 0.0], [0.0, 1.0]],
        "c2": [[-0.3, -math.sqrt(1.64)], [-math.sqrt(1.25), 0.0]],
    }
    torch.testing.assert_close(logits, torch.tensor(expected[base]))


def test_proxy_p_of_class_c_is_row_p_times_classes_plus_c() -> None:
    loss = CCPLoss(3, 2, proxies_per_class=4)
    proxies = torch.randn(3, 4, 2)
    loss.set_proxies(proxies)
    for p, c in itertools.product(range(4), range(3)):
        assert torch.equal(loss.proxies[p * 3 + c], proxies[c, p])
        assert loss.proxy_labels[p * 3 + c] == c
    assert torch.equal(loss.class_proxies(), proxies)


def test_setting_proxies_keeps_the_parameter_that_an_optimizer_holds() -> None:
    loss = CCPLoss(2, 2, proxies_per_class=2)
    parameter = loss.proxies
    loss.set_proxies(PROXIES)
    assert loss.proxies is parameter
    assert parameter.requires_grad


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"base": "c3"}, "must be one of c1, c2, ms, triplet or a PML loss, got 'c3'"),
        ({"base_params": {"margin": 1}}, "no parameter of base 'c2' named 'margin'"),
        ({"base": NTXentLoss(), "base_params": {"margin": 1}}, "base given by name"),
        ({"proxies_per_class": 0}, "proxies_per_class must be positive, got 0"),
        ({"batch_loss_weight": -1}, "must not be negative, got -1"),
        ({"batch_share": 1.5}, "batch_share must lie between 0 and 1, got 1.5"),
        ({"batch_share": 0.5, "batch_loss_weight": 0.1}, "give one of them, got 0.5 and 0.1"),
    ],
)
def test_impossible_settings_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CCPLoss(2, 2, **arguments)


def test_proxies_of_another_shape_or_not_finite_are_refused() -> None:
    loss = CCPLoss(2, 2, proxies_per_class=2)
    with pytest.raises(ValueError, match=r"\(2, 2, 2\), got \(4, 2\)"):
        loss.set_proxies(PROXIES.flatten(0, 1))
    with pytest.raises(ValueError, match="finite"):
        loss.set_proxies(PROXIES / 0)


# Alternating projections

NUM_CLASSES = 3
DIM = 4


@dataclass
class Run:
    """A training run as a hook sees it, with a small model and pools that count up."""

    model: nn.Module
    loss: CCPLoss
    step: int = 0
    train_loss: float = 0.0
    pools: list[Tensor] = field(default_factory=list)

    def embed_class_pool(self, images_per_class: int) -> Tensor:
        generator = torch.Generator().manual_seed(len(self.pools))
        shape = (NUM_CLASSES, images_per_class, DIM)
        self.pools.append(torch.randn(shape, generator=generator, device="cpu"))
        return self.pools[-1]


def new_run(proxies_per_class: int = 2) -> Run:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Linear(6, DIM))
    for parameter in model[1].parameters():
        parameter.requires_grad_(False)
    return Run(model, CCPLoss(NUM_CLASSES, DIM, proxies_per_class=proxies_per_class))


def backward(run: Run) -> None:
    run.model.zero_grad()
    run.loss.zero_grad()
    labels = torch.arange(6, device="cpu") % NUM_CLASSES
    inputs = torch.randn(6, 5, generator=torch.Generator().manual_seed(run.step), device="cpu")
    run.loss(run.model(inputs), labels).backward()


def added_gradients(hook: AlternatingProjections, run: Run) -> dict[str, Tensor]:
    """What the hook adds to the gradient of each parameter of model and loss."""
    backward(run)
    parameters = dict([*run.model.named_parameters(), *run.loss.named_parameters()])
    before = {name: p.grad.clone() for name, p in parameters.items() if p.grad is not None}
    hook.after_backward(run)
    assert {name for name, p in parameters.items() if p.grad is not None} == set(before)
    return {name: parameters[name].grad - grad for name, grad in before.items()}


def move_weights(run: Run, by: float) -> None:
    with torch.no_grad():
        for parameter in run.model.parameters():
            parameter.add_(by)


def switch(hook: AlternatingProjections, run: Run) -> None:
    """One validation that improves, then three that do not."""
    for score in (0.5, 0.1, 0.2, 0.3):
        hook.on_validation_end(run, score)


def test_training_begins_with_the_pool_points_farthest_from_zero() -> None:
    run, hook = new_run(), AlternatingProjections(pool_size=5)
    hook.on_train_begin(run)
    (pool,) = run.pools
    assert pool.shape == (NUM_CLASSES, 5, DIM)
    assert torch.equal(run.loss.class_proxies()[:, 0], _longest(pool))
    expected = farthest_points(pool, torch.zeros(NUM_CLASSES, 2, DIM))
    assert torch.equal(run.loss.class_proxies(), expected)


def _longest(pool: Tensor) -> Tensor:
    return torch.stack([points[points.norm(dim=1).argmax()] for points in pool])


def test_the_first_instance_is_not_regularised() -> None:
    run, hook = new_run(), AlternatingProjections(reference_weight=1.0)
    hook.on_train_begin(run)
    hook.on_validation_end(run, 0.5)
    move_weights(run, 1.0)
    assert all(
        torch.equal(added, torch.zeros_like(added)) for added in added_gradients(hook, run).values()
    )


def test_later_instances_pull_towards_the_best_weights_of_the_one_before() -> None:
    run, hook = new_run(), AlternatingProjections(reference_weight=0.25)
    hook.on_train_begin(run)
    switch(hook, run)
    assert hook.instance == 1
    assert all(not added.any() for added in added_gradients(hook, run).values())
    for distance in (1.0, 2.0):
        move_weights(run, 1.0)
        added = added_gradients(hook, run)
        assert set(added) == {"0.weight", "0.bias", "2.weight", "2.bias", "proxies"}
        for name, gradient in added.items():
            expected = 0.0 if name == "proxies" else 0.25 * distance
            torch.testing.assert_close(gradient, torch.full_like(gradient, expected))


def test_the_reference_is_the_best_weights_and_training_goes_on_from_the_current_ones() -> None:
    run, hook = new_run(), AlternatingProjections(reference_weight=1.0)
    hook.on_train_begin(run)
    best = copy.deepcopy(run.model.state_dict())
    hook.on_validation_end(run, 0.5)
    move_weights(run, 3.0)
    current = copy.deepcopy(run.model.state_dict())
    for _ in range(3):
        hook.on_validation_end(run, 0.5)
    assert hook.reference is not None
    assert all(torch.equal(hook.reference[name], best[name]) for name in hook.reference)
    for name, value in run.model.state_dict().items():
        assert torch.equal(value, current[name])


def test_an_improvement_of_less_than_1e_5_is_none() -> None:
    run, hook = new_run(), AlternatingProjections()
    hook.on_train_begin(run)
    for score in (0.5, 0.500009, 0.500009, 0.499):
        hook.on_validation_end(run, score)
    assert hook.instance == 1


def test_an_improvement_starts_the_count_anew() -> None:
    run, hook = new_run(), AlternatingProjections()
    hook.on_train_begin(run)
    for score in (0.5, 0.4, 0.4, 0.6, 0.5, 0.5):
        hook.on_validation_end(run, score)
    assert (hook.instance, hook.wait, hook.best) == (0, 2, 0.6)


def test_new_proxies_are_far_from_the_best_ones_of_the_last_instance() -> None:
    run, hook = new_run(), AlternatingProjections(pool_size=5)
    hook.on_train_begin(run)
    best = torch.randn(NUM_CLASSES, 2, DIM)
    run.loss.set_proxies(best)
    hook.on_validation_end(run, 0.5)
    run.loss.set_proxies(best + 100)
    for _ in range(3):
        hook.on_validation_end(run, 0.1)
    assert len(run.pools) == 2
    assert torch.equal(run.loss.class_proxies(), farthest_points(run.pools[1], best))


def test_a_new_instance_is_judged_by_its_own_scores() -> None:
    run, hook = new_run(), AlternatingProjections()
    hook.on_train_begin(run)
    switch(hook, run)
    assert (hook.best, hook.wait) == (-math.inf, 0)
    hook.on_validation_end(run, 0.05)
    assert (hook.best, hook.wait) == (0.05, 0)


def test_the_weight_decays_with_each_instance() -> None:
    run, hook = new_run(), AlternatingProjections(reference_weight=0.8, decay=0.5)
    hook.on_train_begin(run)
    weights = [hook.current_weight]
    for _ in range(2):
        switch(hook, run)
        weights.append(hook.current_weight)
    assert weights == pytest.approx([0, 0.4, 0.2])


def test_monitoring_the_loss_ignores_the_score() -> None:
    run, hook = new_run(), AlternatingProjections(monitor="loss")
    hook.on_train_begin(run)
    instances = []
    for train_loss in (2.0, 1.5, 1.0, 0.5, 0.6, 0.7, 0.8):
        run.train_loss = train_loss
        hook.on_validation_end(run, score=train_loss)
        instances.append(hook.instance)
    assert instances == [0, 0, 0, 0, 0, 0, 1]


def test_a_pool_smaller_than_the_proxies_takes_that_many_images_for_each() -> None:
    run, hook = new_run(proxies_per_class=4), AlternatingProjections(pool_size=3)
    hook.on_train_begin(run)
    assert run.pools[0].shape[1] == 12


@pytest.mark.parametrize("proxies_per_class", [1, 4])
def test_a_pool_of_one_makes_the_drawn_images_the_proxies(proxies_per_class: int) -> None:
    run, hook = new_run(proxies_per_class), AlternatingProjections(pool_size=1)
    hook.on_train_begin(run)
    assert torch.equal(run.loss.class_proxies(), run.pools[0])


def test_a_restored_hook_goes_on_as_the_original_would(tmp_path: Any) -> None:
    run, hook = new_run(), AlternatingProjections(reference_weight=1.0)
    hook.on_train_begin(run)
    switch(hook, run)
    move_weights(run, 1.0)
    hook.on_validation_end(run, 0.4)
    move_weights(run, 1.0)
    hook.on_validation_end(run, 0.3)
    torch.save(hook.state_dict(), tmp_path / "hook.pt")
    other_run = copy.deepcopy(run)
    other = AlternatingProjections(reference_weight=1.0)
    other.load_state_dict(torch.load(tmp_path / "hook.pt"))
    results = []
    for each, each_run in ((hook, run), (other, other_run)):
        added = added_gradients(each, each_run)
        for score in (0.2, 0.1):
            each.on_validation_end(each_run, score)
        move_weights(each_run, 1.0)
        results.append(
            (
                each.instance,
                each.best,
                each.wait,
                added,
                added_gradients(each, each_run),
                each_run.loss.class_proxies(),
            )
        )
    assert results[0][0] == 2
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)


def test_state_saved_in_memory_does_not_change_with_training() -> None:
    run, hook = new_run(), AlternatingProjections()
    hook.on_train_begin(run)
    hook.on_validation_end(run, 0.5)
    state = hook.state_dict()
    before = copy.deepcopy(state)
    move_weights(run, 1.0)
    run.loss.set_proxies(torch.randn(NUM_CLASSES, 2, DIM))
    switch(hook, run)
    torch.testing.assert_close(state, before)


def test_every_tensor_of_the_hook_is_on_the_device_of_the_model() -> None:
    run, hook = new_run(), AlternatingProjections(reference_weight=1.0)
    with torch.device("meta"):  # where a tensor made without device= cannot mix with real ones
        hook.on_train_begin(run)
        switch(hook, run)
        backward(run)
        hook.after_backward(run)
    assert run.loss.proxies.device.type == "cpu"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"pool_size": 0}, "pool_size must be positive, got 0"),
        ({"reference_weight": -1.0}, "must not be negative, got -1"),
        ({"start": -1}, "start must not be negative, got -1"),
        ({"monitor": "map"}, "one of score, loss, got 'map'"),
    ],
)
def test_impossible_settings_of_the_hook_are_refused(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        AlternatingProjections(**arguments)


def test_the_hook_refuses_another_loss() -> None:
    run = new_run()
    run.loss = NTXentLoss()
    with pytest.raises(ValueError, match="CCPLoss, got NTXentLoss"):
        AlternatingProjections().on_train_begin(run)


# Steps of the base alone


def train(hook: AlternatingProjections, run: Run, steps: int, validate_every: int = 2) -> list[Any]:
    """Plain steps with falling scores, as a trainer makes them; loss and instance of each."""
    if run.step == 0:
        hook.on_train_begin(run)
    log = []
    parameters = [*run.model.parameters(), *run.loss.parameters()]
    optimizer = torch.optim.SGD([p for p in parameters if p.requires_grad], lr=0.05)
    for _ in range(steps):
        optimizer.zero_grad()
        labels = torch.arange(6) % NUM_CLASSES
        inputs = torch.randn(6, 5, generator=torch.Generator().manual_seed(run.step))
        value = run.loss(run.model(inputs), labels)
        value.backward()
        hook.after_backward(run)
        optimizer.step()
        run.step += 1
        if run.step % validate_every == 0:
            hook.on_validation_end(run, -float(run.step))
        log.append((value.item(), hook.instance))
    return log


def test_until_it_starts_the_base_trains_alone() -> None:
    run, hook = new_run(), AlternatingProjections(start=4)
    before = run.loss.proxies.detach().clone()
    base = Run(copy.deepcopy(run.model), run.loss)
    alone = Run(base.model, CCPLoss(NUM_CLASSES, DIM, batch_share=1.0))
    assert train(hook, run, 3) == train(AlternatingProjections(), alone, 3)
    assert torch.equal(run.loss.proxies, before)
    assert run.pools == []


def test_then_proxies_are_picked_and_the_proxy_problem_begins() -> None:
    run, hook = new_run(), AlternatingProjections(start=4, pool_size=5)
    train(hook, run, 4)
    (pool,) = run.pools
    expected = farthest_points(pool, torch.zeros(NUM_CLASSES, 2, DIM))
    assert torch.equal(run.loss.class_proxies(), expected)
    train(hook, run, 1)
    assert not torch.equal(run.loss.class_proxies(), expected)


def test_validations_of_the_base_alone_are_not_counted() -> None:
    run, hook = new_run(), AlternatingProjections(start=6)
    train(hook, run, 6)
    assert (hook.instance, hook.best, hook.wait) == (0, -math.inf, 0)
    # One that is the best so far, then three that are not.
    instances = [instance for _, instance in train(hook, run, 8)]
    assert instances == [0, 0, 0, 0, 0, 0, 0, 1]
    facts = hook.facts()
    assert (facts["instances"], facts["start"]) == (2, 6)
    assert len(facts["events"]["new proxies"]) == 2


@pytest.mark.parametrize("stopped_at", [2, 4, 6])
def test_training_resumes_exactly_before_at_and_after_the_start(stopped_at: int) -> None:
    run, hook = new_run(), AlternatingProjections(start=4, reference_weight=1.0)
    train(hook, run, stopped_at)
    states = copy.deepcopy([part.state_dict() for part in (run.model, run.loss, hook)])
    expected = train(hook, run, 12)
    again, other = new_run(), AlternatingProjections(start=4, reference_weight=1.0)
    for part, state in zip((again.model, again.loss, other), states, strict=True):
        part.load_state_dict(state)
    again.step = stopped_at
    again.pools = run.pools[: int(stopped_at >= 4)]
    assert train(other, again, 12) == expected


def test_a_checkpoint_of_before_there_was_a_start_goes_on_with_its_proxies() -> None:
    run = new_run()
    state = run.loss.state_dict()
    del state["base_alone"]
    other = new_run().loss
    other.base_alone.fill_(True)
    other.load_state_dict(state)
    assert not other.base_alone


# Methods


@pytest.mark.parametrize(("dataset", "proxies", "pool"), [("cub", 8, 12), ("sop", 4, 7)])
def test_presets_are_the_published_pools(dataset: str, proxies: int, pool: int) -> None:
    for method, name in itertools.product(METHODS, ("mlrc", "paper", "official")):
        params = method.preset(name, dataset).params
        assert params["proxies_per_class"] == proxies
        hook = method.make_hook(params)
        assert isinstance(hook, AlternatingProjections)
        assert (hook.pool_size, hook.reference_weight) == (pool, 2e-4)


def test_the_batch_term_is_in_the_official_preset_and_not_in_the_papers() -> None:
    for method, name, expected in (
        (METHODS[1], "batch_share", [0.0, 1 / 11, 1 / 11]),
        (METHODS[1].with_space("paper"), "batch_loss_weight", [0.0, 0.1, 0.1]),
    ):
        presets = ("paper", "official", "mlrc")
        assert [method.preset(preset, "cub").params[name] for preset in presets] == expected


def test_base_parameters_of_the_preset_reach_the_base_loss() -> None:
    loss: Any = METHODS[2].make_loss(4, DIM, METHODS[2].preset("mlrc", "cars").params)
    assert (loss.base.alpha, loss.base.beta, loss.base.base) == (14.35, 75.83, 0.66)


def test_the_pool_is_never_smaller_than_the_proxies() -> None:
    for ratio, proxies in itertools.product((1.0, 1.3, 2.0), range(1, 13)):
        hook = build_hook(pool_ratio=ratio, proxies_per_class=proxies)
        assert proxies <= hook.pool_size <= 2 * proxies


def test_the_pool_may_have_a_size_of_its_own() -> None:
    assert build_hook(proxies_per_class=4, pool_size=5).pool_size == 5


def test_a_mistyped_parameter_is_refused() -> None:
    with pytest.raises(ValueError, match="'pos_margn'"):
        METHODS[1].build_loss(4, DIM, pos_margn=0.1)
