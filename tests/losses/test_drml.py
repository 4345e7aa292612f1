"""DRML: the relation head and the losses on its nodes and its output."""

from __future__ import annotations

import copy
import gc
import io
import itertools
import math
import pickle
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pytorch_metric_learning.losses import (
    CosFaceLoss,
    MarginLoss,
    ProxyAnchorLoss,
    TripletMarginLoss,
)
from pytorch_metric_learning.miners import TripletMarginMiner
from pytorch_metric_learning.reducers import DoNothingReducer
from pytorch_metric_learning.utils.distributed import DistributedLossWrapper
from torch import Tensor, nn

from harness.losses._tools.mining import DistanceWeightedMiner
from harness.losses.drml import BASES, DRML, METHODS, DRMLLoss, RelationHead

FEATURES = 12
DIM = 8
CLASSES = 5


def features(size: int = 10, seed: int = 0) -> Tensor:
    return torch.randn(size, FEATURES, generator=torch.Generator().manual_seed(seed))


def labels(size: int = 10) -> Tensor:
    return torch.arange(size) % CLASSES


def stirred_head(groups: int = 4, seed: int = 0) -> RelationHead:
    """A head with no parameter at its initial zero or identity."""
    torch.manual_seed(seed)
    head = RelationHead(FEATURES, DIM, groups)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return head


def make(
    base: str = "proxyanchor", groups: int = 4, **kwargs: Any
) -> tuple[DRMLLoss, RelationHead]:
    head = stirred_head(groups)
    loss = DRMLLoss(CLASSES, DIM, base, groups, **kwargs)
    loss.attach(head)
    return loss, head


def sub_losses(loss: DRMLLoss, embeddings: Tensor, labels: Tensor) -> dict[str, Tensor]:
    loss.set_reducer(DoNothingReducer())
    return {name: info["losses"] for name, info in loss(embeddings, labels).items()}


# The head


def test_the_head_starts_as_unit_nodes_side_by_side() -> None:
    head = RelationHead(FEATURES, DIM, 4)
    final = head(features())
    assert head.aux is not None
    torch.testing.assert_close(final, head.aux.nodes.flatten(1))
    torch.testing.assert_close(final.norm(dim=1), torch.full((10,), 2.0))


@torch.no_grad()
def head_by_loops(head: RelationHead, feature: Tensor) -> tuple[Tensor, list[float]]:
    """Output and reconstruction errors for one feature, from the formulas."""
    groups = head.groups
    chunks = feature.view(groups, -1)

    def layer(grouped: Any, k: int, x: Tensor) -> Tensor:
        return grouped.weight[k] @ x + grouped.bias[k]

    nodes = [layer(head.node, k, chunks[k]) for k in range(groups)]
    nodes = [node / node.norm() for node in nodes]
    sources = [layer(head.edge_out, k, chunks[k]) for k in range(groups)]
    targets = [layer(head.edge_in, k, chunks[k]) for k in range(groups)]
    w, beta = head.edge_score.weight[0], head.edge_score.bias[0]
    outputs, errors = [], []
    for j in range(groups):
        scores = [max(0.0, float(w @ (sources[i] - targets[j]) + beta)) for i in range(groups)]
        total = max(sum(scores), 1e-12)
        message = sum((scores[i] / total * nodes[i] for i in range(groups)), torch.zeros(()))
        mixed = torch.cat([nodes[j], message])
        outputs.append(head.integrator.weight @ mixed + head.integrator.bias)
        errors.append(float((chunks[j] - layer(head.decoder, j, nodes[j])).square().mean()))
    return torch.cat(outputs), errors


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_the_head_is_its_formulas(groups: int) -> None:
    head = stirred_head(groups)
    inputs = features()
    final = head(inputs)
    assert head.aux is not None
    for i in range(10):
        expected, errors = head_by_loops(head, inputs[i])
        torch.testing.assert_close(final[i], expected)
        assert head.aux.errors[i].tolist() == pytest.approx(errors, rel=1e-4)
        assert head.aux.assignment[i] == errors.index(min(errors))


def test_relations_sum_to_one_or_to_zero_for_each_receiving_group() -> None:
    head = stirred_head()
    sums = head.relations(features(50).view(50, 4, -1)).sum(dim=1).flatten()
    is_one, is_zero = (sums - 1).abs() < 1e-5, sums == 0
    assert (is_one | is_zero).all()
    assert is_one.any() and is_zero.any()


@pytest.mark.parametrize("training", [True, False])
def test_a_batch_of_one_gives_the_row_of_the_batch(training: bool) -> None:
    head = stirred_head().train(training)
    inputs = features()
    torch.testing.assert_close(head(inputs[3:4]), head(inputs)[3:4])


