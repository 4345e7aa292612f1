"""The contract of a method: what may be handed to `--loss`."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import torch
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from torch import Tensor, nn

from harness import registry
from harness.losses.method import Method, Params
from harness.searching.samplers import value_at
from harness.testing.expect import expect, expect_no_error
from harness.testing.training import take_steps

FEATURES, DIM = 64, 32
NUM_CLASSES = 20
# Of training classes: fewer than any protocol allows, a fold of CUB, a fold of SOP.
CLASS_COUNTS = (4, 75, 8488)
# How far a step may be from its base's, as a part of its gradient.
NEAR = 0.01


def check_method(method: Method | str | Path) -> None:
    """Raise AssertionError unless a method keeps its contract.

    Args:
        method: itself, or what `--loss` takes: a name, or the path of a file.
    """
    checked = method if isinstance(method, Method) else registry.load_method(str(method))
    for check in METHOD_CHECKS:
        check(checked)


def first_trial_lies_in_the_space(method: Method) -> None:
    """The preset `mlrc` is published and names every parameter of the space, within its bounds."""
    for dataset in registry.names("dataset"):
        where = f"preset 'mlrc' of {method.name} on {dataset}"
        preset = method.preset("mlrc", dataset)
        expect(not preset.tuned_by_us, f"{where} was tuned by us: call it something else")
        params = preset.params
        for num_classes in CLASS_COUNTS:
            for name, distribution in method.space(dataset, num_classes).items():
                expect(name in params, f"{where} has no {name}, which is searched")
                expect(
                    _lies_in(params[name], distribution),
                    f"{where}: {name}={params[name]!r} is outside of {distribution}",
                )


def presets_can_be_used(method: Method) -> None:
    """Every preset has values of the right types for parameters and protocol fields that exist."""
    for preset in method.presets:
        for dataset in registry.names("dataset"):
            where = f"preset '{preset}' of {method.name} on {dataset}"
            values = method.preset(preset, dataset)
            with expect_no_error(where):
                cast = method.cast(values.params, dataset, NUM_CLASSES)
                registry.load_protocol("mlrc", dataset, values.protocol)
                _built(method, values.params)
            for name, value in values.params.items():
                expect(
                    type(cast[name]) is type(value) and cast[name] == value,
                    f"{where}: {name}={value!r} is not what is trained with, {cast[name]!r}",
                )


def whole_space_builds(method: Method) -> None:
    """Loss, head and hook can be made at both ends of every range, for few classes too."""
    for num_classes in (6, 75):
        space = method.space("cub", num_classes)
        for end in (0.0, 0.999):
            params = {
                **method.preset("mlrc", "cub").params,
                **{name: value_at(distribution, end) for name, distribution in space.items()},
            }
            with expect_no_error(f"{method.name} for {num_classes} classes at {params}"):
                _built(method, params, num_classes)
                method.make_hook(params)


def mistyped_parameters_are_refused(method: Method) -> None:
    """No builder takes a parameter that it does not know, and no parameter belongs to none."""
    name = "no_such_parameter"
    params = method.preset("mlrc", "cub").params
    try:
        method.cast({name: 1.0}, "cub", NUM_CLASSES)
    except ValueError as error:
        expect(name in str(error), f"the refusal does not say what is wrong: {error}")
    else:
        raise AssertionError(f"{method.name} takes a parameter that it does not have")
    own = {known: value for known, value in params.items() if known in method.loss_params}
    try:
        method.build_loss(NUM_CLASSES, DIM, **own, **{name: 1.0})
    except (TypeError, ValueError):
        return
    raise AssertionError(f"build_loss of {method.name} swallows parameters that it does not know")


def gradient_reaches_the_features(method: Method) -> None:
    """A step at the published parameters has a finite gradient that is not zero."""
    features, labels = _batch()
    features.requires_grad_()
    head, loss = _built(method, method.preset("mlrc", "cub").params)
    with expect_no_error(f"a step of {method.name}"):
        loss(head(features), labels).backward()
    gradient = features.grad
    expect(gradient is not None, f"no gradient of {method.name} reaches the features")
    assert gradient is not None
    expect(bool(gradient.isfinite().all()), f"the gradient of {method.name} is not finite")
    expect(bool(gradient.abs().sum() > 0), f"the gradient of {method.name} is zero")


def order_of_a_batch_does_not_matter(method: Method) -> None:
    """Unless the loss draws at random, which shows in the same batch with another seed."""
    features, labels = _batch()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))
    as_it_is = slice(None)
    first, again, shuffled = (
        _first_value(method, features[chosen], labels[chosen], seed)
        for chosen, seed in ((as_it_is, 0), (as_it_is, 1), (order, 0))
    )
    if first == again:
        expect(
            abs(shuffled - first) <= 1e-6 + 1e-4 * abs(first),
            f"{method.name} gives {first} for a batch and {shuffled} for it in another order",
        )


def training_resumes_from_its_state(method: Method) -> None:
    """A loss and a head with restored states go on as those that the states were taken of."""
    features, labels = _batch()
    params = method.preset("mlrc", "cub").params
    head, loss = _built(method, params)
    _train(head, loss, features, labels, steps=3)
    states = copy.deepcopy([head.state_dict(), loss.state_dict()])
    expected = _train(head, loss, features, labels, steps=2)
    head, loss = _built(method, params, seed=1)
    head.load_state_dict(states[0])
    loss.load_state_dict(states[1])
    found = _train(head, loss, features, labels, steps=2)
    expect(found == expected, f"{method.name} goes on with {found} instead of {expected}")


def hook_can_be_checkpointed(method: Method) -> None:
    """The state of a new hook can be restored, and its facts written as JSON."""
    params = method.preset("mlrc", "cub").params
    hook = method.make_hook(params)
    with expect_no_error(f"the hook of {method.name}"):
        method.make_hook(params).load_state_dict(hook.state_dict())
        json.dumps(hook.facts())


def wrapper_searches_what_its_base_does(method: Method) -> None:
    """Over the same ranges, with batches, normaliser and weight decay of the base."""
    base = _base_of(method)
    if method.base is None or base is None:
        return
    for dataset in registry.names("dataset"):
        for num_classes in CLASS_COUNTS:
            own = method.space(dataset, num_classes)
            for name, bounds in base.space(dataset, num_classes).items():
                called = method.base.renamed.get(name, name)
                expect(
                    own.get(called) == bounds,
                    f"{method.name} searches {called} in {own.get(called)} on {dataset}, its base "
                    f"{base.name} {name} in {bounds}",
                )
    for setting in ("samples_per_class", "normalizer", "loss_weight_decay"):
        expect(
            getattr(method, setting) == getattr(base, setting),
            f"{method.name} has another {setting} than its base {base.name}",
        )


def wrapper_comes_near_its_base(method: Method) -> None:
    """At `almost_base_at`, the gradient of a step differs from the base's by less than 1%."""
    base = _base_of(method)
    if method.base is None or base is None or method.base.replaces_head:
        return
    space = method.space("cub", NUM_CLASSES)
    for name, value in method.base.almost_base_at.items():
        expect(
            name in space and _lies_in(value, space[name]),
            f"almost_base_at of {method.name} has {name}={value}, which is outside of its space",
        )
    params = {**method.preset("mlrc", "cub").params, **method.base.almost_base_at}
    base_params = {
        name: params[method.base.renamed.get(name, name)] for name in base.space("cub", NUM_CLASSES)
    }
    own, theirs = _later_gradient(method, params), _later_gradient(base, base_params)
    difference = float((own - theirs).norm() / theirs.norm())
    expect(
        difference < NEAR,
        f"at {dict(method.base.almost_base_at)} a step of {method.name} differs from its base "
        f"{base.name} by {difference:.1%} of the gradient",
    )


