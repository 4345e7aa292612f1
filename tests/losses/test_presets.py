"""Every preset of every method makes an experiment, on every data set and under its protocols."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from dataset_files import without_files

from harness import registry
from harness.config import RunConfig
from harness.errors import HarnessError
from harness.evaluation.fixed import fixed_jobs
from harness.experiment import build_experiment
from harness.losses.method import Method, adjusted_by
from harness.searching.samplers import check_first

METHODS = list(registry.items("loss").values())


@pytest.fixture(autouse=True)
def nothing_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    without_files(monkeypatch)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_every_preset_makes_an_experiment_whose_first_trial_is_in_its_space(method: Method) -> None:
    for preset, dataset in product(method.presets, registry.names("dataset")):
        belongs_to = method.preset(preset, dataset).belongs_to
        closed = registry.load_dataset(dataset)[0].closed
        for protocol in dict.fromkeys(("mlrc", *belongs_to)):
            if closed and not protocol.startswith("classic"):
                continue
            made = build_experiment(
                RunConfig(loss=method.name, preset=preset, dataset=dataset, protocol=protocol)
            )
            params = made.published_params
            assert method.cast(params, dataset, 20) == params
            check_first(made.space, params, preset)
            if protocol in belongs_to:  # its settings are those of the protocol, whose name stays
                assert made.protocol.name == protocol


def test_a_preset_outside_of_the_space_is_refused_in_words() -> None:
    made = build_experiment(RunConfig(loss="triplet"))
    with pytest.raises(HarnessError, match=r"preset 'mine' has margin=3.0, which is searched in"):
        check_first(made.space, {"margin": 3.0}, "mine")


@pytest.mark.parametrize(
    ("loss", "preset", "protocol"),
    [
        ("proxygml", "paper", "classic-proxygml"),
        ("hpl-pa", "paper", "classic-hpl"),
        ("drml-pa", "official", "classic-drml"),
        ("ccp-c2", "paper", "mlrc-ccp"),
        ("proxynca++", "paper", "two_stage"),
        ("proxyanchor", "paper", "classic-hpl"),
        ("proxyanchor", "official", "classic-drml"),
        ("proxynca", "paper", "classic-hpl"),
        ("softtriple", "ccp", "mlrc-ccp"),
        ("c2", "paper", "mlrc-ccp"),
    ],
)
def test_a_preset_names_its_protocol(
    loss: str, preset: str, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    monkeypatch.setattr("harness.evaluation.fixed.check_method", made.append)
    monkeypatch.setattr("harness.training.opened.open_part", lambda *given: None)
    (job,) = fixed_jobs([loss], {"preset": preset, "dataset": "cub"})
    assert job.opened.experiment.config.protocol == protocol
    assert job.opened.label == f"{loss}+preset={preset}"
    if protocol.startswith("classic"):  # and the other way round, where nothing can be searched
        (job,) = fixed_jobs([loss], {"protocol": protocol, "dataset": "cub"})
        assert job.opened.experiment.config.preset == preset


@pytest.mark.parametrize(
    ("dataset", "la", "gamma", "tau", "delta", "centers"),
    [
        ("cub", 20, 0.1, 0.2, 0.01, 10),
        ("cars", 17.69, 19.18, 0.0669, 0.3588, 10),
        ("sop", 100, 47.9, 0.2, 0.3145, 1),
        ("inshop", 20, 0.1, 0.2, 0.01, 1),
    ],
)
def test_softtriple_is_that_of_the_ccp_paper(
    dataset: str, la: float, gamma: float, tau: float, delta: float, centers: int
) -> None:
    for preset, each in (("ccp", centers), ("ccp-s", 1), ("ccp-l", 10)):
        made = build_experiment(
            RunConfig(loss="softtriple", preset=preset, dataset=dataset, protocol="mlrc-ccp")
        )
        params = made.published_params
        loss: Any = made.method.make_loss(6, 4, params)
        assert (loss.la, 1 / loss.gamma, loss.margin) == (la, pytest.approx(gamma), delta)
        assert params["reg_weight"] == loss.weight_reg_weight == tau
        assert (
            (loss.weight_regularizer is None) == (each == 1) == ("reg_weight" in adjusted_by(loss))
        )
        assert loss.fc.shape[1] == 6 * each
        assert params["loss_lr"] == 100 * made.protocol.lr  # of the network
