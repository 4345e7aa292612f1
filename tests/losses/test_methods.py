"""Everything that --loss can name keeps the contract, and is what its paper says."""

from __future__ import annotations

import inspect
import math
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from pytorch_metric_learning import losses as pml
from torch import Tensor, nn

from harness import losses, registry
from harness.losses import baselines
from harness.losses.method import OPTIMIZER_PARAMS, Hook, Method, Preset, declared_params, on_step
from harness.testing import check_method
from harness.testing.method import METHOD_CHECKS

ALIASES = {"ccp": "ccp-c2", "hpl": "hpl-pa", "drml": "drml-pa"}
SAMPLES_PER_CLASS = {
    1: {
        *("proxynca", "proxynca++", "nsoftmax", "cosface", "arcface", "softtriple", "proxyanchor"),
        *("hpl-nca", "hpl-pa", "proxygml", "drml-pa", "drml-cosface"),
        *("relation-pa", "relation-cosface", "softmax", "hpl-nca-gt", "hpl-pa-gt"),
    },
    4: {
        *("contrastive", "triplet", "ntxent", "margin", "margin-class", "fastap", "snr", "ms"),
        *("ms-miner", "c1", "c2", "c1-xbm", "c2-xbm", "drml-triplet", "drml-margin"),
        *("ccp-c1", "ccp-c2", "ccp-ms", "ccp-triplet", "ms-ball", "triplet-ball"),
        *("triplet-semihard", "margin-dw", "relation-triplet", "relation-margin"),
    },
}


@pytest.fixture(params=registry.names("loss"))
def method(request: pytest.FixtureRequest) -> Method:
    return registry.load_method(request.param)


@pytest.mark.parametrize("check", METHOD_CHECKS, ids=lambda check: check.__name__)
def test_every_method_keeps_the_contract(method: Method, check: Callable[[Method], None]) -> None:
    check(method)


def test_every_other_space_keeps_the_contract(method: Method) -> None:
    for name in method.spaces:
        check_method(method.with_space(name))


# Wrapper -> its base, and how many parameters are searched on CUB.
WRAPPERS = {
    "c1-xbm": ("c1", 3),
    "c2-xbm": ("c2", 4),
    "ccp-c1": ("c1", 5),
    "ccp-c2": ("c2", 6),
    "ccp-ms": ("ms-ball", 7),
    "ccp-triplet": ("triplet-ball", 5),
    "drml-cosface": ("cosface", 5),
    "drml-margin": ("margin-dw", 5),
    "drml-pa": ("proxyanchor", 5),
    "drml-triplet": ("triplet-semihard", 3),
    "hpl-nca": ("proxynca", 4),
    "hpl-nca-gt": ("proxynca", 3),
    "hpl-pa": ("proxyanchor", 5),
    "hpl-pa-gt": ("proxyanchor", 4),
    "relation-cosface": ("cosface", 4),
    "relation-margin": ("margin-dw", 4),
    "relation-pa": ("proxyanchor", 4),
    "relation-triplet": ("triplet-semihard", 2),
}


@pytest.mark.parametrize("name", WRAPPERS)
def test_a_wrapper_names_its_base_and_searches_little_more(name: str) -> None:
    method = registry.load_method(name)
    assert method.base is not None
    assert (method.base.name, len(method.space("cub", 75))) == WRAPPERS[name]
    assert method.base.replaces_head == name.startswith(("drml", "relation"))


def test_another_space_is_in_the_name_and_an_unknown_one_is_refused() -> None:
    method = registry.load_method("ccp")
    narrow = method.with_space("paper")
    assert narrow.name == "ccp-c2+space=paper"
    assert set(narrow.space("cub", 75)) == {"reference_weight", "proxies_per_class", "pool_ratio"}
    assert narrow.preset("mlrc", "cub").params["batch_loss_weight"] == 0.1
    assert method.name == "ccp-c2"
    with pytest.raises(ValueError, match="no other space of ccp-c2 named 'papr'"):
        method.with_space("papr")
    with pytest.raises(ValueError, match="known: none"):
        registry.load_method("c2").with_space("paper")