def test_reconstruction_trains_the_decoders_only() -> None:
    loss, head = make(recon_weight=1.0)
    inputs = features().requires_grad_()
    sub_losses(loss, head(inputs), labels())["recon_loss"].backward()
    assert inputs.grad is None
    trained = {name for name, p in head.named_parameters() if p.grad is not None}
    assert trained == {"decoder.weight", "decoder.bias"}


def test_the_output_trains_the_trunk_through_the_nodes_only() -> None:
    head = stirred_head()
    with torch.no_grad():
        head.node.weight.zero_()
    inputs = features().requires_grad_()
    head(inputs).square().sum().backward()
    assert inputs.grad is not None and not inputs.grad.any()
    assert head.edge_out.weight.grad is not None and head.edge_out.weight.grad.any()


def test_gradients_of_the_head_are_right() -> None:
    torch.manual_seed(0)
    head = stirred_head().double()
    # The input is cut off from relations on purpose, so only parameters can be checked.
    names = ["node.weight", "edge_out.weight", "edge_score.weight", "integrator.weight"]
    values = [dict(head.named_parameters())[name].detach().clone() for name in names]
    inputs = features(3).double()

    def output(*parameters: Tensor) -> Any:
        return torch.func.functional_call(head, dict(zip(names, parameters, strict=True)), inputs)

    assert torch.autograd.gradcheck(output, [value.requires_grad_() for value in values])


