"""Contract of everything that --loss can name."""

from __future__ import annotations

import pytest
import torch
from optuna.distributions import CategoricalDistribution
from pytorch_metric_learning import losses as pml
from torch import Tensor, nn

from harness import registry
from harness.registry import Method, builder_params
from harness.searching import samplers
from losses import baselines
from losses.method import OPTIMIZER_PARAMS

NUM_CLASSES, DIM, FEATURES = 20, 32, 64
DATASETS = ("cub", "cars", "sop", "inshop", "inaturalist", "imagenet", "glyphs", "folder")

# A memory keeps the batch in its order; a distance-weighted miner draws at random.
ORDER_MATTERS = {"c1-xbm", "c2-xbm", "drml-margin"}
NAMES = [
    *("contrastive", "triplet", "ntxent", "proxynca", "margin", "margin-class", "nsoftmax"),
    *("cosface", "arcface", "fastap", "snr", "ms", "ms-miner", "softtriple", "proxyanchor"),
    *("c1", "c2", "c1-xbm", "c2-xbm", "proxynca++", "proxygml", "hpl-nca", "hpl-pa"),
    *("ccp-c1", "ccp-c2", "ccp-ms", "ccp-triplet"),
    *("drml-triplet", "drml-pa", "drml-cosface", "drml-margin"),
]
ONE_PER_CLASS = {
    *("proxynca", "proxynca++", "nsoftmax", "cosface", "arcface", "softtriple", "proxyanchor"),
    *("hpl-nca", "hpl-pa", "proxygml", "drml-pa", "drml-cosface"),
}


@pytest.fixture(params=registry.names("loss"))
def method(request: pytest.FixtureRequest) -> Method:
    return registry.load_method(request.param)


@pytest.fixture
def batch() -> tuple[Tensor, Tensor]:
    """Trunk features of 8 classes of 4, close enough together that every loss has work to do."""
    generator = torch.Generator().manual_seed(3)
    labels = torch.arange(8).repeat_interleave(4)
    centres = torch.randn(8, FEATURES, generator=generator)
    return centres[labels] + torch.randn(32, FEATURES, generator=generator), labels


def build(method: Method, dataset: str = "cub") -> tuple[nn.Module, nn.Module]:
    """Head and loss at the published parameters."""
    params = builder_params(method.preset("mlrc", dataset).params)
    torch.manual_seed(0)
    head = (
        method.build_head(FEATURES, DIM, **params)
        if method.build_head
        else nn.Linear(FEATURES, DIM)
    )
    loss = method.build_loss(NUM_CLASSES, DIM, **params)
    attach = getattr(loss, "attach", None)
    if attach is not None:
        attach(head)
    return head, loss


def test_every_name_of_the_design_is_there() -> None:
    assert set(NAMES) <= set(registry.names("loss"))
    aliases = {name: registry.load_method(name).name for name in ("ccp", "hpl", "drml")}
    assert aliases == {"ccp": "ccp-c2", "hpl": "hpl-pa", "drml": "drml-pa"}


def test_gradient_reaches_the_features(method: Method, batch: tuple[Tensor, Tensor]) -> None:
    features, labels = batch
    features.requires_grad_()
    head, loss = build(method)
    loss(head(features), labels).backward()
    assert features.grad is not None and features.grad.isfinite().all()
    assert features.grad.abs().sum() > 0


@pytest.mark.parametrize("name", sorted(set(registry.names("loss")) - ORDER_MATTERS))
def test_the_order_of_a_batch_does_not_matter(name: str, batch: tuple[Tensor, Tensor]) -> None:
    method = registry.load_method(name)
    features, labels = batch
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))
    values = []
    for chosen in (torch.arange(len(labels)), order):
        head, loss = build(method)
        values.append(loss(head(features[chosen]), labels[chosen]).item())
    assert values[0] == pytest.approx(values[1], rel=1e-4, abs=1e-6)


def test_the_published_parameters_lie_in_the_space(method: Method) -> None:
    for dataset in DATASETS:
        for num_classes in (75, 8488):
            space = method.space(dataset, num_classes)
            params = method.preset("mlrc", dataset).params
            for name, distribution in space.items():
                value = params[name]
                if isinstance(distribution, CategoricalDistribution):
                    assert value in distribution.choices
                else:
                    assert distribution.low <= value <= distribution.high, (name, dataset)


@pytest.mark.parametrize("num_classes", [6, 75])
def test_the_whole_space_builds(method: Method, num_classes: int) -> None:
    space = method.space("cub", num_classes)
    for end in (0.0, 0.999):
        params = dict(method.preset("mlrc", "cub").params)
        params |= {name: samplers.value_at(dist, end) for name, dist in space.items()}
        method.build_loss(num_classes, DIM, **builder_params(params))


def test_presets_name_only_what_builders_take(method: Method) -> None:
    for preset in method.presets:
        for dataset in DATASETS:
            params = builder_params(method.preset(preset, dataset).params)
            method.build_loss(NUM_CLASSES, DIM, **params)
            if method.build_hook is not None:
                method.build_hook(**params)


def test_presets_change_only_what_a_protocol_has(method: Method) -> None:
    for preset in method.presets:
        for dataset in DATASETS:
            changes = method.preset(preset, dataset).protocol
            registry.load_protocol("mlrc", dataset, changes)


def test_a_learning_rate_is_searched_exactly_where_the_loss_has_parameters(method: Method) -> None:
    _, loss = build(method)
    has_parameters = any(True for _ in loss.parameters())
    searched = "loss_lr" in method.space("cub", NUM_CLASSES)
    # CCP's proxies share the trunk's learning rate.
    assert searched == (has_parameters and not method.name.startswith("ccp"))


def test_samples_per_class(method: Method) -> None:
    assert method.samples_per_class == (1 if method.name in ONE_PER_CLASS else 4)


def test_optimizer_settings_never_reach_a_builder() -> None:
    params = dict.fromkeys([*OPTIMIZER_PARAMS, "margin"], 0.1)
    assert builder_params(params) == {"margin": 0.1}


def test_margin_losses_do_not_decay_their_boundary() -> None:
    for name in ("margin", "margin-class"):
        assert registry.load_method(name).loss_weight_decay == 0.0


def test_the_miner_of_multi_similarity_changes_the_loss(batch: tuple[Tensor, Tensor]) -> None:
    features, labels = batch
    mined = baselines.build_ms_miner(2.0, 40.0, 0.5, epsilon=0.1)
    plain = pml.MultiSimilarityLoss(2.0, 40.0, 0.5)
    assert mined(features, labels) != plain(features, labels)


def test_snr_regularizes_unit_vectors() -> None:
    """By hand: |sum of coordinates| of (0.6, 0.8) and (-1, 0), mean 1.2, whatever their length."""
    embeddings = torch.tensor([[3.0, 4.0], [-5.0, 0.0]])
    labels = torch.tensor([0, 1])
    plain = baselines.build_snr(0.0, 0.0, regularizer_weight=0.0)
    heavy = baselines.build_snr(0.0, 0.0, regularizer_weight=0.5)
    added = heavy(embeddings, labels) - plain(embeddings, labels)
    assert added.item() == pytest.approx(0.5 * 1.2, abs=1e-5)