# As records of before these spaces have them, and what they meant.
OLD_PARAMS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "ccp-c2": (
        {
            "batch_loss_weight": 0.1,
            "neg_margin": 0.3841,
            "pool_ratio": 1.25,
            "pos_margin": 0.0,
            "proxies_per_class": 10,
            "reference_weight": 0.0018,
        },
        {"proxy_weight": 1.0, "batch_weight": 0.1, "proxies_per_class": 10},
    ),
    "c2-xbm": (
        {"neg_margin": 0.5, "pos_margin": 0.0, "memory_size": 96, "start": 100},
        {"memory_weight": 1.0, "memory_size": 96, "start": 100},
    ),
    "hpl-pa": (
        {
            "loss_lr": 0.01,
            "margin_coarse": 0.265,
            "margin_fine": 0.193,
            "num_coarse": 7,
            "scale_coarse": 8.8,
            "scale_fine": 8.0,
            "update_every": 200,
        },
        {
            "scale": (8.0, 8.8),
            "margin": (0.193, 0.265),
            "level_weights": (1.0, 1.0),
            "update_every": 200,
        },
    ),
}


@pytest.mark.parametrize("name", OLD_PARAMS)
def test_parameters_of_older_records_still_mean_what_they_did(name: str) -> None:
    method = registry.load_method(name)
    params, meaning = OLD_PARAMS[name]
    assert method.cast(params, "glyphs", 75) == params
    loss = method.make_loss(75, 32, params, [label % 9 for label in range(75)])
    assert {setting: getattr(loss, setting) for setting in meaning} == meaning


def test_the_protocol_says_when_a_method_begins_that_starts_from_embeddings() -> None:
    method = registry.load_method("ccp")
    starts = [
        method.make_hook(params, base_steps=steps).start  # type: ignore[attr-defined]
        for params, steps in (({}, 0), ({}, 500), ({"start": 7}, 500))
    ]
    assert starts == [0, 500, 7]
    assert type(registry.load_method("c2").make_hook({}, base_steps=500)) is Hook


def test_the_papers_methods_are_there_with_their_samples_per_class() -> None:
    for samples, names in SAMPLES_PER_CLASS.items():
        found = {name: registry.load_method(name).samples_per_class for name in names}
        assert found == dict.fromkeys(names, samples)


def test_short_names_stand_for_the_papers_main_variants() -> None:
    assert {name: registry.load_method(name).name for name in ALIASES} == ALIASES


def test_a_learning_rate_is_searched_exactly_where_the_loss_has_parameters(method: Method) -> None:
    loss = method.make_loss(20, 32, method.preset("mlrc", "cub").params, [0] * 10 + [1] * 10)
    has_parameters = any(True for _ in loss.parameters())
    assert ("loss_lr" in method.space("cub", 20)) == has_parameters


def test_no_part_is_handed_an_optimizer_setting(method: Method) -> None:
    declared = {*method.loss_params, *method.head_params, *method.hook_params}
    assert not declared & set(OPTIMIZER_PARAMS)


def test_margin_losses_do_not_decay_their_boundary() -> None:
    for name in ("margin", "margin-class", "margin-dw", "drml-margin", "relation-margin"):
        assert registry.load_method(name).loss_weight_decay == 0.0


def test_the_miner_of_multi_similarity_changes_the_loss() -> None:
    embeddings = torch.randn(32, 8, generator=torch.Generator().manual_seed(3))
    labels = torch.arange(32) // 4
    mined = baselines.build_ms_miner(2.0, 40.0, 0.5, epsilon=0.1)
    plain = pml.MultiSimilarityLoss(2.0, 40.0, 0.5)
    assert mined(embeddings, labels) != plain(embeddings, labels)


def test_snr_regularizes_unit_vectors() -> None:
    """By hand: |sum of coordinates| of (0.6, 0.8) and (-1, 0), mean 1.2, whatever their length."""
    embeddings = torch.tensor([[3.0, 4.0], [-5.0, 0.0]])
    labels = torch.tensor([0, 1])
    plain = baselines.build_snr(0.0, 0.0, regularizer_weight=0.0)
    heavy = baselines.build_snr(0.0, 0.0, regularizer_weight=0.5)
    added = heavy(embeddings, labels) - plain(embeddings, labels)
    assert added.item() == pytest.approx(0.5 * 1.2, abs=1e-5)


def test_softtriple_has_ten_centres_per_class_unless_told_otherwise() -> None:
    method = registry.load_method("softtriple")
    published = method.preset("mlrc", "cub").params
    counts = [
        method.make_loss(5, 4, {**published, **further}).fc.shape[1]
        for further in ({}, {"centers_per_class": 3})
    ]
    assert counts == [50, 15]


# Parameters and their types


def build_loss(
    num_classes: int, embedding_size: int, *, margin: float = 0.1, parts: int = 2, mode: str = "a"
) -> Any:
    return num_classes, embedding_size, margin, parts, mode


