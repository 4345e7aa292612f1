"""A loss with permuted labels is the loss itself, told something wrong."""

from __future__ import annotations

import pytest
import torch
from pytorch_metric_learning.losses import ProxyAnchorLoss

from harness.calibration.label_noise import permute_labels, with_label_noise
from harness.registry import load_method


def seen_labels(share: float, labels: torch.Tensor) -> torch.Tensor:
    loss = ProxyAnchorLoss(num_classes=50, embedding_size=4)
    seen: list[torch.Tensor] = []
    loss.forward = lambda embeddings, labels: seen.append(labels)  # type: ignore[method-assign]
    permute_labels(loss, share)(torch.zeros(len(labels), 4), labels)
    return seen[0]


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_a_share_of_the_labels_is_permuted(share: float) -> None:
    torch.manual_seed(0)
    labels = torch.arange(40)
    seen = seen_labels(share, labels)
    assert torch.equal(seen.sort().values, labels)
    wrong = int((seen != labels).sum())
    assert wrong <= 40 * share
    assert wrong >= 40 * share * 0.8  # few of a permutation stay where they are


@pytest.mark.parametrize("name", ["contrastive", "proxyanchor", "hpl-pa", "drml-pa", "ccp"])
def test_the_method_is_searched_as_the_one_that_it_distorts(name: str) -> None:
    method, noisy = load_method(name), with_label_noise(name, 1.0, "shuffled")
    assert noisy.space("cub", 50) == method.space("cub", 50)
    params = method.preset("mlrc", "cub").params
    loss = noisy.make_loss(50, 8, params)
    assert type(loss) is type(method.make_loss(50, 8, params))
    assert noisy.samples_per_class == method.samples_per_class and noisy.name == "shuffled"
