"""What every loss class must do to be at home in a pytorch-metric-learning script."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from loss_cases import (
    BATCH,
    CASES,
    CLASSES,
    DIM,
    FEATURES,
    REDUCERS,
    Case,
    adam,
    batches,
    pml_trainer,
)
from pytorch_metric_learning.distances.base_distance import BaseDistance
from pytorch_metric_learning.losses import (
    BaseMetricLossFunction,
    MultipleLosses,
    NormalizedSoftmaxLoss,
)
from pytorch_metric_learning.miners import MultiSimilarityMiner
from pytorch_metric_learning.reducers import (
    BaseReducer,
    ClassWeightedReducer,
    DoNothingReducer,
    MeanReducer,
    SumReducer,
)
from pytorch_metric_learning.regularizers import LpRegularizer
from pytorch_metric_learning.utils import common_functions as c_f
from torch import Tensor, nn

from harness.testing.training import take_steps


@pytest.fixture(params=CASES, ids=lambda each: each.name)
def citizen(request: pytest.FixtureRequest) -> Case:
    return request.param


def gradients(module: nn.Module) -> list[Tensor]:
    """Of all parameters; a missing one is NaN."""
    return [
        torch.full_like(parameter, math.nan) if parameter.grad is None else parameter.grad
        for parameter in module.parameters()
    ]


def trained(citizen: Case, steps: int = 7) -> tuple[Any, nn.Module, torch.optim.Optimizer]:
    loss, head = citizen.make()
    optimizer = adam(loss, head)
    take_steps(head, loss, optimizer, batches(steps))
    return loss, head, optimizer


def test_gradients_reach_the_embeddings_and_the_loss_parameters(citizen: Case) -> None:
    loss, head = citizen.make()
    ((features, labels),) = batches(1)
    embeddings = head(features)
    embeddings.retain_grad()
    loss(embeddings, labels).backward()
    assert embeddings.grad is not None
    for gradient in [embeddings.grad, *gradients(loss)]:
        assert gradient.isfinite().all()
        assert gradient.abs().sum() > 0


def test_trains_in_the_trainer_of_pml(citizen: Case, capfd: pytest.CaptureFixture[str]) -> None:
    loss, head = citizen.make()
    epochs: list[list[float]] = [[]]
    trainer = pml_trainer(
        loss,
        head,
        end_of_iteration_hook=lambda run: epochs[-1].append(run.losses["total_loss"].item()),
        end_of_epoch_hook=lambda run: epochs.append([]),
    )
    trainer.train(num_epochs=8)
    capfd.readouterr()
    assert sum(epochs[7]) < sum(epochs[0])


def test_a_miner_has_its_say(citizen: Case) -> None:
    ((features, labels),) = batches(1)
    loss, head = citizen.make()
    embeddings = head(features)
    first, positive, second, negative = MultiSimilarityMiner(epsilon=5)(embeddings, labels)
    # Of all pairs only those of two anchors: a choice that must change the value.
    mined = (
        first[first < 2],
        positive[first < 2],
        second[second < 2],
        negative[second < 2],
    )
    weighted = loss(embeddings, labels, mined)
    other, head = citizen.make()
    assert weighted.isfinite()
    assert weighted.item() != pytest.approx(other(head(features), labels).item(), rel=1e-3)


def reduced_by(citizen: Case, reducer: BaseReducer) -> float | None:
    """The value of a loss with a reducer, None if it refuses that one with a reason."""
    ((features, labels),) = batches(1)
    try:
        loss, head = citizen.make(reducer=reducer)
    except ValueError as refusal:
        assert type(reducer).__name__ in str(refusal) and ": use " in str(refusal)
        return None
    value = loss(head(features), labels)
    value.backward()
    assert value.ndim == 0
    return value.item()


@pytest.mark.parametrize("kind", REDUCERS)
def test_takes_a_reducer_or_refuses_it(citizen: Case, kind: str) -> None:
    if kind == "per anchor" and citizen.name in ("DRMLLoss triplet", "DRMLLoss margin"):
        pytest.skip("PML's reducer takes no triplets")
    value = reduced_by(citizen, REDUCERS[kind]())
    assert value is None or math.isfinite(value)


def test_a_reducer_reaches_the_terms_of_the_loss(citizen: Case) -> None:
    mean, total = (reduced_by(citizen, kind()) for kind in (MeanReducer, SumReducer))
    assert mean is not None and total is not None and total > 2 * mean
    once, thrice = (
        reduced_by(citizen, ClassWeightedReducer(torch.full((CLASSES,), weight)))
        for weight in (1.0, 3.0)
    )
    if once is not None and thrice is not None:
        assert 1.2 * once < thrice <= 3.001 * once


def test_the_reducer_that_does_nothing_returns_every_sub_loss(citizen: Case) -> None:
    loss, head = citizen.make(reducer=DoNothingReducer())
    ((features, labels),) = batches(1)
    sub_losses = loss(head(features), labels)
    assert list(sub_losses) == loss.sub_loss_names()
    for info in sub_losses.values():
        if info["reduction_type"] == "element":
            assert len(info["losses"]) == len(info["indices"])


def test_adds_up_in_multiple_losses(citizen: Case) -> None:
    ((features, labels),) = batches(1)
    loss, head = citizen.make()
    embeddings = head(features)
    other = NormalizedSoftmaxLoss(CLASSES, DIM)
    both = MultipleLosses([loss, other], weights=[1, 0.5])(embeddings, labels)
    alone, head = citizen.make()
    expected = alone(head(features), labels) + 0.5 * other(embeddings, labels)
    assert both.item() == pytest.approx(expected.item(), rel=1e-6)


def test_collecting_statistics_changes_neither_value_nor_gradient(
    citizen: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    ((features, labels),) = batches(1)
    results = []
    for collect in (False, True):
        monkeypatch.setattr(c_f, "COLLECT_STATS", collect)
        loss, head = citizen.make()
        assert loss.collect_stats is collect
        # In double precision: without statistics a loss may take a shorter way.
        value = loss.double()(head.double()(features.double()), labels)
        value.backward()
        results.append((value, gradients(head)))
    torch.testing.assert_close(results[0], results[1])
    distances = [module for module in loss.modules() if isinstance(module, BaseDistance)]
    assert any(distance.initial_avg_query_norm > 0 for distance in distances)


def test_the_short_form_is_what_the_reducer_makes_of_the_terms(citizen: Case) -> None:
    results = []
    for forward in (type(citizen.build()).forward, BaseMetricLossFunction.forward):
        loss, head = (part.double() for part in citizen.make())
        for features, labels in batches(2):  # the second time HPL has its clusters
            head.zero_grad()
            loss.zero_grad()
            value = forward(loss, head(features.double()), labels)
            value.backward()
        results.append((value.detach(), gradients(head), gradients(loss)))
    torch.testing.assert_close(*results)


def test_what_a_step_looks_at_stays_on_the_host(citizen: Case) -> None:
    loss, _ = citizen.make()
    counters = getattr(loss, "host_buffers", ())
    loss.to("meta")
    for name, buffer in loss.named_buffers():
        assert buffer.device.type == ("cpu" if name in counters else "meta")


def test_logits_of_a_trained_loss_are_largest_for_the_right_class(citizen: Case) -> None:
    loss, head = citizen.make()
    ((features, labels),) = batches(1)
    if not citizen.supports_logits:
        with pytest.raises(NotImplementedError, match=r"\w+ \w+"):
            loss.get_logits(head(features))
        return
    take_steps(head, loss, adam(loss, head), batches(80))
    logits = loss.get_logits(head(features))
    assert logits.shape == (BATCH, CLASSES)
    assert (logits.argmax(dim=1) == labels).float().mean() > 0.8


def test_a_state_dict_restores_training_in_the_middle(citizen: Case) -> None:
    loss, head, optimizer = trained(citizen)
    state = copy.deepcopy([part.state_dict() for part in (loss, head, optimizer)])
    expected = take_steps(head, loss, optimizer, batches(7, seed=2))

    torch.manual_seed(123)
    other, other_head = citizen.build(), citizen.build_head()
    citizen.reattach(other, other_head)
    other_optimizer = adam(other, other_head)
    for part, values in zip((other, other_head, other_optimizer), state, strict=True):
        part.load_state_dict(values)
    assert take_steps(other_head, other, other_optimizer, batches(7, seed=2)) == expected


@pytest.mark.parametrize(
    "duplicate",
    [copy.deepcopy, lambda loss: pickle.loads(pickle.dumps(loss))],
    ids=["copy", "pickle"],
)
def test_a_copy_goes_on_as_the_original_would(
    citizen: Case, duplicate: Callable[[Any], Any]
) -> None:
    loss, head, _ = trained(citizen)
    other, other_head = duplicate(loss), copy.deepcopy(head)
    citizen.reattach(other, other_head)
    copied = take_steps(other_head, other, adam(other, other_head), batches(5, seed=2))
    # After the copy has been trained: what it did must not have changed the original.
    assert take_steps(head, loss, adam(loss, head), batches(5, seed=2)) == copied


def test_every_tensor_is_made_on_the_device_of_the_inputs(citizen: Case) -> None:
    loss, head = citizen.make()
    optimizer = adam(loss, head)
    data = batches(4)
    with torch.device("meta"):  # where a tensor made without device= cannot mix with real ones
        values = take_steps(head, loss, optimizer, data)
        if citizen.supports_logits:
            assert loss.get_logits(head(data[0][0])).device.type == "cpu"
    assert all(math.isfinite(value) for value in values)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_loss_has_the_dtype_of_the_embeddings(citizen: Case, dtype: torch.dtype) -> None:
    loss, head = citizen.make()
    ((features, labels),) = batches(1)
    value = loss(head.to(dtype)(features.to(dtype)), labels)
    value.backward()
    assert value.dtype == dtype
    assert all(gradient.dtype == dtype for gradient in gradients(head))


def test_double_precision_gives_the_same_value(citizen: Case) -> None:
    ((features, labels),) = batches(1)
    loss, head = citizen.make()
    single = loss(head(features), labels)
    loss, head = citizen.make()
    double = loss.double()(head.double()(features.double()), labels)
    assert double.dtype == torch.float64
    assert double.item() == pytest.approx(single.item(), rel=1e-4)


def test_works_under_bfloat16_autocast(citizen: Case) -> None:
    ((features, labels),) = batches(1)
    loss, head = citizen.make()
    single = loss(head(features), labels)
    loss, head = citizen.make()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = loss(head(features), labels)
    half.backward()
    assert half.dtype == torch.float32
    assert half.item() == pytest.approx(single.item(), rel=0.05, abs=0.02)
    assert all(gradient.isfinite().all() for gradient in gradients(head))
    assert all(parameter.dtype == torch.float32 for parameter in loss.parameters())


def test_a_batch_of_one_has_a_finite_loss(citizen: Case) -> None:
    loss, head = citizen.make()
    value = loss(head(torch.ones(1, FEATURES)), torch.tensor([CLASSES - 1]))
    value.backward()
    assert value.isfinite()
    assert value.item() != 0


def test_the_order_of_the_batch_does_not_matter(citizen: Case) -> None:
    ((features, labels),) = batches(1)
    values = []
    for order in (torch.arange(BATCH), torch.arange(BATCH).flip(0)):
        loss, head = citizen.make()
        values.append(loss(head(features[order]), labels[order]).item())
    assert values[0] == pytest.approx(values[1], rel=1e-5)


def test_labels_may_be_32_bit_integers(citizen: Case) -> None:
    ((features, labels),) = batches(1)
    values = []
    for dtype in (torch.int64, torch.int32):
        loss, head = citizen.make()
        values.append(loss(head(features), labels.to(dtype)).item())
    assert values[0] == values[1]


@pytest.mark.parametrize("kind", ["embedding", "weight"])
def test_takes_a_regularizer(citizen: Case, kind: str) -> None:
    if kind == "weight" and not citizen.has_weights:
        pytest.skip("has no weights")
    ((features, labels),) = batches(1)
    loss, head = citizen.make()
    plain = loss(head(features), labels)
    loss, head = citizen.make(**{f"{kind}_regularizer": LpRegularizer(), f"{kind}_reg_weight": 10})
    assert loss(head(features), labels).item() > plain.item() + 0.1


@pytest.mark.parametrize("label", [-1, CLASSES])
def test_a_label_out_of_range_is_refused(citizen: Case, label: int) -> None:
    loss, head = citizen.make()
    ((features, labels),) = batches(1)
    labels[3] = label
    with pytest.raises(ValueError, match=rf"0\.\.{CLASSES - 1}.*{label}"):
        loss(head(features), labels)


def test_embeddings_of_another_size_are_refused(citizen: Case) -> None:
    loss, _ = citizen.make()
    with pytest.raises(ValueError, match=rf"{DIM}.*{DIM + 1}"):
        loss(torch.randn(2, DIM + 1), torch.tensor([0, 1]))


def test_an_empty_batch_is_refused(citizen: Case) -> None:
    loss, _ = citizen.make()
    with pytest.raises(ValueError, match="at least one"):
        loss(torch.zeros(0, DIM), torch.zeros(0, dtype=torch.long))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_embeddings_that_are_not_finite_are_refused(citizen: Case, value: float) -> None:
    loss, _ = citizen.make()
    embeddings = torch.randn(4, DIM)
    embeddings[2, 1] = value
    with pytest.raises(ValueError, match=r"finite.* 1 of 4"):
        loss(embeddings, torch.tensor([0, 0, 1, 1]))


def test_large_finite_embeddings_are_not_refused(citizen: Case) -> None:
    loss, head = citizen.make()
    ((features, labels),) = batches(1)
    assert loss(head(features * 1e15), labels).isfinite()


def test_labels_are_required(citizen: Case) -> None:
    loss, head = citizen.make()
    with pytest.raises(ValueError, match="labels are required"):
        loss(head(batches(1)[0][0]))