def test_layers_start_with_the_authors_scales() -> None:
    torch.manual_seed(0)
    head = RelationHead(1024, 512, 4)
    for layer, fan_out in ((head.node, 128), (head.edge_in, 128), (head.decoder, 256)):
        assert layer.weight.std().item() == pytest.approx(math.sqrt(2 / fan_out), rel=0.02)
        assert not layer.bias.any()
    assert torch.equal(head.integrator.weight, torch.eye(128, 256))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((10, 8, 4), "divide in_features, got groups=4, in_features=10"),
        ((12, 10, 4), "divide embedding_size, got groups=4, embedding_size=10"),
        ((12, 8, 0), "groups must be positive, got 0"),
    ],
)
def test_sizes_that_groups_do_not_divide_are_refused(
    sizes: tuple[int, int, int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        RelationHead(*sizes)


def test_features_of_another_size_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\(batch, 12\), got \(2, 16\)"):
        RelationHead(FEATURES, DIM, 4)(torch.zeros(2, 16))


@pytest.mark.parametrize(
    "duplicate",
    [copy.deepcopy, lambda head: pickle.loads(pickle.dumps(head))],
    ids=["copy", "pickle"],
)
def test_a_head_can_be_copied_after_a_forward(
    duplicate: Callable[[RelationHead], RelationHead],
) -> None:
    head = stirred_head()
    final = head(features())
    other = duplicate(head)
    assert other.aux is None
    torch.testing.assert_close(other(features()), final)
    assert head.aux is not None and head.aux.final is final


def test_the_head_holds_on_to_its_last_forward_only() -> None:
    head = stirred_head()
    first = weakref.ref(head(features()))
    with torch.no_grad():
        head(features(seed=1))
    gc.collect()
    assert first() is None
    assert head.aux is not None and not head.aux.nodes.requires_grad


# The loss


@torch.no_grad()
def expected_total(loss: DRMLLoss, head: RelationHead, y: Tensor) -> float:
    aux = head.aux
    assert aux is not None
    total = 0.0
    for group in range(loss.groups):
        members = [i for i in range(len(y)) if int(aux.errors[i].argmin()) == group]
        if members:
            branch = loss.branch_losses[group]
            total += float(branch(aux.nodes[members, group], y[members]))
    total += loss.repre_weight * float(loss.repre_loss(aux.final, y))
    return total + loss.recon_weight * float(aux.errors.mean())


@pytest.mark.parametrize("base", BASES)
def test_the_loss_adds_up_branches_output_and_reconstruction(base: str) -> None:
    loss, head = make(base, repre_weight=3.0, recon_weight=0.7)
    embeddings = head(features(20))
    value = loss(embeddings, labels(20)).item()
    assert value == pytest.approx(expected_total(loss, head, labels(20)), rel=1e-5)


@pytest.mark.parametrize(
    ("base", "params", "plain"),
    [
        ("triplet", {"margin": 0.4}, TripletMarginLoss(margin=0.4)),
        ("margin", {"margin": 0.3, "beta": 0.9}, MarginLoss(margin=0.3, beta=0.9)),
    ],
)
def test_with_all_samples_in_one_branch_the_total_is_base_of_node_and_of_output(
    base: str, params: dict[str, float], plain: nn.Module
) -> None:
    loss, head = make(base, repre_weight=1.0, recon_weight=0.0, base_params=params)
    with torch.no_grad():
        # Group 2 decodes a chunk of zeros perfectly; the others are far off.
        head.decoder.bias.fill_(100.0)
        head.decoder.weight[2] = 0
        head.decoder.bias[2] = 0
    inputs = features()
    inputs[:, 6:9] = 1e-3
    embeddings = head(inputs)
    assert head.aux is not None and (head.aux.assignment == 2).all()
    expected = plain(head.aux.nodes[:, 2], labels()) + plain(embeddings, labels())
    assert loss(embeddings, labels()).item() == pytest.approx(expected.item(), rel=1e-5)


def test_every_loss_has_proxies_of_its_own() -> None:
    loss, _ = make("proxyanchor", groups=4)
    shapes = [tuple(parameter.shape) for parameter in loss.parameters()]
    assert shapes == [(CLASSES, 2)] * 4 + [(CLASSES, DIM)]
    assert len({parameter.data_ptr() for parameter in loss.parameters()}) == 5


@pytest.mark.parametrize(
    ("base", "kind"),
    [("proxyanchor", ProxyAnchorLoss), ("cosface", CosFaceLoss), ("margin", MarginLoss)],
)
def test_base_parameters_reach_every_base_loss(base: str, kind: type) -> None:
    loss, _ = make(base, base_params={"margin": 0.123})
    bases: list[Any] = [*loss.branch_losses, loss.repre_loss]
    assert len(bases) == 5
    assert all(isinstance(each, kind) for each in bases)
    assert {each.margin for each in bases} == {0.123}


def test_cosface_is_the_softmax_with_a_margin_on_the_own_cosine() -> None:
    loss, head = make("cosface", groups=1, repre_weight=1.0, recon_weight=0.0)
    embeddings = head(features())
    total = 0.0
    assert head.aux is not None
    for vectors, base in (
        (head.aux.nodes[:, 0], loss.branch_losses[0]),
        (embeddings, loss.repre_loss),
    ):
        weights: Any = base.W
        cosines = nn.functional.normalize(vectors) @ nn.functional.normalize(weights, dim=0)
        cosines[torch.arange(10), labels()] -= 0.35
        total += nn.functional.cross_entropy(64 * cosines, labels()).item()
    assert loss(embeddings, labels()).item() == pytest.approx(total, rel=1e-5)


@pytest.mark.parametrize("base", BASES)
def test_a_branch_without_samples_costs_nothing(base: str) -> None:
    loss, head = make(base)
    embeddings = head(features(1))
    values = sub_losses(loss, embeddings, labels(1))
    assert head.aux is not None
    group = int(head.aux.assignment)
    alone = loss.branch_losses[group](head.aux.nodes[:, group], labels(1))
    assert values["branch_loss"].item() == pytest.approx(alone.item())


def test_branch_sizes_are_recorded_and_add_up_to_the_batch() -> None:
    loss, head = make("triplet", collect_stats=True)
    loss(head(features(30)), labels(30))
    sizes = [getattr(loss, f"branch{group}_size") for group in range(4)]
    assert sum(sizes) == 30
    assert len(set(sizes)) > 1


@pytest.mark.parametrize("base", BASES)
def test_gradients_of_the_loss_are_right(base: str) -> None:
    torch.manual_seed(0)
    loss, head = make(base)
    loss, head = loss.double(), head.double()
    parameter = dict(head.named_parameters())["node.weight"]
    inputs, y = features(8).double(), labels(8)

    def value(weight: Tensor) -> Any:
        return loss(torch.func.functional_call(head, {"node.weight": weight}, inputs), y)

    # Reconstruction depends on the nodes too, but does not train them.
    loss.recon_weight = 0.0
    assert torch.autograd.gradcheck(value, parameter.detach().clone().requires_grad_())


@pytest.mark.parametrize("base", BASES)
def test_every_tensor_is_made_on_the_device_of_the_inputs(base: str) -> None:
    loss, head = make(base)
    inputs, y = features(20), labels(20)
    expected = loss(head(inputs), y).item()
    with torch.device("meta"):  # where a tensor made without device= cannot mix with real ones
        assert loss(head(inputs), y).item() == expected


def test_a_miner_mines_in_each_branch_and_on_the_output() -> None:
    mined, plain = make("triplet")[0], make("triplet")[0]
    mined.miner = TripletMarginMiner(1.0, type_of_triplets="semihard")
    values = []
    for loss in (mined, plain):
        head = stirred_head()
        loss.attach(head)
        values.append(sub_losses(loss, head(features(60)), labels(60)))
    for name in ("branch_loss", "repre_loss"):
        # Semi-hard triplets cost less than the margin; hard ones, left out, cost more.
        assert values[0][name] < values[1][name]


def test_a_callers_pairs_replace_the_miner_on_the_output_alone() -> None:
    loss, head = make("triplet", miner=TripletMarginMiner(1.0, type_of_triplets="semihard"))
    embeddings = head(features())
    plain = sub_losses(loss, embeddings, labels())
    triplet = (torch.tensor([0]), torch.tensor([5]), torch.tensor([1]))
    given = {name: info["losses"] for name, info in loss(embeddings, labels(), triplet).items()}
    expected = loss.repre_loss(embeddings, labels(), triplet)
    assert given["repre_loss"].item() == pytest.approx(10 * expected.item())
    assert given["branch_loss"] == plain["branch_loss"]


def test_head_parameters_are_not_the_losss() -> None:
    loss, head = make("triplet")
    assert list(loss.parameters()) == []
    assert not any(module is head for module in loss.modules())
    assert list(loss.state_dict()) == []


@pytest.mark.parametrize(
    "duplicate",
    [copy.deepcopy, lambda loss: pickle.loads(pickle.dumps(loss))],
    ids=["copy", "pickle"],
)
def test_a_copied_loss_asks_for_its_head_again(duplicate: Callable[[DRMLLoss], DRMLLoss]) -> None:
    loss, head = make()
    embeddings = head(features())
    value = loss(embeddings, labels())
    other = duplicate(loss)
    with pytest.raises(ValueError, match=r"attach\(head\)"):
        other(embeddings, labels())
    other.attach(head)
    assert other(embeddings, labels()).item() == value.item()
    assert loss(embeddings, labels()).item() == value.item()


@pytest.mark.parametrize("together", [copy.deepcopy, lambda both: reloaded(both)])
def test_a_copy_of_head_and_loss_together_is_attached(together: Callable[[Any], Any]) -> None:
    loss, head = make()
    expected = loss(head(features()), labels()).item()
    other, other_head = together((loss, head))
    assert other_head is not head
    assert other(other_head(features()), labels()).item() == expected


def reloaded(anything: Any) -> Any:
    file = io.BytesIO()
    torch.save(anything, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, reloaded])
def test_one_module_holds_head_and_loss(duplicate: Callable[[DRML], DRML]) -> None:
    torch.manual_seed(0)
    both = DRML(FEATURES, CLASSES, DIM, groups=2, base="cosface")
    value = both(features(), labels())
    assert value.item() == both.loss(both.embed(features()), labels()).item()
    other = duplicate(both)
    optimizer = torch.optim.SGD(other.parameters(), lr=0.01)
    for step in range(20):
        optimizer.zero_grad()
        trained = other(features(), labels())
        if step == 0:
            assert trained.item() == value.item()
        trained.backward()
        optimizer.step()
    assert trained < value
    assert both(features(), labels()).item() == value.item()


def test_half_precision_gives_numbers_where_a_sum_or_a_norm_is_zero() -> None:
    head = RelationHead(FEATURES, DIM, 4).half()
    loss = DRMLLoss(CLASSES, DIM)
    loss.attach(head)
    with torch.no_grad():  # no group has anything to say to another
        head.edge_score.bias.fill_(-100)
    value = loss(head(features().half()), labels())
    value.backward()
    assert value.isfinite() and value.dtype == torch.float32
    assert all(p.grad.isfinite().all() for p in head.parameters() if p.grad is not None)
    assert loss(head(torch.zeros(10, FEATURES).half()), labels()).isfinite()  # nodes of length zero


def gathered(rank: int, file: str, results: Any) -> None:
    """One of two processes: the value and the gradient of its half of a batch."""
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{file}", rank=rank, world_size=2
    )
    loss, head = make("triplet", miner=TripletMarginMiner(1.0))
    own = features(20)[rank::2].requires_grad_()
    value = DistributedLossWrapper(loss)(head(own), labels(20)[rank::2])
    value.backward()
    assert own.grad is not None
    results[rank] = value.item(), own.grad.tolist()
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_the_distributed_wrapper_of_pml_sees_the_nodes_of_all_processes(tmp_path: Path) -> None:
    results = torch.multiprocessing.Manager().dict()
    torch.multiprocessing.spawn(gathered, (str(tmp_path / "meeting"), results), nprocs=2)
    loss, head = make("triplet", miner=TripletMarginMiner(1.0))
    inputs = features(20).requires_grad_()
    value = loss(head(inputs), labels(20))
    value.backward()
    assert inputs.grad is not None
    for rank in (0, 1):  # PML multiplies by the number of processes
        assert results[rank][0] == pytest.approx(2 * value.item(), rel=1e-5)
        gradient = torch.tensor(results[rank][1])
        torch.testing.assert_close(gradient, 2 * inputs.grad[rank::2], rtol=1e-4, atol=1e-6)


