"""Semi-hard triplets and distance-weighted negatives, against plain loops and PML."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from pytorch_metric_learning.losses import TripletMarginLoss
from pytorch_metric_learning.miners import TripletMarginMiner
from torch import Tensor

from harness.losses._tools.mining import DistanceWeightedMiner, RothSemihardMiner
from harness.losses.mined_losses import build_margin_dw, build_semihard

LABELS = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 3])


def embeddings(dim: int = 5, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(len(LABELS), dim, generator=generator, dtype=torch.float64)


def distances(vectors: Tensor) -> list[list[float]]:
    unit = [vector / vector.norm() for vector in vectors]
    return [[float((x - y).norm()) for y in unit] for x in unit]


def triplets() -> list[tuple[int, int, int]]:
    """Every anchor with every positive and every negative."""
    indices = range(len(LABELS))
    return [
        (a, p, n)
        for a, p, n in itertools.product(indices, repeat=3)
        if a != p and LABELS[a] == LABELS[p] and LABELS[a] != LABELS[n]
    ]


@pytest.mark.parametrize("margin", [0.2, 0.7])
def test_semihard_is_its_formula(margin: float) -> None:
    vectors = embeddings()
    d = distances(vectors)
    terms = [
        d[a][p] - d[a][n] + margin for a, p, n in triplets() if 0 < d[a][n] - d[a][p] <= margin
    ]
    terms = [term for term in terms if term > 0]
    assert terms
    value = build_semihard(margin)(vectors, LABELS).item()
    assert value == pytest.approx(sum(terms) / len(terms))


def test_semihard_is_the_miner_and_loss_of_pml() -> None:
    vectors = embeddings()
    mined = TripletMarginMiner(0.2, type_of_triplets="semihard")(vectors, LABELS)
    expected = TripletMarginLoss(0.2)(vectors, LABELS, mined)
    assert build_semihard()(vectors, LABELS).item() == expected.item()


def hard_ones(d: list[float], anchor: int) -> tuple[list[int], list[int]]:
    """Roth's candidates: beyond the nearest negative, and within the farthest positive."""
    others = range(len(LABELS))
    positives = [i for i in others if i != anchor and LABELS[i] == LABELS[anchor]]
    negatives = [i for i in others if LABELS[i] != LABELS[anchor]]
    nearest, farthest = min(d[n] for n in negatives), max(d[p] for p in positives)
    return (
        [p for p in positives if d[p] > nearest] or positives,
        [n for n in negatives if d[n] < farthest] or negatives,
    )


def test_roths_semihard_draws_hard_ones_where_there_are_some() -> None:
    torch.manual_seed(0)
    vectors = embeddings()
    # A class far from all others has no hard ones: then any will do.
    vectors[3:5] = torch.tensor([[9.0, 9, 9, 9, 9], [9.0, 9, 9, 9, 8]])
    d = distances(vectors)
    seen: dict[int, tuple[set[int], set[int]]] = {}
    for _ in range(200):
        for a, p, n in torch.stack(RothSemihardMiner()(vectors, LABELS)).t().tolist():
            positives, negatives = seen.setdefault(a, (set(), set()))
            positives.add(p)
            negatives.add(n)
    assert set(seen) == set(range(8))  # the last image has no positive
    for anchor, (positives, negatives) in seen.items():
        expected = hard_ones(d[anchor], anchor)
        assert (sorted(positives), sorted(negatives)) == expected


def test_roths_semihard_is_the_mean_over_all_on_squared_distances() -> None:
    vectors = embeddings()
    loss = build_semihard(0.2, variant="roth")
    torch.manual_seed(1)
    value = loss(vectors, LABELS).item()
    torch.manual_seed(1)
    drawn = torch.stack(loss.miner(vectors, LABELS)).t().tolist()
    d = distances(vectors)
    terms = [max(0.0, d[a][p] ** 2 - d[a][n] ** 2 + 0.2) for a, p, n in drawn]
    assert len(terms) == 8
    assert value == pytest.approx(sum(terms) / len(terms))


def test_an_unknown_variant_is_refused() -> None:
    with pytest.raises(ValueError, match="variant must be one of pml, roth, got 'other'"):
        build_semihard(variant="other")