def evaluation_is_known(method: Method) -> None:
    """Batches and normaliser are such as the harness has."""
    expect(method.samples_per_class > 0, f"samples_per_class of {method.name} must be positive")
    expect(method.normalizer in ("l2", "ball"), f"no normaliser named '{method.normalizer}'")


METHOD_CHECKS = (
    first_trial_lies_in_the_space,
    presets_can_be_used,
    whole_space_builds,
    mistyped_parameters_are_refused,
    gradient_reaches_the_features,
    order_of_a_batch_does_not_matter,
    training_resumes_from_its_state,
    hook_can_be_checkpointed,
    wrapper_searches_what_its_base_does,
    wrapper_comes_near_its_base,
    evaluation_is_known,
)


def _base_of(method: Method) -> Method | None:
    return None if method.base is None else registry.load_method(method.base.name)


def _later_gradient(method: Method, params: Params) -> Tensor:
    """Of the head's parameters, after some batches that a memory can hold."""
    head, loss = _built(method, params)
    for seed in range(4):
        features, labels = _batch(seed)
        value = loss(head(features), labels)
    gradients = torch.autograd.grad(value, list(head.parameters()))
    return torch.cat([gradient.flatten() for gradient in gradients])


def _batch(seed: int = 3) -> tuple[Tensor, Tensor]:
    """Trunk features of 8 classes of 4, close enough together that every loss has work to do."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(8).repeat_interleave(4)
    centres = torch.randn(8, FEATURES, generator=generator)
    return centres[labels] + torch.randn(32, FEATURES, generator=generator), labels


def _built(
    method: Method, params: Params, num_classes: int = NUM_CLASSES, seed: int = 0
) -> tuple[nn.Module, Any]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        head = method.make_head(FEATURES, DIM, params) or nn.Linear(FEATURES, DIM)
        hierarchy = [label // 3 for label in range(num_classes)]
        loss = method.make_loss(num_classes, DIM, params, hierarchy)
    attach = getattr(loss, "attach", None)
    if attach is not None:
        attach(head)
    return head, loss


def _first_value(method: Method, features: Tensor, labels: Tensor, seed: int) -> float:
    head, loss = _built(method, method.preset("mlrc", "cub").params)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return float(loss(head(features), labels).detach())


def _train(
    head: nn.Module, loss: nn.Module, features: Tensor, labels: Tensor, steps: int
) -> list[float]:
    parameters = [*head.parameters(), *loss.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.01)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return take_steps(head, loss, optimizer, [(features, labels)] * steps)


def _lies_in(value: Any, distribution: BaseDistribution) -> bool:
    if isinstance(distribution, CategoricalDistribution):
        return value in distribution.choices
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    return bool(distribution.low <= value <= distribution.high)