def test_embeddings_that_are_not_the_heads_last_output_are_refused() -> None:
    loss, head = make()
    with pytest.raises(ValueError, match="last output"):
        loss(torch.randn(10, DIM), labels())
    stale = head(features())
    head(features(seed=1))
    with pytest.raises(ValueError, match="last output"):
        loss(stale, labels())


def test_an_output_that_was_cast_is_still_the_heads() -> None:
    loss, head = make()
    expected = loss(head(features()), labels())
    assert loss(head(features()).double(), labels()).item() == pytest.approx(expected.item())


def test_a_head_of_another_shape_is_refused() -> None:
    loss, _ = make(groups=4)
    with pytest.raises(ValueError, match="embedding_size=8 and groups=4, got 8 and 2"):
        loss.attach(RelationHead(FEATURES, DIM, 2))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"base": "softmax"}, "one of triplet, proxyanchor, cosface, margin, got 'softmax'"),
        ({"base_params": {"scale": 1}}, "no parameter of base '.*' named 'scale'"),
        ({"groups": 3}, "groups=3, embedding_size=8"),
        ({"repre_weight": -1.0}, "repre_weight must not be negative, got -1.0"),
    ],
)
def test_impossible_settings_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DRMLLoss(CLASSES, DIM, **arguments)


def test_logits_are_those_of_the_output_and_missing_without_proxies() -> None:
    loss, head = make("proxyanchor")
    embeddings = head(features())
    expected = (
        nn.functional.normalize(embeddings) @ nn.functional.normalize(loss.repre_loss.proxies).t()
    )
    torch.testing.assert_close(loss.get_logits(embeddings), expected)
    for base in ("triplet", "margin"):
        with pytest.raises(NotImplementedError, match=f"'{base}' has no class scores"):
            make(base)[0].get_logits(embeddings)