def build_head(in_features: int, embedding_size: int, *, parts: int = 2) -> Any:
    return in_features, embedding_size, parts


class Recorder(Hook):
    def __init__(self, *, every: int | None = None, quiet: bool = False) -> None:
        self.settings = (every, quiet)


def made_method(**changes: Any) -> Method:
    space = {
        "margin": FloatDistribution(0, 1),
        "parts": CategoricalDistribution((2, 4)),
        "loss_lr": FloatDistribution(0, 1),
    }
    values: dict[str, Any] = {
        "name": "made",
        "paper": "none",
        "build_loss": build_loss,
        "build_head": build_head,
        "build_hook": Recorder,
        "space": lambda dataset, num_classes: space,
        "presets": {"mlrc": {"cub": Preset({"margin": 0.1, "parts": 2, "loss_lr": 0.1})}},
    }
    return Method(**{**values, **changes})


def test_the_types_of_parameters_are_read_off_the_builders() -> None:
    method = made_method()
    assert method.loss_params == {"margin": float, "parts": int, "mode": str}
    assert method.head_params == {"parts": int}
    assert method.hook_params == {"every": int, "quiet": bool}


def test_what_is_fixed_beforehand_is_no_parameter() -> None:
    assert set(declared_params(partial(build_loss, mode="b"))) == {"margin", "parts"}


def test_each_part_gets_exactly_its_own_parameters() -> None:
    method = made_method()
    params = {"margin": 0.3, "parts": 4, "every": 7, "quiet": True, "loss_lr": 0.5}
    assert method.make_loss(10, 8, params) == (10, 8, 0.3, 4, "a")
    assert method.make_head(16, 8, params) == (16, 8, 4)
    assert method.make_hook(params).settings == (7, True)  # type: ignore[attr-defined]


def test_a_method_without_head_and_hook_makes_none() -> None:
    method = made_method(build_head=None, build_hook=None)
    assert method.make_head(16, 8, {}) is None
    assert type(method.make_hook({"every": 7})) is Hook


def test_values_are_cast_by_the_space_and_else_by_the_builder() -> None:
    given = {
        "margin": 1,
        "parts": 4.0,
        "loss_lr": "1e-3",
        "head_lr": "0.5",
        "every": 3.0,
        "quiet": True,
        "mode": "b",
    }
    cast = made_method().cast(given, "cub", 10)
    expected = {
        "margin": 1.0,
        "parts": 4,
        "loss_lr": 1e-3,
        "head_lr": 0.5,
        "every": 3,
        "quiet": True,
        "mode": "b",
    }
    assert cast == expected
    assert {n: type(v) for n, v in cast.items()} == {n: type(v) for n, v in expected.items()}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"margn": 0.1}, "no parameter of made named 'margn'. Did you mean 'margin'"),
        ({"margin": "wide"}, "margin must be a number, got 'wide'"),
        ({"margin": True}, "margin must be a number, got True"),
        ({"margin": float("nan")}, "margin must be a number, got nan"),
        ({"parts": 3}, "parts must be one of 2, 4, got 3"),
        ({"every": 2.5}, "every must be a whole number, got 2.5"),
        ({"quiet": "yes"}, "quiet must be true or false, got 'yes'"),
        ({"mode": 1}, "mode must be a text, got 1"),
    ],
)
def test_what_cannot_be_cast_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        made_method().cast(given, "cub", 10)


def test_a_whole_number_of_the_space_stays_one() -> None:
    space = {"margin": IntDistribution(1, 9)}
    method = made_method(space=lambda dataset, num_classes: space)
    assert repr(method.cast({"margin": 3.0}, "cub", 10)) == "{'margin': 3}"


def test_a_builder_that_hides_its_parameters_is_refused() -> None:
    def swallows(num_classes: int, embedding_size: int, **params: Any) -> nn.Module:
        raise NotImplementedError

    def says_no_type(num_classes: int, embedding_size: int, margin=0.1) -> nn.Module:  # type: ignore[no-untyped-def]
        raise NotImplementedError

    def takes_a_tensor(num_classes: int, embedding_size: int, margin: Tensor) -> nn.Module:
        raise NotImplementedError

    with pytest.raises(ValueError, match=r"takes \*\*params: name its parameters"):
        made_method(build_loss=swallows)
    for builder in (says_no_type, takes_a_tensor):
        with pytest.raises(ValueError, match="'margin' of a builder must be annotated as one of"):
            made_method(build_loss=builder)


# The package


