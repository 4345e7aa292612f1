"""C1, C2 and the cross-batch memory."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Collection
from typing import Any

import pytest
import torch
from pytorch_metric_learning.distances import DotProductSimilarity
from pytorch_metric_learning.losses import ContrastiveLoss, MultiSimilarityLoss, TripletMarginLoss
from pytorch_metric_learning.reducers import AvgNonZeroReducer, DoNothingReducer
from torch import Tensor

from harness.losses import C1Loss, ball_losses, xbm
from harness.losses._tools.ball import BallLpDistance, ball_normalize
from harness.losses.xbm import XBMLoss

DIM = 4


def c2_loss(pos_margin: float = 0.0, neg_margin: float = 0.3841) -> Any:
    margins = {"pos_margin": pos_margin, "neg_margin": neg_margin}
    return ball_losses.build_loss(3, DIM, pair_loss="c2", **margins)


def batch(seed: int, size: int = 8, classes: int = 3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    embeddings = torch.randn(size, DIM, generator=generator, dtype=torch.float64)
    return embeddings, torch.randint(classes, (size,), generator=generator)


def ball(vector: Tensor) -> Tensor:
    return vector / max(1.0, float(vector.norm()))


def c1_by_loops(
    anchors: Tensor, labels: Tensor, others: Tensor, other_labels: Tensor, same_set: bool
) -> float:
    total = 0.0
    for i, anchor in enumerate(anchors):
        for j, other in enumerate(others):
            similarity = float(ball(anchor) @ ball(other))
            if labels[i] != other_labels[j]:
                total += max(0.0, similarity - 0.5)
            elif not (same_set and i == j):
                total += max(0.0, 1 - similarity - 1e-5)
    return total / len(anchors)


def c2_by_loops(
    anchors: Tensor,
    labels: Tensor,
    others: Tensor,
    other_labels: Tensor,
    margins: tuple[float, float],
    skip: Collection[tuple[int, int]] = (),
) -> float:
    positive, negative = [], []
    for i, anchor in enumerate(anchors):
        for j, other in enumerate(others):
            distance = float((ball(anchor) - ball(other)).norm())
            if labels[i] != other_labels[j]:
                negative.append(margins[1] - distance)
            elif (i, j) not in skip:
                positive.append(distance - margins[0])
    kept = [[value for value in values if value > 0] for values in (positive, negative)]
    return sum(sum(values) / len(values) for values in kept if values)


def test_c1_is_its_formula_within_a_batch() -> None:
    embeddings, labels = batch(0)
    expected = c1_by_loops(embeddings, labels, embeddings, labels, same_set=True)
    assert C1Loss()(embeddings, labels).item() == pytest.approx(expected)


def test_c1_is_its_formula_against_references() -> None:
    (embeddings, labels), (others, other_labels) = batch(0), batch(1, size=11)
    expected = c1_by_loops(embeddings, labels, others, other_labels, same_set=False)
    value = C1Loss()(embeddings, labels, ref_emb=others, ref_labels=other_labels)
    assert value.item() == pytest.approx(expected)


def test_c1_counts_a_single_pair_of_each_kind() -> None:
    anchor, others = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0], [0.8, 0.6]])
    value = C1Loss()(anchor, torch.tensor([0]), ref_emb=others, ref_labels=torch.tensor([0, 1]))
    assert value.item() == pytest.approx(1 - 1e-5 + 0.3)


def test_c1_keeps_to_a_miners_pairs_and_counts_a_repeated_pair_once() -> None:
    embeddings, labels = torch.eye(3), torch.tensor([0, 0, 1])
    triplets = (torch.tensor([0, 0]), torch.tensor([1, 1]), torch.tensor([2, 2]))
    value = C1Loss(margin=-1.0)(embeddings, labels, triplets)
    assert value.item() == pytest.approx((1 - 1e-5 + 1) / 3)


def test_c1_averages_over_anchors_without_pairs_too_but_its_reducer_can_be_changed() -> None:
    embeddings, labels = torch.eye(4)[[0, 1, 2]], torch.tensor([0, 0, 1])
    assert C1Loss()(embeddings, labels).item() == pytest.approx(2 * (1 - 1e-5) / 3)
    nonzero = C1Loss(reducer=AvgNonZeroReducer())(embeddings, labels)
    assert nonzero.item() == pytest.approx(1 - 1e-5)


def test_c1_refuses_a_distance_that_is_no_similarity() -> None:
    with pytest.raises(ValueError, match=r"similarity.*BallLpDistance"):
        C1Loss(distance=BallLpDistance())


def test_c1_and_the_memory_refuse_embeddings_that_are_not_finite() -> None:
    embeddings, labels = batch(0)
    embeddings[2, 0] = float("nan")
    for loss in (C1Loss(), XBMLoss(C1Loss(), DIM)):
        with pytest.raises(ValueError, match="finite"):
            loss(embeddings, labels)


def test_c2_is_its_formula() -> None:
    embeddings, labels = batch(2)
    expected = c2_by_loops(
        embeddings, labels, embeddings, labels, (0.2, 0.9), skip={(i, i) for i in range(8)}
    )
    assert c2_loss(0.2, 0.9)(embeddings, labels).item() == pytest.approx(expected)


@pytest.mark.parametrize("loss", [C1Loss(), c2_loss(0.2652, 0.9)], ids=["c1", "c2"])
def test_gradients_of_c1_and_c2_are_right(loss: torch.nn.Module) -> None:
    embeddings, labels = batch(3)
    assert torch.autograd.gradcheck(lambda x: loss(x, labels), embeddings.requires_grad_())


def sub_losses(loss: XBMLoss, embeddings: Tensor, labels: Tensor) -> tuple[float, float]:
    loss.set_reducer(DoNothingReducer())
    result = loss(embeddings, labels)
    return float(result["batch_loss"]["losses"]), float(result["memory_loss"]["losses"])


@pytest.mark.parametrize("method", xbm.METHODS, ids=lambda method: method.name)
def test_in_its_corner_a_step_is_nearly_that_of_its_base_with_a_full_memory(method: Any) -> None:
    assert method.base is not None
    base = c2_loss() if method.base.name == "c2" else C1Loss()
    loss = XBMLoss(base, DIM, memory_size=32, start=0, **method.base.almost_base_at)
    for seed in range(5):
        embeddings, labels = batch(seed)
        embeddings.requires_grad_()
        value = loss(embeddings, labels)
    (own,) = torch.autograd.grad(value, embeddings)
    (expected,) = torch.autograd.grad(base(embeddings, labels), embeddings)
    assert 0 < float((own - expected).norm() / expected.norm()) < 0.01


def test_the_memory_loss_is_zero_for_the_first_batches_and_nothing_is_kept_of_them() -> None:
    loss = XBMLoss(C1Loss(), DIM, memory_size=32, start=2)
    memory_losses = [sub_losses(loss, *batch(seed))[1] for seed in range(3)]
    assert memory_losses[:2] == [0, 0]
    assert memory_losses[2] > 0
    assert loss.num_enqueued == 8


def test_batch_and_memory_losses_are_their_formulas() -> None:
    margins = (0.2, 0.9)
    loss = XBMLoss(c2_loss(*margins), DIM, memory_size=20, start=0, memory_weight=0.5)
    seen = [batch(seed) for seed in range(4)]
    for embeddings, labels in seen:
        values = sub_losses(loss, embeddings, labels)
    # 32 embeddings went through 20 slots: the last 20 remain, the newest among them last.
    memory = torch.cat([each[0] for each in seen])[-20:]
    memory_labels = torch.cat([each[1] for each in seen])[-20:]
    own_copies = {(i, 12 + i) for i in range(8)}
    in_batch = {(i, i) for i in range(8)}
    assert values == pytest.approx(
        (
            c2_by_loops(embeddings, labels, embeddings, labels, margins, in_batch),
            0.5 * c2_by_loops(embeddings, labels, memory, memory_labels, margins, own_copies),
        )
    )


def test_a_class_0_in_the_last_slot_is_memory_too() -> None:
    loss = XBMLoss(C1Loss(), DIM, memory_size=8, start=0)
    embeddings, labels = batch(0)
    labels[:] = 0
    for _ in range(2):
        loss(embeddings, labels)
    expected = c1_by_loops(embeddings, labels, embeddings, labels, same_set=True)
    assert sub_losses(loss, embeddings, labels)[1] == pytest.approx(expected)


def test_memory_gives_gradient_to_the_batch_and_takes_none() -> None:
    loss = XBMLoss(C1Loss(), DIM, memory_size=32, start=0)
    loss(*batch(0))
    embeddings, labels = batch(1)
    before = loss.memory[:8].clone()
    loss(embeddings.requires_grad_(), labels).backward()
    assert embeddings.grad is not None and embeddings.grad.abs().sum() > 0
    assert not loss.memory.requires_grad
    assert torch.equal(loss.memory[:8], before)


def test_two_forwards_before_one_backward_work() -> None:
    # A base that keeps the memory itself for its backward, not a normalised copy.
    similarity = DotProductSimilarity(normalize_embeddings=False)
    loss = XBMLoss(MultiSimilarityLoss(distance=similarity), DIM, memory_size=8, start=0)
    (first, first_labels), (second, second_labels) = batch(0), batch(1)
    total = loss(first.requires_grad_(), first_labels) + loss(second, second_labels)
    total.backward()
    assert first.grad is not None and first.grad.isfinite().all()


def test_in_eval_mode_memory_is_read_but_not_written() -> None:
    loss = XBMLoss(C1Loss(), DIM, memory_size=32, start=0)
    loss(*batch(0))
    state = copy.deepcopy(loss.state_dict())
    loss.eval()
    (embeddings, labels), (memory, memory_labels) = batch(1), batch(0)
    expected = c1_by_loops(embeddings, labels, memory, memory_labels, same_set=False)
    assert sub_losses(loss, embeddings, labels)[1] == pytest.approx(expected)
    for name, value in loss.state_dict().items():
        assert torch.equal(value, state[name]), name


def duplicates(loss: XBMLoss) -> list[XBMLoss]:
    restored = XBMLoss(C1Loss(), DIM, memory_size=20, start=1)
    restored.load_state_dict(loss.state_dict())
    return [restored, copy.deepcopy(loss), pickle.loads(pickle.dumps(loss))]


def test_state_dict_copy_and_pickle_carry_the_queue() -> None:
    loss = XBMLoss(C1Loss(), DIM, memory_size=20, start=1)
    data = [(batch(seed)[0].float(), batch(seed)[1]) for seed in range(7)]
    for each in data[:4]:
        loss(*each)
    others = duplicates(loss)
    expected = [loss(*each).item() for each in data[4:]]
    for other in others:
        assert [other(*each).item() for each in data[4:]] == expected


def test_the_batch_term_takes_references_and_a_miners_pairs() -> None:
    (embeddings, labels), (others, other_labels) = batch(0), batch(1)
    pairs = (torch.tensor([0]), torch.tensor([1]), torch.tensor([2, 3]), torch.tensor([4, 5]))
    base = C1Loss()
    loss = XBMLoss(base, DIM, start=1)
    value = loss(embeddings, labels, pairs, others, other_labels)
    expected = base(embeddings, labels, pairs, others, other_labels)
    assert value.item() == pytest.approx(expected.item())


def test_a_triplet_loss_can_have_a_memory() -> None:
    loss = XBMLoss(TripletMarginLoss(distance=BallLpDistance()), DIM, memory_size=16, start=0)
    values = [sub_losses(loss, *batch(seed))[1] for seed in range(2)]
    assert all(value > 0 for value in values)


def test_an_embedding_is_not_compared_with_its_own_copy() -> None:
    loss = XBMLoss(C1Loss(), DIM, memory_size=32, start=0)
    # Inside the ball a vector's similarity with itself is below 1, and would cost something.
    embeddings = 0.1 * torch.eye(DIM)
    assert sub_losses(loss, embeddings, torch.arange(DIM))[1] == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_memory_follows_the_dtype_of_the_embeddings(dtype: torch.dtype) -> None:
    loss = XBMLoss(C1Loss(), DIM, memory_size=32, start=0)
    embeddings, labels = batch(0)
    for _ in range(2):
        value = loss(embeddings.to(dtype), labels)
    assert value.dtype == dtype
    assert loss.memory.dtype == dtype


def test_memory_stays_in_float32_under_bfloat16_autocast() -> None:
    single, half = (XBMLoss(C1Loss(), DIM, memory_size=32, start=0) for _ in range(2))
    embeddings, labels = batch(0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = half(embeddings.bfloat16(), labels)
    assert half.memory.dtype == torch.float32
    assert value.item() == pytest.approx(single(embeddings, labels).item(), rel=0.05)


@pytest.mark.parametrize("base", [C1Loss(), c2_loss()], ids=["c1", "c2"])
def test_every_tensor_is_made_on_the_device_of_the_inputs(base: torch.nn.Module) -> None:
    loss, other = (XBMLoss(base, DIM, memory_size=12, start=1) for _ in range(2))
    data = [batch(seed) for seed in range(4)]
    expected = [loss(*each).item() for each in data]
    with torch.device("meta"):  # where a tensor made without device= cannot mix with real ones
        assert [other(*each).item() for each in data] == expected


def test_a_batch_of_one_works() -> None:
    embeddings, labels = batch(0, size=1)
    loss = XBMLoss(C1Loss(), DIM, memory_size=4, start=0)
    loss(embeddings, labels)
    assert loss(-embeddings, labels).item() > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"memory_size": 0}, "memory_size must be positive, got 0"),
        ({"start": -1}, "must not be negative, got -1"),
        ({"memory_weight": -0.5}, "must not be negative, got -0.5"),
    ],
)
def test_impossible_settings_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        XBMLoss(C1Loss(), DIM, **arguments)


def test_a_batch_larger_than_the_memory_is_refused() -> None:
    with pytest.raises(ValueError, match="memory_size=4, got 8"):
        XBMLoss(C1Loss(), DIM, memory_size=4)(*batch(0))


def test_embeddings_of_another_size_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\(batch, 4\), got \(2, 5\)"):
        XBMLoss(C1Loss(), DIM)(torch.zeros(2, 5), torch.tensor([0, 1]))


def test_the_methods_normalise_as_they_are_evaluated() -> None:
    embeddings, labels = batch(4)
    for method in (*ball_losses.METHODS, *xbm.METHODS):
        assert method.normalizer == "ball"
        raw, projected = (
            method.make_loss(3, DIM, method.preset("mlrc", "cars").params) for _ in range(2)
        )
        assert raw(embeddings, labels).item() == pytest.approx(
            projected(ball_normalize(embeddings), labels).item()
        )


def test_c2_is_the_contrastive_loss_of_pml_on_the_ball() -> None:
    embeddings, labels = batch(4)
    (method,) = (method for method in ball_losses.METHODS if method.name == "c2")
    loss = method.make_loss(3, DIM, method.preset("mlrc", "cars").params)
    theirs = ContrastiveLoss(0.2652, 0.5409, distance=BallLpDistance())
    assert loss(embeddings, labels).item() == pytest.approx(theirs(embeddings, labels).item())


def test_the_memorys_parameters_reach_it() -> None:
    params = {"margin": 0.3, "memory_size": 64, "start": 5, "memory_weight": 0.25}
    loss: Any = xbm.METHODS[0].make_loss(3, DIM, params)
    assert (loss.base.margin, loss.memory_size, loss.start, loss.memory_weight) == (
        0.3,
        64,
        5,
        0.25,
    )