# Methods


BY_NAME: dict[str, Any] = {method.name: method for method in METHODS}
DRML_METHODS = [method for name, method in BY_NAME.items() if name.startswith("drml")]


def test_head_and_loss_of_a_method_have_the_groups_of_the_parameters() -> None:
    for method, groups in itertools.product(DRML_METHODS, (1, 2, 8)):
        loss: Any = method.make_loss(CLASSES, DIM, {"groups": groups})
        loss.attach(method.make_head(64, DIM, {"groups": groups}))
        assert loss.groups == groups


def test_pair_losses_are_mined_as_their_bases_are() -> None:
    miners = {method.name: method.make_loss(CLASSES, DIM, {}).miner for method in DRML_METHODS}
    assert isinstance(miners["drml-triplet"], TripletMarginMiner)
    assert miners["drml-triplet"].type_of_triplets == "semihard"
    assert isinstance(miners["drml-margin"], DistanceWeightedMiner)
    assert miners["drml-pa"] is miners["drml-cosface"] is None
    for name, base in (("relation-triplet", "drml-triplet"), ("relation-margin", "drml-margin")):
        method = BY_NAME[name]
        alone = method.make_loss(CLASSES, DIM, method.preset("mlrc", "cub").params)
        assert type(alone.miner) is type(miners[base])


def test_relation_methods_train_the_head_by_the_base_loss_alone() -> None:
    method = BY_NAME["relation-pa"]
    params = {"margin": 0.1, "alpha": 32.0, "groups": 4}
    torch.manual_seed(0)
    head: Any = method.make_head(FEATURES, DIM, params)
    loss = method.make_loss(CLASSES, DIM, params)
    theirs = ProxyAnchorLoss(CLASSES, DIM, margin=0.1, alpha=32)
    theirs.proxies.data.copy_(loss.proxies)
    inputs = features().requires_grad_()
    results = []
    for each in (loss, theirs):
        value = each(head(inputs), labels())
        results.append((value, *torch.autograd.grad(value, [inputs, head.node.weight])))
    torch.testing.assert_close(results[0], results[1])
    loss(head(inputs), labels()).backward()
    assert head.integrator.weight.grad.abs().sum() > 0
    assert head.decoder.weight.grad is None


def test_a_mistyped_parameter_is_refused() -> None:
    with pytest.raises(ValueError, match="'alfa'"):
        METHODS[1].build_loss(CLASSES, DIM, alfa=32)