@pytest.mark.parametrize("dim", [5, 128])
def test_negatives_are_weighted_by_the_inverse_density_of_their_distance(dim: int) -> None:
    vectors = embeddings(dim)
    # Nearer than 0.5, and nearly antipodal: beyond the 1.4 at which PML cuts.
    vectors[3] = vectors[0] + 0.01 * vectors[1]
    vectors[5] = -vectors[0] + 0.4 * vectors[1]
    d = distances(vectors)
    same = LABELS.unsqueeze(1) == LABELS
    _, found = DistanceWeightedMiner().weigh(torch.tensor(d, dtype=torch.float64), same, ~same, dim)
    for anchor, row in enumerate(found):
        logs = {}
        for i in range(len(LABELS)):
            if LABELS[i] != LABELS[anchor]:
                x = max(d[anchor][i], 0.5)
                logs[i] = (2 - dim) * math.log(x) - (dim - 3) / 2 * math.log(1 - x * x / 4)
        most = max(logs.values())
        total = sum(math.exp(value - most) for value in logs.values())
        expected = [
            math.exp(logs[i] - most) / total if i in logs else 0.0 for i in range(len(LABELS))
        ]
        assert row.tolist() == pytest.approx(expected)


def test_each_anchor_draws_one_positive_and_one_negative_by_its_weight() -> None:
    torch.manual_seed(0)
    vectors, miner = embeddings(), DistanceWeightedMiner()
    draws = torch.stack([torch.stack(miner(vectors, LABELS)) for _ in range(3000)])
    assert (draws[:, 0] == torch.arange(8)).all()
    same = LABELS.unsqueeze(1) == LABELS
    matrix = torch.tensor(distances(vectors), dtype=torch.float64)
    _, weights = miner.weigh(matrix, same, ~same, 5)
    for anchor in range(8):
        share = draws[:, 2, anchor].bincount(minlength=len(LABELS)) / len(draws)
        torch.testing.assert_close(share.double(), weights[anchor], rtol=0, atol=0.04)
    positives = draws[:, 1, 0].bincount(minlength=len(LABELS)) / len(draws)
    assert positives[:3].tolist() == pytest.approx([0, 0.5, 0.5], abs=0.04)


def test_antipodes_and_copies_can_be_drawn() -> None:
    vectors = torch.tensor([[1.0, 0, 0, 0], [1.0, 0, 0, 0], [-1.0, 0, 0, 0], [-1.0, 0, 0, 0]])
    labels = torch.tensor([0, 0, 1, 1])
    anchors, positives, negatives = DistanceWeightedMiner()(vectors, labels)
    assert anchors.tolist() == [0, 1, 2, 3]
    assert positives.tolist() == [1, 0, 3, 2]
    assert (labels[negatives] != labels[anchors]).all()


@pytest.mark.parametrize("miner", [DistanceWeightedMiner(), RothSemihardMiner()])
@pytest.mark.parametrize("labels", [[0, 1, 2], [0, 0, 0]])
def test_a_batch_without_triplets_gives_none(
    miner: DistanceWeightedMiner, labels: list[int]
) -> None:
    mined = miner(torch.randn(3, 4), torch.tensor(labels))
    assert [len(part) for part in mined] == [0, 0, 0]


def test_margin_dw_is_its_formula_with_a_boundary_per_class() -> None:
    vectors = embeddings()
    loss = build_margin_dw(4, 5, margin=0.2, beta=1.2)
    boundaries = [1.2, 1.0, 1.3, 0.9]
    loss.loss.beta.data = torch.tensor(boundaries)
    torch.manual_seed(1)
    value = loss(vectors, LABELS).item()
    torch.manual_seed(1)
    drawn = torch.stack(loss.miner(vectors, LABELS)).t().tolist()
    d = distances(vectors)
    terms = []
    for a, p, n in drawn:
        beta = boundaries[int(LABELS[a])]
        terms += [d[a][p] - beta + 0.2, beta - d[a][n] + 0.2]
    kept = [term for term in terms if term > 0]
    assert value == pytest.approx(sum(kept) / len(kept), rel=1e-6)


def test_the_boundaries_are_learned() -> None:
    loss = build_margin_dw(4, 5)
    loss(embeddings().float(), LABELS).backward()
    assert loss.loss.beta.grad is not None
    assert loss.loss.beta.grad.any()