def test_every_public_name_can_be_imported_and_is_listed() -> None:
    assert set(dir(losses)) == set(losses.__all__)
    for name in losses.__all__:
        assert getattr(losses, name).__name__ == name
    with pytest.raises(AttributeError, match=r"'harness.losses' has no attribute"):
        _ = losses.CPCLoss


def test_what_a_method_is_can_be_imported_without_torch() -> None:
    code = "import harness.losses.method, sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


# Of an exported class, what no --set params.NAME reaches, and why; all other options are reached.
NOT_REACHED = {
    *("num_classes", "embedding_size", "kwargs"),  # of every class
    *("base", "base_params"),  # the name of the method, and its own parameters
    *("distance", "miner", "reducer"),  # belong to the base
}
CALLED = {
    ("ProxyNCAPlusPlusLoss", "temperature"): {"inverse_temperature"},
    ("HierarchicalProxyLoss", "scale"): {"scale_fine", "scale_coarse"},
    ("HierarchicalProxyLoss", "margin"): {"margin_fine", "margin_coarse"},
    ("HierarchicalProxyLoss", "num_coarse"): {"num_coarse", "more_coarse"},
}
EXPORTED = {
    "CCPLoss": ("ccp-c2",),
    "DRMLLoss": ("drml-pa",),
    "HierarchicalProxyLoss": ("hpl-nca", "hpl-pa"),
    "ProxyGMLLoss": ("proxygml",),
    "ProxyNCAPlusPlusLoss": ("proxynca++",),
    "XBMLoss": ("c2-xbm",),
}


@pytest.mark.parametrize("name", EXPORTED)
def test_every_option_of_a_class_is_a_parameter_of_its_methods(name: str) -> None:
    options = set(inspect.signature(getattr(losses, name)).parameters) - NOT_REACHED
    methods = [registry.load_method(method) for method in EXPORTED[name]]
    reached = {p for method in methods for p in method.known_params("cub", 75)}
    assert options
    for option in options:
        assert CALLED.get((name, option), {option}) <= reached, option


def test_options_of_hooks_and_baselines_are_parameters_too() -> None:
    expected = {
        "ccp-c2": {"pool_size", "pool_ratio", "monitor", "decay", "patience", "start"},
        "softtriple": {"centers_per_class"},
        "triplet-semihard": {"variant"},
        "c2-xbm": {"memory_weight", "memory_size", "start"},
    }
    for method, names in expected.items():
        assert names <= registry.load_method(method).known_params("cub", 75)


def test_a_list_is_a_parameter_with_values_of_its_type() -> None:
    method = registry.load_method("hpl-pa")
    cast = method.cast({"level_weights": [1, "0.5"], "more_coarse": (4.0, 2)}, "cub", 75)
    assert cast == {"level_weights": [1.0, 0.5], "more_coarse": [4, 2]}
    assert type(cast["level_weights"][0]) is float and type(cast["more_coarse"][0]) is int
    for wrong in (3, "1,2", [1, "x"], [1.5]):
        with pytest.raises(ValueError, match="more_coarse must be"):
            method.cast({"more_coarse": wrong}, "cub", 75)


def test_softmax_is_cross_entropy_of_a_linear_layer_on_unit_vectors() -> None:
    loss = losses.SoftmaxLoss(5, 4).double()
    embeddings, labels = torch.randn(6, 4, dtype=torch.float64), torch.tensor([0, 1, 2, 3, 4, 0])
    weight, bias = loss.proxies.tolist(), loss.bias.tolist()
    total = 0.0
    for row, label in zip(embeddings.tolist(), labels.tolist(), strict=True):
        length = math.sqrt(sum(x * x for x in row))
        logits = [
            sum(w * x / length for w, x in zip(ws, row, strict=True)) + b
            for ws, b in zip(weight, bias, strict=True)
        ]
        total += math.log(sum(map(math.exp, logits))) - logits[label]
    assert loss(embeddings, labels).item() == pytest.approx(total / 6, rel=1e-12)


@pytest.mark.parametrize(
    ("distribution", "value", "expected"),
    [
        (FloatDistribution(0, 5, step=1), 2.6, 3.0),
        (FloatDistribution(0.1, 1, step=0.3), 0.5, 0.4),
        (FloatDistribution(0, 5), 2.6, 2.6),
        (IntDistribution(1, 9, step=4), 8, 9),
        (FloatDistribution(0, 5, step=1), -0.7, 0.0),
    ],
)
def test_a_value_between_steps_becomes_the_nearest_that_is_proposed(
    distribution: FloatDistribution | IntDistribution, value: float, expected: float
) -> None:
    assert on_step(distribution, value) == pytest.approx(expected)
